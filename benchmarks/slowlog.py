"""Reads the server's slow log without disturbing the measurement.

Each logged call costs the server time and memory: with every command of every script in the log, 100 000 jobs
take a quarter longer and 700 MB more. So the log keeps only calls above a length; the server's counters have
the number and the average of all calls. The server frees the log in many small parts, which the allocator
merges at the next large allocation: milliseconds in the middle of a later call. So this module makes a large
allocation before the measurement.

The log has wall-clock time. On a virtual machine whose host is busy an idle loop sometimes takes milliseconds
longer, in periods of seconds to minutes, which would hide everything else. So a measurement may wait for a
quiet period before it begins; everything measured from then on counts.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Commands by which the log itself is used.
_OWN = frozenset({b"CONFIG", b"SLOWLOG"})
#: The key of the large allocation, and the number of allocations.
_LARGE, _TIMES = "large", 500
#: A quiet period is this many loops of 2 ms, none longer than this many ms.
_QUIET, _LATE = 1500, 3.0
#: Consecutive calls, which need the same time.
_NEIGHBOURS = 50


@dataclass(frozen=True, slots=True)
class Call:
    """A logged call: how long it blocked the server in ms, and the name of the script or command."""

    ms: float
    name: str
    is_script: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """The server's calls during a measurement.

    Attributes:
        calls: The logged calls in order, including commands within scripts.
        scripts: The number of script calls.
        average: The average time of a script, in ms.
    """

    calls: list[Call]
    scripts: int
    average: float

    @property
    def kept_scripts(self) -> list[Call]:
        """The scripts among the logged calls."""
        return [call for call in self.calls if call.is_script]


def needed(calls: Iterable[Call], made: Mapping[str, int], floor: float) -> dict[str, float]:
    """Returns the time that calls of each name need, in ms: the highest median of 50 consecutive logged ones.

    Neighbours need the same time, and a pause of the machine affects one of them. Names with fewer calls have
    the median of all; of two the shorter call counts, and a single call counts as it is.

    Args:
        calls: The logged calls, in order.
        made: The number of calls of each name, also those too short for the log. If fewer than 50 calls and
            fewer than half of a name's are logged, these were delayed, and the name needs `floor`.
        floor: The shortest logged time, in ms.
    """
    by_name: dict[str, list[float]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call.ms)
    found = {}
    for name, spent in by_name.items():
        if len(spent) < _NEIGHBOURS and 2 * len(spent) < made.get(name, 0):
            found[name] = floor
            continue
        last = max(0, len(spent) - _NEIGHBOURS)  # the last 50 calls are a block, wherever the others end
        starts = {*range(0, last, _NEIGHBOURS), last}
        found[name] = max(statistics.median_low(spent[at : at + _NEIGHBOURS]) for at in starts)
    return found


class SlowLog:
    """Keeps calls from `start` to `stop`.

    Args:
        client: A client that does not decode.
        names: The names of scripts by SHA1.
        from_us: The shortest logged call, in µs.
        patience: The most seconds to wait for a quiet machine, in total.

    Attributes:
        made: The number of script calls by verb since `start`, of clients that report them to `scripted`.
    """

    def __init__(self, client: Any, names: Mapping[bytes, str], from_us: int, patience: float = 0.0) -> None:
        self._client = client
        self._names = names
        self._turns = 0
        self._before: list[Seen] = []
        self.made: Counter[str] = Counter()
        self.from_us = from_us
        self.patience = patience

    def start(self) -> None:
        """Starts with an empty log, in a quiet period if one comes within the patience."""
        self._before = []
        self.wait()
        self._empty()
        self.made.clear()

    def scripted(self, verb: str, _: float) -> None:
        """Counts a script call of a client; to be given to brokers and workers."""
        self.made[verb] += 1

    def wait(self, loops: int = _QUIET) -> None:
        """Waits for a quiet period, or until the patience is used up."""
        began = time.monotonic()
        while time.monotonic() - began < self.patience and max(self.idle(loops)) > _LATE:
            pass
        self.patience = max(0.0, self.patience - (time.monotonic() - began))

    def rest(self) -> float:
        """Waits for a quiet period during a measurement; the logged calls stay.

        Returns:
            The seconds that it waited.
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
        """Stops the log and returns its calls."""
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
        """Returns the times of an idle script of about 2 ms, in ms."""
        if not self._turns:
            self._turns = 100_000
            for _ in range(8):  # the number of turns is measured on this machine
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
