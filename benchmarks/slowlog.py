"""The server's own log of slow calls, kept from getting into the way of what it measures.

For each call that it keeps, the log takes time and memory of the server: with every command of every script
in it, 100 000 jobs take a quarter longer and 700 MB more. So only calls from some length on are kept; how
many there were in all and what they took on average, the server's counters tell. And what was kept is dropped
in many small parts, which the allocator puts in order when a large one is asked for: milliseconds in the
middle of some later call. So that is asked for here, before anything is measured.

The log tells time by the clock. On a virtual machine whose host is busy a loop that touches nothing takes
milliseconds longer now and then, in spells of seconds to minutes; with a limit of a few ms that is all there
is to be seen. So a measurement may wait for a quiet spell before it begins; what it then finds counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Commands by which the log itself is used.
_OWN = frozenset({b"CONFIG", b"SLOWLOG"})
#: A key that is there only while the allocator is asked for something large, and how often it is asked.
_LARGE, _TIMES = "large", 500
#: So many loops of 2 ms, none of which takes longer than this, in ms, are a quiet spell.
_QUIET, _LATE = 1500, 3.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was kept: how long it held the server in ms, and the name of the script or command."""

    ms: float
    name: str
    is_script: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server did meanwhile.

    Attributes:
        calls: The calls that were kept, as they followed each other; commands within scripts among them.
        scripts: How often any script ran.
        average: What a script took on average, in ms.
    """

    calls: list[Call]
    scripts: int
    average: float

    @property
    def kept_scripts(self) -> list[Call]:
        """The scripts among the calls that were kept."""
        return [call for call in self.calls if call.is_script]


class SlowLog:
    """Keeps calls from `start` to `stop`.

    Args:
        client: A client that does not decode.
        names: What to call scripts, by their SHA1.
        from_us: How long a call is that is kept, in µs.
        patience: For how many seconds in all it may be waited until the machine is quiet.
    """

    def __init__(self, client: Any, names: Mapping[bytes, str], from_us: int, patience: float = 0.0) -> None:
        self._client = client
        self._names = names
        self._turns = 0
        self._before: list[Seen] = []
        self.from_us = from_us
        self.patience = patience

    def start(self) -> None:
        """Begins with an empty log: in a quiet spell, if there is one before the patience is used up."""
        self._before = []
        self.wait()
        self._empty()

    def wait(self, loops: int = _QUIET) -> None:
        """Waits until so many loops in a row were not late, or the patience is used up."""
        began = time.monotonic()
        while time.monotonic() - began < self.patience and max(self.idle(loops)) > _LATE:
            pass
        self.patience = max(0.0, self.patience - (time.monotonic() - began))

    def rest(self) -> float:
        """Waits for a quiet spell in the midst of it; what was kept so far is not lost.

        Returns:
            How many seconds it took.
        """
        began = time.monotonic()
        if self.patience:
            self._before.append(self._end())
            self.wait(_QUIET // 3)
            self._empty()
        return time.monotonic() - began

    def _empty(self) -> None:
        self._client.slowlog_reset()
        for _ in range(_TIMES):
            self._client.setrange(_LARGE, 100_000, "x")
            self._client.delete(_LARGE)
        self._client.config_set("slowlog-max-len", 10_000_000)
        self._client.config_set("slowlog-log-slower-than", self.from_us)
        self._client.config_resetstat()
        self._client.slowlog_reset()

    def stop(self) -> Seen:
        """Ends it; returns what there was."""
        parts = [*self._before, self._end()]
        self._before = []
        scripts = sum(seen.scripts for seen in parts)
        spent = sum(seen.scripts * seen.average for seen in parts)
        return Seen([call for seen in parts for call in seen.calls], scripts, spent / max(1, scripts))

    def _end(self) -> Seen:
        self._client.config_set("slowlog-log-slower-than", -1)
        entries: list[Any] = self._client.execute_command("SLOWLOG", "GET", -1)
        self._client.slowlog_reset()
        calls = [self._call(took, words) for _, _, took, words, *_ in entries if words[0].upper() not in _OWN]
        figures = self._client.info("commandstats")
        ran = [one for name, one in figures.items() if name in ("cmdstat_eval", "cmdstat_evalsha")]
        scripts = sum(one["calls"] for one in ran)
        average = sum(one["usec"] for one in ran) / 1000 / max(1, scripts)
        return Seen(calls[::-1], scripts, average)

    def idle(self, calls: int) -> list[float]:
        """How long a script of about 2 ms takes each time that touches nothing, in ms."""
        if not self._turns:
            self._turns = 100_000
            for _ in range(8):  # how many turns that is, is found out here and now
                usual = sorted(self._loops(self._turns, 20))[10]
                if 1.5 < usual < 2.5:
                    break
                self._turns = round(self._turns * 2 / usual)
        return self._loops(self._turns, calls)

    def _loops(self, turns: int, calls: int) -> list[float]:
        self._empty()
        for _ in range(calls):
            self._client.eval("local x = 0; for i = 1, tonumber(ARGV[1]) do x = x + i end", 0, turns)
        took = [call.ms for call in self._end().kept_scripts]
        return took + [self.from_us / 1000] * (calls - len(took))

    def _call(self, took: int, words: list[bytes]) -> Call:
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            return Call(took / 1000, self._names.get(words[1], "a script sent whole"), True)
        return Call(took / 1000, words[0].decode("utf-8", "replace").upper(), False)
