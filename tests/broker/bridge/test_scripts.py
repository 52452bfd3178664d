"""The Lua files of Bridge: each has its header, its parts exist, and the server compiles it."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import redis

from oxcart.broker.bridge.scripts import load, verbs

LUA = files("oxcart.broker.bridge") / "lua"
PARTS = sorted(item.name for item in (LUA / "parts").iterdir() if item.name.endswith(".lua"))


def source(verb: str) -> str:
    return (LUA / f"{verb}.lua").read_text("utf-8")


def header(text: str) -> str:
    return text[: re.search(r"^[^-]", text, re.MULTILINE).start()]  # type: ignore[union-attr]


@pytest.mark.parametrize("verb", verbs())
class TestEveryScript:
    def test_header_names_arguments_and_reply(self, verb: str) -> None:
        text = header(source(verb))
        for section in ("KEYS[1]  waiting", "ARGV", "Returns", "include"):
            assert re.search(rf"^-- {re.escape(section)}", text, re.MULTILINE), section
        written = set(re.findall(r'tell\([\w\[\]. ]+, "([a-z-]+)"', source(verb)))
        for event in written:
            assert f"`{event}`" in text, f"{event} is written but not in the header"

    def test_no_record_is_decoded(self, verb: str) -> None:
        assert "cjson" not in load(verb).text.decode()

    def test_the_server_compiles_it_under_the_sha_we_send(self, verb: str, store: redis.Redis) -> None:
        script = load(verb)
        assert store.script_load(script.text.decode()) == script.sha.decode()

    def test_no_globals_and_no_unused_functions(self, verb: str) -> None:
        text = load(verb).text.decode()
        assert not re.search(r"^[a-z_]+ = ", text, re.MULTILINE), "a global would survive the call"
        assert set(re.findall(r"KEYS\[(\d)\]", text)) <= {"1"}
        for name in re.findall(r"^local function (\w+)", text, re.MULTILINE):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{name} is unused"


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_used(part: str) -> None:
    name = part.removesuffix(".lua")
    assert any(re.search(rf"^-- include.*: .*\b{name}\b", source(verb), re.MULTILINE) for verb in verbs())
