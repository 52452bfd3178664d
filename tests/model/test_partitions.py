from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from oxcart.broker.ids import new_id
from oxcart.model.errors import ValidationError
from oxcart.model.options import JobOptions
from oxcart.model.partitions import (
    Layout,
    check_partitions,
    marked_id,
    marked_partition,
    partition_name,
    partition_of,
    routing_key,
    split_partition,
)


def test_a_key_has_the_partition_that_docs_promise() -> None:
    """Producers in other languages compute it too, so it never changes."""
    assert [partition_of(key, 16) for key in ("tenant-42", "a", "ü€😀", "")] == [12, 3, 9, 0]
    assert partition_of("tenant-42", 1) == 0


def test_keys_spread_evenly() -> None:
    found = Counter(partition_of(f"tenant-{number}", 16) for number in range(16_000))
    assert len(found) == 16
    assert max(found.values()) < 1.2 * min(found.values())


def test_names_can_be_read_back() -> None:
    assert partition_name("events", 3) == "events#3"
    assert split_partition("events#3") == ("events", 3)
    assert split_partition("a#b#10") == ("a#b", 10)
    assert [split_partition(name) for name in ("events", "events#", "events#03", "#3", "e#3@all")] == [
        None
    ] * 5


def test_an_id_names_its_partition() -> None:
    for number in (0, 7, 255, 1023):
        assert marked_partition(marked_id(new_id(), number)) == number
    assert marked_partition("order-42") is None
    assert marked_partition("6F2C7A52-7D2A-4C5E-8F7B-0A5F4A8D9C11") is None


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, None),
        ({"limit_key": "l"}, "l"),
        ({"limit_key": "l", "job_id": "j"}, "j"),
        ({"deduplication": "d", "job_id": "j"}, "d"),
        ({"idempotency_key": "i", "deduplication": "d"}, "i"),
        ({"partition_key": "p", "idempotency_key": "i", "job_id": "j"}, "p"),
    ],
)
def test_the_first_of_several_texts_decides(options: dict[str, str], key: str | None) -> None:
    assert routing_key(JobOptions.build(**options)) == key  # type: ignore[arg-type]


def test_a_layout_serves_old_partitions_until_they_are_retired() -> None:
    layout = Layout(1, 4, 4).resized(16, 10).resized(2, 20)
    assert layout == Layout(3, 2, 16, 20)
    assert layout.retired(30) == Layout(4, 2, 2, 30)


@pytest.mark.parametrize("count", [0, -1, 1025, 2.0, "4", True, None])
def test_bounds_of_the_number(count: object) -> None:
    with pytest.raises(ValidationError, match="partitions must be an integer from 1 to 1024"):
        check_partitions(count)


@pytest.mark.node
def test_node_computes_the_same_partition() -> None:
    """The lines of docs/partitions.md."""
    code = (
        "const table = Array.from({length: 256}, (_, n) => { for (let k = 0; k < 8; k++)"
        " n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1; return n >>> 0; });"
        "const crc32 = (text) => { let c = 0xffffffff; for (const byte of Buffer.from(text))"
        " c = (c >>> 8) ^ table[(c ^ byte) & 255]; return (c ^ 0xffffffff) >>> 0; };"
        "console.log(['tenant-42', 'a', 'ü€😀', ''].map((key) => crc32(key) % 16).join());"
    )
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "12,3,9,0"
