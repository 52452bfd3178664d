"""The Lua files: each has its header, its parts exist, and the server compiles it."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest
import redis

from oxcart.broker.bridge import scripts as bridge
from oxcart.broker.bullmq import scripts
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.scripts import Script

LUA = files("oxcart.broker.bullmq") / "lua"
PARTS = sorted(item.name for item in (LUA / "parts").iterdir() if item.name.endswith(".lua"))
SHARED = sorted(item.name for item in (files("oxcart.broker") / "lua").iterdir())


def source(verb: str) -> str:
    return (LUA / f"{verb}.lua").read_text("utf-8")


def header(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line)
    return "\n".join(lines)


def test_there_is_a_script_per_transition() -> None:
    assert {"add", "claim", "finish", "renew", "recover", "promote", "pause", "resume"} <= set(verbs())
    assert len(verbs()) >= 18


EVERY = [*map(load, verbs()), *map(bridge.load, bridge.verbs())]


@pytest.mark.parametrize("script", EVERY, ids=lambda script: script.verb)
def test_without_a_key_it_is_compiled_and_does_nothing(script: Script, store: redis.Redis) -> None:
    """For both protocols: a caller loads an unknown script by a call without a key."""
    store.script_flush()
    assert store.eval(script.text.decode(), 0) is None
    assert store.script_exists(script.sha.decode()) == [True]
    assert list(store.scan_iter("*")) == []


#: How brokers call a script, in their source: `once` sends a slot and a number, `again` sends neither.
CALL = re.compile(r"\.(once|again)\(\s*load\(\"(\w+)\"\)")


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
def test_headers_name_the_slot_if_calls_carry_one(protocol: str) -> None:
    folder = files(f"oxcart.broker.{protocol}")
    calls = {
        (verb, how)
        for module in folder.iterdir()
        if module.name.endswith(".py")
        for how, verb in CALL.findall(module.read_text("utf-8"))
    }
    assert len(calls) > 20
    begins = {"once": "1 slot, 2 number of the call", "again": '1 "", 2 ""'}
    wrong = [
        verb
        for verb, how in sorted(calls)
        if begins[how] not in header((folder / "lua" / f"{verb}.lua").read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize("verb", verbs())
class TestEveryScript:
    def test_header_names_arguments_and_reply(self, verb: str) -> None:
        text = header(source(verb))
        purpose = text.splitlines()[0].removeprefix("-- ")
        assert purpose[0].isupper(), "the first line is a sentence about the purpose"
        for section in ("KEYS[1]", "ARGV", "Returns", "include"):
            assert re.search(rf"^-- {re.escape(section)}\b|^-- {re.escape(section)}", text, re.MULTILINE), (
                section
            )

    def test_header_names_the_events_it_writes(self, verb: str) -> None:
        text = source(verb)
        written = set(re.findall(r'"event", "([a-z-]+)"', text))
        described = header(text)
        for event in written:
            assert f"`{event}`" in described, f"{event} is written but not in the header"

    def test_includes_exist_and_come_before_it(self, verb: str) -> None:
        found = re.findall(r"^-- include(?: when needed)?: (.+)$", source(verb), re.MULTILINE)
        assert found
        for part in " ".join(found).split():
            assert f"{part}.lua" in [*PARTS, *SHARED]

    def test_functions_included_when_needed_exist(self, verb: str) -> None:
        text = load(verb).text.decode()
        asked = set(re.findall(r"\bseldom\(\)\.(\w+)", text))
        assert asked <= set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
        assert bool(asked) == ("include when needed" in source(verb))

    def test_uses_no_other_key_than_those_of_its_queue(self, verb: str) -> None:
        assert set(re.findall(r"KEYS\[(\d)\]", load(verb).text.decode())) <= {"1"}

    def test_the_server_compiles_it_under_the_sha_we_send(self, verb: str, store: redis.Redis) -> None:
        script = load(verb)
        assert store.script_load(script.text.decode()) == script.sha.decode()

    def test_text_has_no_comments_and_no_globals(self, verb: str) -> None:
        text = load(verb).text.decode()
        assert not re.search(r"^\s*--", text, re.MULTILINE)
        assert not re.search(r"^[a-z_]+ = ", text, re.MULTILINE), "a global would survive the call"

    def test_sha_is_that_of_the_text(self, verb: str) -> None:
        assert load(verb).sha.decode() == hashlib.sha1(load(verb).text).hexdigest()
        assert load(verb) is load(verb), "read once"


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_used_and_described(part: str) -> None:
    name = part.removesuffix(".lua")
    used = [
        verb for verb in verbs() if re.search(rf"^-- include.*: .*\b{name}\b", source(verb), re.MULTILINE)
    ]
    assert used, "no script includes it"
    assert (LUA / "parts" / part).read_text("utf-8").startswith("-- ")


def test_protocols_share_parts() -> None:
    takers = {
        "measuring.lua": "stride.lua",
        "memory.lua": "parts/base.lua",
        "resealing.lua": "reseal.lua",
        "signs.lua": "parts/outage.lua",
        "steps.lua": "set_step.lua",
        "time.lua": "parts/base.lua",
    }
    assert list(takers) == SHARED
    for protocol in ("bullmq", "bridge"):
        folder = files(f"oxcart.broker.{protocol}") / "lua"
        for name, taker in takers.items():
            assert not (folder / "parts" / name).is_file(), "a part of the same name would hide it"
            include = rf"^-- include: .*\b{name.removesuffix('.lua')}$"
            assert re.search(include, (folder / taker).read_text("utf-8"), re.MULTILINE), (protocol, name)


def test_the_parts_are_in_the_order_of_the_include_line() -> None:
    text = scripts.load("finish").text.decode()
    first = [
        text.index(mark) for mark in ("local call = redis.call", "read_gate", "insert_ready", "store_job")
    ]
    assert first == sorted(first)


def test_unused_functions_are_left_out() -> None:
    text = scripts.load("set_progress").text.decode()
    assert "local function max_events" in text
    assert "local known_max_events" in text, "used by a function that the script uses"
    assert "local function split_key" not in text
    for verb in verbs():
        text = scripts.load(verb).text.decode()
        for name in re.findall(r"^local function (\w+)", text, re.MULTILINE):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{verb}: {name} is unused"


def test_no_script_is_unknown() -> None:
    with pytest.raises(FileNotFoundError):
        load("no-such-verb")
