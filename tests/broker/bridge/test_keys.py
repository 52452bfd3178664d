"""The document's keys, to the letter, in both layouts."""

from __future__ import annotations

import pytest

from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.slots import slot_of
from oxcart.model.errors import ValidationError

DOCUMENT = {
    "worker": (("worker-1",), "workers:worker-1"),
    "heartbeat": (("worker-1",), "workers:heartbeat:worker-1"),
    "workers": ((), "workers:active"),
    "data": (("7",), "jobs:data:7"),
    "status": (("7",), "jobs:status:7"),
    "result": (("7",), "jobs:result:7"),
    "lock": (("7",), "jobs:lock:7"),
    "progress": (("7",), "jobs:progress:7"),
    "waiting": ((), "jobs:waiting"),
    "active": ((), "jobs:active"),
    "delayed": ((), "jobs:delayed"),
    "cron": ((), "jobs:cron"),
    "dead_letters": ((), "jobs:deadletter"),
    "concurrent": (("email",), "ratelimit:concurrent:email"),
    "minute": (("email",), "ratelimit:minute:email"),
    "paused": ((), "queues:paused"),
    "leader": ((), "scheduler:lock"),
    "processed": ((), "metrics:jobs:processed"),
    "failed": ((), "metrics:jobs:failed"),
}
OURS = {
    "call": ("c:0",),
    "cancellations": ("c",),
    "checking": (),
    "missing": (),
    "rescued": ("j1",),
    "survey": (),
    "ended": ("failed",),
    "events": (),
    "facts": (),
    "fence": (),
    "followers": ("7",),
    "held": (),
    "held_of": ("email",),
    "hold": (),
    "job": ("7",),
    "lane": ("all;c=gpu",),
    "lanes": (),
    "listed": (),
    "marker": (),
    "pending": (),
    "reading": (),
    "scan": (),
    "schedule": ("7",),
    "settling": (),
    "turned_back": (),
    "turns": (),
    "types": (),
    "watcher": (),
}


@pytest.mark.parametrize("name", DOCUMENT)
def test_the_documents_keys(name: str) -> None:
    args, suffix = DOCUMENT[name]
    assert getattr(BridgeKeys("email"), name)(*args) == f"bridge:{suffix}"
    assert getattr(BridgeKeys("email", "tenant"), name)(*args) == f"tenant:{suffix}"
    assert getattr(BridgeKeys("email", tagged=True), name)(*args) == f"{{bridge}}:{suffix}"


@pytest.mark.parametrize("name", OURS)
def test_ours_stand_under_ox(name: str) -> None:
    assert getattr(BridgeKeys("email"), name)(*OURS[name]).startswith("bridge:ox:")


def test_every_key_is_in_the_tables() -> None:
    methods = {
        name
        for name, value in vars(BridgeKeys).items()
        if callable(value)
        and not name.startswith("_")
        and name not in ("key", "slot", "client_name", "id_of", "inboxes", "jobs_beginning")
    }
    assert methods == set(DOCUMENT) | set(OURS)


def test_the_id_of_a_job_is_read_from_its_key() -> None:
    keys = BridgeKeys("email")
    assert keys.jobs_beginning("4f[") == "bridge:jobs:data:4f\\[*"
    assert keys.id_of(keys.data("4f59")) == "4f59"


def test_inboxes_of_a_worker_are_those_of_the_namespace() -> None:
    keys = BridgeKeys("email")
    assert keys.inboxes("c") == (keys.cancellations("c"),)


def test_all_keys_of_a_namespace_share_a_slot_on_a_cluster() -> None:
    keys = BridgeKeys("email", tagged=True)
    other = BridgeKeys("video", tagged=True)
    made = [getattr(keys, name)(*args) for name, (args, _) in DOCUMENT.items()]
    made += [getattr(other, name)(*args) for name, args in OURS.items()]
    assert {slot_of(key) for key in made} == {keys.slot()}
    assert BridgeKeys("email", "{mine}:bridge", tagged=True).base == "{mine}:bridge", (
        "a tag of the user's stays"
    )


def test_lanes_of_different_types_never_share_a_key() -> None:
    assert BridgeKeys("a").lane("b:c") != BridgeKeys("a:b").lane("c")


@pytest.mark.parametrize("namespace", ["", None, 7])
def test_a_namespace_is_text(namespace: object) -> None:
    with pytest.raises(ValidationError, match="namespace"):
        BridgeKeys("email", namespace)  # type: ignore[arg-type]
