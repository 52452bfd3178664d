"""Key names in the layouts of a single server and of a cluster."""

from __future__ import annotations

import base64

import pytest
from redis.crc import key_slot

from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.slots import has_tag
from oxcart.model.errors import CrossSlotError, ValidationError

#: Method, arguments, and the part of the key after the base.
NAMES: list[tuple[str, tuple[str, ...], str]] = [
    ("meta", (), "meta"),
    ("id", (), "id"),
    ("wait", (), "wait"),
    ("paused", (), "paused"),
    ("active", (), "active"),
    ("prioritized", (), "prioritized"),
    ("priority_counter", (), "pc"),
    ("delayed", (), "delayed"),
    ("waiting_children", (), "waiting-children"),
    ("completed", (), "completed"),
    ("failed", (), "failed"),
    ("marker", (), "marker"),
    ("stalled", (), "stalled"),
    ("stalled_check", (), "stalled-check"),
    ("limiter", (), "limiter"),
    ("schedulers", (), "repeat"),
    ("scheduler", ("s",), "repeat:s"),
    ("events", (), "events"),
    ("metrics", ("completed",), "metrics:completed"),
    ("job", ("42",), "42"),
    ("lock", ("42",), "42:lock"),
    ("logs", ("42",), "42:logs"),
    ("dependencies", ("42",), "42:dependencies"),
    ("processed", ("1",), "1:processed"),
    ("ignored", ("1",), "1:failed"),
    ("unsuccessful", ("1",), "1:unsuccessful"),
    ("deduplication", ("d",), "de:d"),
    ("kept", ("d",), "dn:d"),
    ("call", ("c:1",), "ox:call:c:1"),
    ("idempotency", ("größe", "k"), "ox:idem:7:größe:k"),
    ("expiring", (), "ox:expiring"),
    ("held", (), "ox:held"),
    ("parked", (), "ox:parked"),
    ("opening", (), "ox:opening"),
    ("turns", (), "ox:turns"),
    ("groups", (), "ox:groups"),
    ("swept", (), "ox:swept"),
    ("starts", ("t:n",), "ox:rate:t:n"),
    ("callbacks", (), "ox:callbacks"),
    ("cancellations", ("c",), "ox:cancel:c"),
    ("gates", (), "ox:gates"),
    ("lanes", (), "ox:lanes"),
    ("ready_lanes", (), "ox:lanes:ready"),
    ("busy_lanes", (), "ox:lanes:busy"),
    ("lanes_version", (), "ox:lanes:version"),
    ("lanes_tended", (), "ox:lanes:tended"),
    ("lane_ids", (), "ox:ids"),
    ("workers", (), "ox:workers"),
    ("worker", ("w",), "ox:worker:w"),
    ("listeners", (), "ox:listeners"),
    ("watcher", (), "ox:watcher"),
    ("crowded", (), "ox:crowded"),
    ("wake", ("w",), "ox:wake:w"),
    ("layout", (), "ox:partitions"),
    ("dividing", (), "ox:dividing"),
    ("totals", (), "ox:totals"),
    ("key", ("other",), "other"),
]

#: Queue, prefix, tagged, base.
LAYOUTS = [
    ("video", "bull", False, "bull:video"),
    ("video", "bull", True, "bull:{video}"),
    ("video", "app", True, "app:{video}"),
    ("video", "{bull}", False, "{bull}:video"),
    ("video", "{bull}", True, "{bull}:video"),
    ("{video}", "bull", False, "bull:{video}"),
    ("{video}", "bull", True, "bull:{video}"),
    ("{video}@gpu", "bull", True, "bull:{video}@gpu"),
    ("{video#3}@gpu", "bull", True, "bull:{video#3}@gpu"),
    ("video@all;c=gpu", "bull", False, "bull:video@all;c=gpu"),
    ("video@all;c=gpu", "bull", True, "bull:{video}@all;c=gpu"),
    ("{video}@all;c=gpu", "bull", True, "bull:{video}@all;c=gpu"),
    ("video@gpu", "bull", True, "bull:{video@gpu}"),
    ("a{}b", "bull", True, "bull:{a{}b}"),
    ("ünï→", "bull", False, "bull:ünï→"),
]


@pytest.mark.parametrize(("queue", "prefix", "tagged", "base"), LAYOUTS)
@pytest.mark.parametrize(("method", "arguments", "suffix"), NAMES, ids=[row[0] for row in NAMES])
def test_names(
    queue: str, prefix: str, tagged: bool, base: str, method: str, arguments: tuple[str, ...], suffix: str
) -> None:
    assert getattr(Keys(queue, prefix, tagged), method)(*arguments) == f"{base}:{suffix}"


def test_every_key_has_a_row() -> None:
    methods = {name for name, value in vars(Keys).items() if callable(value) and not name.startswith("_")}
    no_keys = {"client_name", "consumer_names", "id_of", "inboxes", "jobs_beginning", "of_work", "slot"}
    assert methods - no_keys == {row[0] for row in NAMES}


def test_the_id_of_a_job_is_read_from_its_key() -> None:
    keys = Keys("ada")
    assert keys.id_of("bull:ada:order-7") == "order-7"
    assert keys.id_of("bull:ada@all;c=gpu:order-7") == "order-7"
    assert keys.id_of("bull:ada@example.com:order-7") is None
    assert keys.id_of("bull:adam:order-7") is None
    assert Keys("a*b").jobs_beginning("x[") == "bull:a\\*b*:x\\[*"


def test_inboxes_of_a_lane_include_that_of_its_queue() -> None:
    assert Keys("video").inboxes("c") == ("bull:video:ox:cancel:c",)
    lane = Keys("video@all;c=gpu")
    assert lane.inboxes("c") == (lane.cancellations("c"), "bull:video:ox:cancel:c")


@pytest.mark.parametrize(("queue", "prefix", "tagged"), [row[:3] for row in LAYOUTS if has_tag(row[3])])
def test_all_keys_of_a_tagged_queue_share_a_slot(queue: str, prefix: str, tagged: bool) -> None:
    keys = Keys(queue, prefix, tagged)
    slots = {key_slot(getattr(keys, method)(*arguments).encode()) for method, arguments, _ in NAMES}
    assert slots == {keys.slot()}


def test_a_plain_queue_has_no_slot() -> None:
    with pytest.raises(CrossSlotError, match=r"'video' with prefix 'bull' has no hash tag.*\{bull\}"):
        Keys("video").slot()


@pytest.mark.parametrize(
    ("text", "tagged"),
    [
        ("{a}", True),
        ("x{a}y", True),
        ("{}", False),
        ("{", False),
        ("}{", False),
        ("a}b{c}", True),
        ("", False),
    ],
)
def test_has_tag(text: str, tagged: bool) -> None:
    assert has_tag(text) is tagged


@pytest.mark.parametrize("name", ["", "a:b", ":", "\ud800"])
def test_refuses_a_name_that_no_peer_could_use(name: str) -> None:
    with pytest.raises(ValidationError, match="queue name must be"):
        Keys(name)


@pytest.mark.parametrize(("tagged", "named"), [(False, "video"), (True, "{video}")])
def test_client_name_is_found_by_node(tagged: bool, named: str) -> None:
    keys = Keys("video", "bull", tagged)
    assert keys.client_name() == "bull:" + base64.b64encode(named.encode()).decode()
    assert keys.client_name(":w:me").endswith(":w:me")
