"""Each invariant holds for a sound record and is broken by a record that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.checker.final import Event, Final, Job, Lake
from tests.checker.invariants import INVARIANTS, History, check
from tests.checker.plan import BRIDGE, BRIDGE_LIMIT, GROUPED, MIXED, OURS, RATED, Plan, Row, Rule
from tests.checker.record import Line


def _result(row: str, start: int = 1) -> dict[str, object]:
    return {"row": row, "start": start, "pid": 7}


def _events(*ids: str) -> list[Event]:
    return [event for one in ids for event in (Event("active", one), Event("completed", one))]


def _ran(row: str, start: int = 1, step: str = "ok", queue: str = OURS) -> list[Line]:
    return [Line(what, queue, row, row, start, step, "oxcart", 7) for what in ("began", "ended")]


def _told(row: str, what: str = "acked") -> Line:
    return Line(what, OURS, row, row)


def sound() -> History:
    """Two limited jobs, a job that uses all attempts, a parent with a child, and two runs of a schedule."""
    child = Row("child", OURS, "oxcart", 0, "child")
    tops = [
        Row("one", OURS, "oxcart", 0, "limited", name="limited"),
        Row("two", OURS, "oxcart", 0, "limited", name="limited"),
        Row("poor", OURS, "oxcart", 0, "exhausted", steps=["fail"], attempts=1, fate="failed"),
        Row("top", OURS, "oxcart", 0, "tree", children=[child]),
    ]
    plan = Plan(1, 1.0, (), tops, [Rule("every", OURS, "oxcart", 2, every=500)])
    done = ("one", "two", "child", "top")
    jobs = {(OURS, name): Job(["completed"], name, 1, 1, 0, _result(name)) for name in done}
    jobs[OURS, "poor"] = Job(["failed"], "poor", 1, 1, 0)
    for count, due in ((1, 1000), (2, 1500)):
        run = Job(["completed"], "run of every", 1, 1, 0, _result("run of every"))
        run.count, run.due, run.schedule = count, due, "every"
        jobs[OURS, f"repeat:every:{due}"] = run
    runs = [key[1] for key in jobs if key[1].startswith("repeat")]
    events = [*_events("one", "two"), Event("active", "poor"), Event("failed", "poor"), *_events("child")]
    events += [Event("waiting", "top", "waiting-children"), *_events("top", *runs)]
    lines = [_told(row) for row in plan.rows()]
    for name in ("one", "two", "child", "top"):
        lines += _ran(name)
    lines += _ran("poor", step="fail")
    for name in runs:
        lines += [Line(what, OURS, name, "run of every", 1, "ok", "oxcart", 7) for what in ("began", "ended")]
    events = [replace(event, id=f"{number}-0") for number, event in enumerate(events)]
    entries: list[tuple[str, str, str | None, str | None]] = [
        (OURS, one.id, one.name, one.job) for one in events
    ]
    states: dict[tuple[str, str], str] = dict.fromkeys(jobs, "completed") | {(OURS, "poor"): "dead_letter"}
    return History(plan, lines, Final(jobs, {OURS: events, MIXED: []}, lake=Lake(entries, [], states)))


def _again(history: History) -> History:
    return History(history.plan, history.lines, history.final, history.is_quiet)


def _lost(history: History) -> None:
    del history.final.jobs[OURS, "one"]


def _nowhere(history: History) -> None:
    history.final.jobs[OURS, "one"].places = []


def _not_done(history: History) -> None:
    history.final.jobs[OURS, "one"].places = ["wait"]
    history.is_quiet = False


def _wrong_fate(history: History) -> None:
    history.final.jobs[OURS, "one"].places = ["failed"]


def _refused(history: History) -> None:
    history.lines[0] = _told("one", "refused")


def _unknown(history: History) -> None:
    history.final.jobs[OURS, "x"] = Job(["completed"], "x", 1, 1, 0, _result("x"))


def _doubled(history: History) -> None:
    history.final.jobs[OURS, "other"] = history.final.jobs[OURS, "one"]


def _two_states(history: History) -> None:
    history.final.jobs[OURS, "one"].places = ["completed", "wait"]


def _two_ends(history: History) -> None:
    history.final.events[OURS] += _events("one")


def _leased(history: History) -> None:
    history.final.jobs[OURS, "one"].is_leased = True


def _old_start(history: History) -> None:
    history.final.jobs[OURS, "one"].starts = 2


def _shared_start(history: History) -> None:
    history.lines.append(Line("began", OURS, "one", "one", 1, "ok", "node5", 8))


def _no_end(history: History) -> None:
    history.lines = [line for line in history.lines if (line.what, line.row) != ("ended", "two")]


def _not_active(history: History) -> None:
    history.final.events[OURS] = [
        event for event in history.final.events[OURS] if (event.name, event.job) != ("active", "one")
    ]


def _too_many_ends(history: History) -> None:
    history.final.jobs[OURS, "poor"].ended = 2


def _too_many_runs(history: History) -> None:
    history.lines += _ran("poor", 2, "fail")
    history.final.jobs[OURS, "poor"].starts = 2


def _bad(history: History) -> None:
    row = Row("bad", OURS, "oxcart", 0, "bad", fate="failed")
    history.plan.tops.append(row)
    history.final.jobs[OURS, "bad"] = Job(["completed"], "bad", 1, 1, 0)


def _more_runs_than_starts(history: History) -> None:
    history.lines += _ran("one", 2)


def _released_twice(history: History) -> None:
    history.final.events[OURS].append(Event("waiting", "top", "waiting-children"))


def _early(history: History) -> None:
    history.lines = [*_ran("top"), *[line for line in history.lines if line.row != "top"], _told("top")]


def _same_due(history: History) -> None:
    history.final.jobs[OURS, "repeat:every:1500"].due = 1000


def _same_slot(history: History) -> None:
    history.final.jobs[OURS, "repeat:every:1500"].due = 1499


def _same_number(history: History) -> None:
    history.final.jobs[OURS, "repeat:every:1500"].count = 1


def _run_missing(history: History) -> None:
    del history.final.jobs[OURS, "repeat:every:1500"]


def _run_failed(history: History) -> None:
    history.final.jobs[OURS, "repeat:every:1500"].places = ["failed"]


def _over_limit(history: History) -> None:
    rows = [Row(f"l{n}", OURS, "oxcart", 0, "limited", name="limited") for n in range(3)]
    history.plan.tops += rows
    history.final.events[OURS] += [Event("active", row.id) for row in rows]


def _group_over_limit(history: History) -> None:
    rows = [Row(f"g{n}", GROUPED, "oxcart", 0, "grouped", group="red") for n in range(3)]
    history.plan.tops += rows
    history.final.events[GROUPED] = [Event("active", row.id) for row in rows]


def _bridge_over_limit(history: History) -> None:
    rows = [Row(f"b{n}", BRIDGE, "oxcart", 0, "limited") for n in range(BRIDGE_LIMIT + 1)]
    history.plan.tops += rows
    history.final.jobs |= {(BRIDGE, f"id-{row.id}"): Job(["active"], row.id, 1) for row in rows}
    history.final.events[BRIDGE] = [Event("active", f"id-{row.id}") for row in rows]


def _over_rate(history: History) -> None:
    # A window begins with a start: the second one is over.
    times = [0, 999, 1000, 1100, 1200, 1999]
    history.final.events[RATED] = [Event("active", f"r{at}", id=f"{at}-0") for at in times]


def _not_in_bronze(history: History) -> None:
    assert history.final.lake is not None
    del history.final.lake.entries[3]


def _twice_in_bronze(history: History) -> None:
    assert history.final.lake is not None
    history.final.lake.entries.append(history.final.lake.entries[0])


def _other_in_bronze(history: History) -> None:
    assert history.final.lake is not None
    history.final.lake.entries.append((OURS, "99-0", "completed", "one"))


def _gap(history: History) -> None:
    assert history.final.lake is not None
    history.final.lake.gaps.append(OURS)


def _other_state(history: History) -> None:
    assert history.final.lake is not None
    history.final.lake.states[OURS, "one"] = "failed"


def _open_in_tables(history: History) -> None:
    assert history.final.lake is not None
    history.final.lake.states[OURS, "poor"] = "running"


def _trimmed(history: History) -> None:
    history.final.trimmed.append(OURS)


#: A change of the record, and the invariant that it breaks.
BREAKS: list[tuple[Callable[[History], None], str]] = [
    (_lost, "acknowledged"),
    (_nowhere, "acknowledged"),
    (_not_done, "acknowledged"),
    (_wrong_fate, "acknowledged"),
    (_refused, "added as told"),
    (_unknown, "added as told"),
    (_doubled, "added as told"),
    (_two_states, "one state"),
    (_two_ends, "one state"),
    (_leased, "one state"),
    (_old_start, "lease"),
    (_shared_start, "lease"),
    (_no_end, "lease"),
    (_not_active, "lease"),
    (_too_many_ends, "attempts"),
    (_too_many_runs, "attempts"),
    (_more_runs_than_starts, "attempts"),
    (_released_twice, "released once"),
    (_early, "released once"),
    (_same_due, "schedules"),
    (_same_slot, "schedules"),
    (_same_number, "schedules"),
    (_run_missing, "schedules"),
    (_run_failed, "schedules"),
    (_over_limit, "limits"),
    (_group_over_limit, "limits"),
    (_bridge_over_limit, "limits"),
    (_over_rate, "limits"),
    (_not_in_bronze, "lake"),
    (_twice_in_bronze, "lake"),
    (_other_in_bronze, "lake"),
    (_gap, "lake"),
    (_other_state, "lake"),
    (_open_in_tables, "lake"),
    (_trimmed, "whole record"),
]


def test_a_sound_record_breaks_nothing() -> None:
    assert check(sound()) == []


@pytest.mark.parametrize(("change", "invariant"), BREAKS, ids=lambda one: getattr(one, "__name__", one))
def test_a_broken_record_is_noticed(change: Callable[[History], None], invariant: str) -> None:
    history = sound()
    change(history)
    assert invariant in {one.invariant for one in check(_again(history))}


def test_limits_that_are_just_kept_break_nothing() -> None:
    history = sound()
    _bridge_over_limit(history)
    history.final.events[BRIDGE].insert(1, Event("completed", "id-b0"))
    _over_rate(history)
    del history.final.events[RATED][4]
    found = {one.text for one in check(_again(history)) if one.invariant == "limits"}
    assert found == set()


def test_rates_are_not_judged_where_the_clock_was_stepped() -> None:
    history = sound()
    _over_rate(history)
    history.lines.append(Line("fault", step="step", row="server"))
    assert "limits" not in {one.invariant for one in check(_again(history))}


@pytest.mark.parametrize("change", [_shared_start, _too_many_runs, _more_runs_than_starts])
def test_a_failover_may_lose_claims_but_no_acknowledged_job(change: Callable[[History], None]) -> None:
    history = sound()
    if change is _shared_start:  # a start runs twice if its first claim was lost
        history.lines.append(Line("fault", step="failover", row="server"))
    change(history)
    history.lines.append(Line("fault", step="failover", row="server"))
    assert check(_again(history)) == []
    _lost(history)
    assert "acknowledged" in {one.invariant for one in check(_again(history))}


@pytest.mark.parametrize(
    ("change", "invariant"), [(_shared_start, "lease"), (_too_many_ends, "attempts"), (_bad, "attempts")]
)
def test_what_no_failover_explains_is_judged_in_its_round_too(
    change: Callable[[History], None], invariant: str
) -> None:
    history = sound()
    change(history)
    history.lines.append(Line("fault", step="failover", row="server"))
    assert invariant in {one.invariant for one in check(_again(history))}


def test_every_invariant_can_be_broken() -> None:
    assert {invariant for _, invariant in BREAKS} == set(INVARIANTS)
