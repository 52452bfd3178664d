"""Groups of failures: what is masked, where an error was raised, and how groups are bounded."""

from __future__ import annotations

import msgspec
import pytest

from oxcart.model import failure_groups
from oxcart.model.failure import Category
from oxcart.model.failure_groups import OTHERS, FailureGroups, mask, raised_in
from oxcart.model.job import Job
from oxcart.model.particulars import LONGEST
from oxcart.model.search import JobSearch
from oxcart.model.state import State

#: Frames of a program, of the standard library, of packages, and of Node.
MAIL = 'File "/srv/mail.py", line 41, in send'
DECODER = 'File "/usr/lib64/python3.12/json/decoder.py", line 3, in loads'
HTTPX = 'File "/srv/.venv/lib/python3.12/site-packages/httpx/_api.py", line 9, in get'
SHOP = 'File "/srv/.venv/lib/python3.12/site-packages/shop.py", line 4, in send'
FROZEN = 'File "<frozen importlib._bootstrap>", line 1, in _load'
NODE_MODULE = "    at get (/srv/node_modules/a/b.js:1:1)"
NODE_OWN = "    at send (/srv/mail.js:41:11)"


def failed(job_id: str, reason: str, at: int = 1, trace: str = "") -> Job:
    return Job(
        id=job_id,
        name="send",
        queue="mail",
        finished_on=at,
        failed_reason=reason,
        stacktrace=[trace] if trace else [],
        state=State.FAILED,
    )


#: Reasons and what they are without particulars, in Python and in Spark.
MASKED = [
    ("order 4711 is unknown", "order <n> is unknown"),
    ("user-7 and ORD-7731-x", "<id> and <id>"),
    ("0b9d2f7e-3c1a-4f7e-9a51-0123456789ab is gone", "<id> is gone"),
    ("no route to 10.0.0.7:25", "no route to <address>"),
    ("ada@example.com bounced", "<email> bounced"),
    ("GET https://example.com/a?b=1 failed", "GET <url> failed"),
    ("since 2026-11-15T12:00:00Z\n  late", "since <time> late"),
    ("object at 0x7f1dc1ed21d0", "object at <hex>"),
    ("took -1.5 s of 30 s", "took <n> s of <n> s"),
    ("the line is busy", "the line is busy"),
    ("user 'ada' has 3 items", "user <text> has <n> items"),
    ("no 6fa459ea-ee8a-3ca4-894e-db77e160355e", "no <id>"),
    ("GET https://x.io/a?b=1 -> 503", "GET <url> -> <n>"),
    ("2026-11-02T10:00:00.5Z at 10.0.0.1:6379", "<time> at <address>"),
    ("open /var/lib/x.db:  no", "open <path>: no"),
    ("mail to a.b@c.example.org", "mail to <email>"),
    ("at 0xdeadbeef", "at <hex>"),
    ("child bull:mail:order-7 failed", "child bull:mail:<id> failed"),
    ("child bull:mail:42 failed", "child bull:mail:<id> failed"),
    ("child bull:{mail}@any;c=gpu:a:b failed", "child bull:{mail}@any;c=gpu:<id> failed"),
    ("HTTP 503 after 3 tries", "HTTP 503 after <n> tries"),
    ("HTTP/1.1 404 for user 7", "HTTP/<n> 404 for user <n>"),
    ("status code: 429, waited 12 s", "status code: 429, waited <n> s"),
    ("Request failed with status=500", "Request failed with status=500"),
    (
        "Client error '404 Not Found' for url 'https://x.io/7'",
        "Client error 404 Not Found for url <text>",
    ),
    (
        "502 Server Error: Bad Gateway for url: https://x.io/7",
        "502 Server Error: Bad Gateway for url: <url>",
    ),
    ("order 503 is late by 404 s", "order <n> is late by <n> s"),
    ("für käufer-7 waren 1.5e-7 und +3 zu groß", "für <id> waren <n> und <n> zu groß"),
]


@pytest.mark.parametrize(("reason", "masked"), MASKED)
def test_particulars_are_masked(reason: str, masked: str) -> None:
    assert mask(reason) == masked


