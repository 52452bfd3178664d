"""The outcome of an ended attempt: every category, with attempts, stalls and backoff."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from oxcart.broker.port import Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.verdict import LONGEST_REASON, LONGEST_TRACE, TRACES, Verdict, log_failure
from oxcart.model.backoff import Backoff
from oxcart.model.failure import Category, Classifier, PermanentError, Rule, TemporaryError
from oxcart.model.outcome import Cancel, Retry, Snooze
from oxcart.model.retention import KEEP, REMOVE, Retention
from tests.engine.making import NOW, make_job


def make_verdict(**options: Any) -> Verdict:
    return Verdict(clock=lambda: NOW, rand=lambda: 0.5, **options)


verdict = make_verdict()


class TestResults:
    @pytest.mark.parametrize("value", [None, 0, "text", {"a": [1]}, [None]])
    def test_completed(self, value: Any) -> None:
        outcome = verdict.of_result(make_job(), value)
        assert (outcome.kind, outcome.id, outcome.token, outcome.starts) == ("c", "1", "token:1", 1)
        assert (json.loads(outcome.value), outcome.at_ms) == (value, NOW)

    def test_a_result_that_is_no_json_fails_for_good(self) -> None:
        outcome = verdict.of_result(make_job(attempts=5), {"x": object()})
        assert (outcome.kind, outcome.category) == ("f", "permanent")
        assert outcome.value.startswith(b"return value.x must be something JSON can hold")

    def test_snooze_uses_no_attempt(self) -> None:
        outcome = verdict.of_result(make_job(attempts=1), Snooze("5m"))
        assert (outcome.kind, outcome.delay_ms, outcome.counts) == ("d", 300_000, False)
        assert (outcome.value, outcome.stack) == (b"", b"")

    @pytest.mark.parametrize("reason", ["not wanted", ""])
    def test_cancel(self, reason: str) -> None:
        outcome = verdict.of_result(make_job(attempts=5), Cancel(reason))
        assert (outcome.kind, outcome.category) == ("f", "cancelled")
        assert outcome.value.decode() == (reason or "cancelled")

    def test_retry_uses_an_attempt(self) -> None:
        outcome = verdict.of_result(make_job(attempts=2), Retry(after="1m", reason="busy"))
        assert (outcome.kind, outcome.delay_ms, outcome.counts, outcome.value) == ("d", 60_000, True, b"busy")
        last = verdict.of_result(make_job(attempts=2, fields={"atm": "1"}), Retry(after="1m", reason="busy"))
        assert (last.kind, last.category) == ("f", "temporary")

    def test_retry_without_a_time_follows_the_backoff(self) -> None:
        assert verdict.of_result(make_job(backoff="7s"), Retry()).delay_ms == 7000
        assert verdict.of_result(make_job(), Retry(after=0)).kind == "r"

    @pytest.mark.parametrize(
        ("job", "worker", "kept"),
        [
            (None, None, None),
            (None, Retention(count=5), Retention(count=5)),
            (True, Retention(count=5), REMOVE),
            (False, Retention(count=5), KEEP),
            ({"age": 60, "count": 3}, None, Retention(age=60, count=3)),
        ],
    )
    def test_retention_of_the_job_before_that_of_the_worker(
        self, job: Any, worker: Retention | None, kept: Retention | None
    ) -> None:
        made = make_verdict(remove_on_complete=worker, remove_on_fail=worker)
        assert made.of_result(make_job(remove_on_complete=job), 1).retention == kept
        failed = made.of_error(make_job(remove_on_fail=job, attempts=1), ValueError())
        assert failed.retention == kept
        assert KEEP.count == -1


CATEGORIES = [
    (TemporaryError("x"), Category.TEMPORARY),
    (RuntimeError("x"), Category.TEMPORARY),
    (PermanentError("x"), Category.PERMANENT),
    (PermissionError("x"), Category.PERMANENT),
    (MemoryError("x"), Category.SYSTEM),
    (SystemExit("x"), Category.SYSTEM),
]
GIVEN = [None, Category.TIMEOUT, Category.CANCELLED, Category.SYSTEM]


class TestErrors:
    @pytest.mark.parametrize(("error", "category"), CATEGORIES)
    @pytest.mark.parametrize(
        ("attempts", "made", "stalls"), list(itertools.product([1, 2, 3], [0, 1, 2], [0, 1, 2]))
    )
    def test_every_category_with_attempts_and_stalls(
        self, error: BaseException, category: Category, attempts: int, made: int, stalls: int
    ) -> None:
        job = make_job(attempts=attempts, fields={"atm": str(made), "stc": str(stalls)}, backoff="3s")
        outcome = verdict.of_error(job, error)
        left = attempts - (made + 1 + stalls)
        if category.retryable and left > 0:
            assert (outcome.kind, outcome.delay_ms, outcome.counts) == ("d", 3000, True)
        else:
            assert (outcome.kind, outcome.category) == ("f", category.value)
        assert outcome.value == b"x"

    @pytest.mark.parametrize("given", GIVEN)
    def test_a_category_that_is_given_overrules(self, given: Category | None) -> None:
        outcome = verdict.of_error(make_job(attempts=2), PermanentError("x"), given)
        retried = given in (Category.TIMEOUT, Category.SYSTEM)
        assert outcome.kind == ("d" if retried else "f")

    def test_a_job_that_a_peer_added_without_attempts_has_one(self) -> None:
        for stalls in ("0", "5"):
            outcome = verdict.of_error(make_job(opts={}, fields={"stc": stalls}), ValueError("x"))
            assert outcome.kind == "f"
        assert verdict.before_start(make_job(opts={}, fields={"stc": "5"})) is None

    @pytest.mark.parametrize(
        ("backoff", "made", "delay"),
        [
            ("5s", 0, 5000),
            ("5s", 3, 5000),
            ({"type": "exponential", "delay": 100}, 0, 100),
            ({"type": "exponential", "delay": 100}, 3, 800),
            ({"type": "exponential", "delay": 100, "cap": 300}, 3, 300),
            ({"type": "exponential", "delay": 100, "multiplier": 3}, 2, 900),
            ({"type": "linear", "delay": 100}, 3, 400),
            ({"type": "fixed", "delay": 100, "jitter": 0.5}, 0, 100),
            ({"type": "fixed", "delay": 100, "jitter": 0.5, "jitter_mode": "down"}, 0, 75),
        ],
    )
    def test_the_wait_follows_the_policy(self, backoff: Any, made: int, delay: int) -> None:
        job = make_job(attempts=9, backoff=backoff, fields={"atm": str(made)})
        assert verdict.of_error(job, ValueError("x")).delay_ms == delay

    def test_no_wait_is_a_retry_at_once(self) -> None:
        job = make_job(opts={"attempts": 3, "backoff": 0, "lifo": True})
        outcome = verdict.of_error(job, ValueError("x"))
        assert (outcome.kind, outcome.lifo) == ("r", True)

    def test_a_custom_policy(self) -> None:
        seen: list[Any] = []

        def mine(attempt: int, delay: int, cap: int | None) -> float:
            seen.append((attempt, delay))
            return 42 if attempt == 1 else -1

        made = make_verdict(strategies={"mine": mine})
        policy = Backoff("custom", 500, name="mine")
        assert made.of_error(make_job(attempts=9, backoff=policy), ValueError("x")).delay_ms == 42
        gives_up = made.of_error(make_job(attempts=9, backoff=policy, fields={"atm": "1"}), ValueError("x"))
        assert (gives_up.kind, gives_up.category) == ("f", "temporary")
        assert seen == [(1, 500), (2, 500)]
        assert verdict.of_error(make_job(attempts=9, backoff=policy), ValueError("x")).delay_ms == 500

    def test_a_failing_strategy_fails_the_job_with_a_reason(self) -> None:
        def mine(attempt: int, delay: int, cap: int | None) -> float:
            raise ZeroDivisionError("oops")

        made = make_verdict(strategies={"mine": mine})
        outcome = made.of_error(make_job(attempts=9, backoff=Backoff("custom", name="mine")), ValueError("x"))
        assert outcome.kind == "f"
        assert b"oops" in outcome.value

    def test_an_error_may_say_when(self) -> None:
        job = make_job(attempts=3, backoff="5s")
        assert verdict.of_error(job, TemporaryError("x", retry_after="1h")).delay_ms == 3_600_000
        assert verdict.of_error(job, TemporaryError("x", retry_after=0)).kind == "r"

    def test_a_queue_may_have_its_own_table(self) -> None:
        rule = Rule(category=Category.PERMANENT, types=(KeyError,))
        made = make_verdict(classifier=Classifier().with_rule(rule))
        assert made.of_error(make_job(), KeyError("x")).kind == "f"
        assert verdict.of_error(make_job(), KeyError("x")).kind == "d"


class TestReasons:
    def reason(self, error: BaseException) -> str:
        return verdict.of_error(make_job(), error).value.decode()

    def test_texts(self) -> None:
        assert self.reason(ValueError("it broke")) == "it broke"
        assert self.reason(ValueError()) == "ValueError"
        assert self.reason(ValueError("half \ud800")) == "half \\ud800"

    def test_an_error_that_cannot_be_shown(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        assert self.reason(Mute()).startswith("Mute, whose description failed with")

    def stacks(self, job: RunningJob, error: BaseException) -> list[str]:
        raw = verdict.of_error(job, error).stack
        return msgspec.json.decode(raw, type=list[str])

    def test_traces_are_kept_newest_last(self) -> None:
        try:
            raise ValueError("here")
        except ValueError as error:
            (trace,) = self.stacks(make_job(), error)
            both = self.stacks(make_job(fields={"stacktrace": '["before"]'}), error)
        assert "test_traces_are_kept" in trace
        assert trace.endswith("ValueError: here")
        assert both == ["before", trace]

    def test_causes_are_shown(self) -> None:
        error = ValueError("outer")
        error.__cause__ = KeyError("inner")
        assert "KeyError: 'inner'" in self.stacks(make_job(), error)[0]

    @pytest.mark.parametrize(("limit", "kept"), [(0, 0), (1, 1), (3, 3), (None, TRACES)])
    def test_as_many_as_the_job_keeps(self, limit: int | None, kept: int) -> None:
        before = json.dumps([f"trace {number}" for number in range(20)])
        job = make_job(stack_trace_limit=limit, fields={"stacktrace": before})
        traces = self.stacks(job, ValueError("new"))
        assert len(traces) == kept
        assert not kept or traces[-1].endswith("ValueError: new")

    def test_a_long_trace_is_cut_in_the_middle(self) -> None:
        (trace,) = self.stacks(make_job(), ValueError("x" * 100_000 + "end"))
        assert len(trace) < LONGEST_TRACE + 100
        assert "characters left out" in trace
        assert trace.endswith("end")

    @pytest.mark.parametrize("attempts", [1, 5])
    def test_a_long_reason_is_cut_in_the_middle(self, attempts: int) -> None:
        outcome = verdict.of_error(make_job(attempts=attempts), ValueError("begin" + "ü" * 100_000 + "end"))
        reason = outcome.value.decode()
        assert len(reason) < LONGEST_REASON + 100
        assert reason.startswith("begin")
        assert "characters left out" in reason
        assert reason.endswith("end")

    def test_a_long_reason_without_an_error_is_cut_in_the_trace_too(self) -> None:
        outcome = verdict.of_result(make_job(attempts=1), Retry(reason="x" * 100_000))
        assert len(outcome.value) < LONGEST_REASON + 100
        assert len(outcome.stack) < LONGEST_REASON + 200

    def test_the_reason_of_a_key_error_has_its_class(self) -> None:
        class Missing(KeyError):
            def __str__(self) -> str:
                return "no such customer"

        for error, reason in ((KeyError("missing"), "KeyError: 'missing'"), (Missing(), "no such customer")):
            assert verdict.of_error(make_job(), error).value.decode() == reason

    @pytest.mark.parametrize("before", ["not json", "{}", "5", '"text"', "[1,null]"])
    def test_traces_that_a_peer_spoilt(self, before: str) -> None:
        assert self.stacks(make_job(fields={"stacktrace": before}), ValueError("x"))[-1].endswith("x")


class TestBeforeStart:
    def test_a_job_that_may_run(self) -> None:
        assert verdict.before_start(make_job()) is None
        assert verdict.before_start(make_job(attempts=3, fields={"stc": "1", "atm": "1"})) is None

    def test_stalled_too_often(self) -> None:
        reason = "job stalled more than allowable limit"
        outcome = verdict.before_start(make_job(fields={"defa": reason, "stc": "2"}))
        assert outcome is not None
        assert (outcome.kind, outcome.category, outcome.value.decode()) == ("f", "system", reason)

    def test_a_failed_child(self) -> None:
        outcome = verdict.before_start(make_job(fields={"defa": "child bull:q:2 failed"}))
        assert outcome is not None
        assert (outcome.kind, outcome.category) == ("f", "permanent")

    @pytest.mark.parametrize(("made", "stalls"), [(0, 3), (1, 2), (2, 1), (3, 1)])
    def test_attempts_used_up_by_lost_workers(self, made: int, stalls: int) -> None:
        job = make_job(attempts=3, fields={"atm": str(made), "stc": str(stalls)})
        outcome = verdict.before_start(job)
        assert outcome is not None
        assert (outcome.kind, outcome.category) == ("f", "system")
        assert f"{made + stalls} of 3" in outcome.value.decode()

    def test_a_job_that_is_run_again_by_hand_may_run(self) -> None:
        """Its attempts are used up, but none by a lost worker, so an operator let it run again."""
        assert verdict.before_start(make_job(attempts=3, fields={"atm": "3"})) is None

    def test_a_job_that_was_started_too_often(self) -> None:
        bounded = make_verdict(max_started=3)
        assert bounded.before_start(make_job(starts=3)) is None
        outcome = bounded.before_start(make_job(starts=4, attempts=9))
        assert outcome is not None
        assert (outcome.kind, outcome.value.decode()) == ("f", "job started more than allowable limit")
        assert verdict.before_start(make_job(starts=1000)) is None

    def test_starts_before_a_retry_from_the_beginning_do_not_count(self) -> None:
        bounded = make_verdict(max_started=3)
        assert bounded.before_start(make_job(starts=13, fields={"ox:forgiven": "10"})) is None
        assert bounded.before_start(make_job(starts=14, fields={"ox:forgiven": "10"})) is not None
        assert bounded.before_start(make_job(starts=4, fields={"ox:forgiven": "garbage"})) is not None


class TestOthers:
    def test_given_back(self) -> None:
        outcome = verdict.given_back(make_job(starts=4))
        assert (outcome.kind, outcome.starts, outcome.token) == ("w", 4, "token:4")

    @pytest.mark.parametrize(("code", "message"), [(-4, "have not ended"), (-9, "failed")])
    def test_children_not_ready(self, code: int, message: str) -> None:
        outcome = verdict.children_not_ready(make_job(attempts=5), code)
        assert (outcome.kind, outcome.category) == ("f", "permanent")
        assert message in outcome.value.decode()

    @pytest.mark.parametrize(
        ("attempts", "made", "stalls", "category", "allowed"),
        [
            (3, 2, 0, Category.TEMPORARY, 3),  # used up, as peers must see
            (3, 0, 2, Category.TEMPORARY, 1),  # stalls used the rest: no attempt is left
            (3, 0, 0, Category.PERMANENT, 3),  # two were left
        ],
    )
    def test_peers_see_the_attempts(
        self, attempts: int, made: int, stalls: int, category: Category, allowed: int
    ) -> None:
        job = make_job(attempts=attempts, fields={"atm": str(made), "stc": str(stalls)})
        outcome: Outcome = verdict.of_error(job, ValueError("x"), category)
        assert (outcome.kind, outcome.attempts) == ("f", allowed)


class TestFailureLog:
    """Every failed attempt is one log line, so that the log alone shows failing jobs."""

    def test_a_final_failure_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        job = make_job(attempts=2, name="charge", fields={"atm": "1"})
        log_failure(job, verdict.of_error(job, TemporaryError("the bank said no\nand more")))
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("oxcart.worker.failures", "WARNING")
        assert record.getMessage() == (
            f"queue {job.queue}: job 1 (charge) failed for good, attempt 2 of 2, temporary: the bank said no"
        )
        assert (vars(record)["job_id"], vars(record)["category"]) == ("1", "temporary")

    def test_a_retry_is_logged_as_information(self, caplog: pytest.LogCaptureFixture) -> None:
        job = make_job(attempts=2, backoff="1500ms")
        outcome = verdict.of_error(job, TemporaryError("x" * 1000))
        log_failure(job, outcome)
        assert caplog.records == []
        with caplog.at_level("INFO", "oxcart.worker"):
            log_failure(job, outcome)
        assert "failed and is tried again in 1.5 s, attempt 1 of 2, temporary: xxx" in caplog.text
        assert "x" * 301 not in caplog.text

    def test_cancellation_is_not_logged_as_a_failure(self, caplog: pytest.LogCaptureFixture) -> None:
        job = make_job()
        log_failure(job, verdict.of_result(job, Cancel("not wanted")))
        assert caplog.records == []


def test_the_code_of_an_error_is_recorded() -> None:
    outcome = verdict.of_error(make_job(), TemporaryError("later", code="bank-busy"))
    assert (outcome.category, outcome.code) == ("temporary", "bank-busy")
    assert verdict.of_error(make_job(), TemporaryError("later")).code == "TemporaryError"