@pytest.mark.parametrize(
    ("trace", "frame"),
    [
        (
            'Traceback:\n  File "/srv/run.py", line 3, in main\n  File "/srv/mail.py", line 41, in send',
            "mail.py:41 in send",
        ),
        (
            "Error: x\n    at send (/srv/mail.js:41:11)\n    at async run (/srv/w.js:3:1)",
            "mail.js:41 in send",
        ),
        ("Error: x\n    at /srv/mail.js:41:11", "mail.js:41"),
        ("Error: x\n    at async Object.send (file:///srv/mail.mjs:4:1)", "mail.mjs:4 in Object.send"),
        (f"{MAIL}\n{DECODER}", "mail.py:41 in send"),
        (f"{MAIL}\n{HTTPX}\n{FROZEN}", "mail.py:41 in send"),
        (f"{SHOP}\n{DECODER}", "shop.py:4 in send"),
        (DECODER, "decoder.py:3 in loads"),
        (f"Error: x\n    at JSON.parse (<anonymous>)\n{NODE_MODULE}\n{NODE_OWN}", "mail.js:41 in send"),
        ("nothing that is a trace", None),
        ("", None),
    ],
)
def test_the_frame_that_raised_an_error(trace: str, frame: str | None) -> None:
    assert raised_in(trace) == frame


def test_the_same_reason_from_two_frames_is_two_groups() -> None:
    groups = FailureGroups()
    for number, line in enumerate((1, 2, 2)):
        groups.add(failed(f"j{number}", "no", number, f'File "a.py", line {line}, in f'))
    assert [(one.frame, one.count) for one in groups.largest()] == [("a.py:2 in f", 2), ("a.py:1 in f", 1)]


def test_codes_are_counted_and_match_a_reason() -> None:
    job = msgspec.structs.replace(failed("j1", "'missing'"), code="KeyError")
    groups = FailureGroups()
    groups.add(job)
    assert groups.largest()[0].codes == {"KeyError": 1}
    assert JobSearch(reason="keyerr").fits(job, 1)
    assert not JobSearch(reason="ValueError").fits(job, 1)


def test_first_and_last_and_the_latest_example() -> None:
    groups = FailureGroups()
    for at in (30, 10, 20):
        groups.add(failed(f"j{at}", f"order {at}", at))
    (group,) = groups.largest()
    assert (group.first_ms, group.last_ms, group.example) == (10, 30, "order 30")


def test_reasons_beyond_the_bound_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "MOST_GROUPS", 2)
    groups = FailureGroups()
    for word in ("one", "two", "three", "four", "five"):
        groups.add(failed(word, word))
    assert next((one.reason, one.count) for one in groups.largest()) == (OTHERS, 3)


def test_a_job_without_a_reason_has_a_group() -> None:
    groups = FailureGroups()
    groups.add(failed("j", ""))
    assert groups.largest()[0].reason == "(no reason)"


def test_of_equal_groups_the_latest_is_first() -> None:
    groups = FailureGroups()
    for at, word in ((1, "one"), (3, "three"), (2, "two")):
        groups.add(failed(word, word, at))
    assert [one.reason for one in groups.largest()] == ["three", "two", "one"]


def test_a_group_has_three_ids_and_counts_of_states_and_categories() -> None:
    groups = FailureGroups()
    for number in range(4):
        category = Category.TEMPORARY if number else None
        groups.add(msgspec.structs.replace(failed(f"j{number}", "no"), category=category))
    groups.add(msgspec.structs.replace(failed("j4", "no"), state=None))
    (group,) = groups.largest()
    assert group.ids == ["j0", "j1", "j2"]
    assert group.states == {"failed": 4, "": 1}
    assert group.categories == {"temporary": 3, "": 2}


def test_the_last_trace_names_the_frame() -> None:
    groups = FailureGroups()
    traces = ['File "a.py", line 1, in f', 'File "a.py", line 2, in g']
    groups.add(msgspec.structs.replace(failed("j", "no"), stacktrace=traces))
    assert groups.largest()[0].frame == "a.py:2 in g"


def test_a_long_reason_is_cut_and_many_groups_are_kept() -> None:
    assert len(mask("x" * 600)) == LONGEST == 500
    groups = FailureGroups()
    for number in range(1_001):
        groups.add(failed(str(number), "x" + chr(0x4E00 + number)))
    assert len(groups.largest()) == 1_001  # a thousand, and that of all others
    assert groups.largest()[-1].count == 1
    groups.add(failed("one more", "y"))
    assert groups.largest()[0].reason == OTHERS
