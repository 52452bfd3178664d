"""Spark applications as jobs: the runner behind ``@queue.job(run="spark", master=…, conf=…)``.

The worker checks the settings here and starts a fresh Python process for every attempt
(`oxcart.engine.runners`). That process is the Spark driver (`driver`). No session lives in the worker, and
this module imports no pyspark, so that a service may enqueue such jobs without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from oxcart.engine.runners import Entry, Prepared
from oxcart.model.errors import ValidationError
from oxcart.spark.work.job import SparkJob

#: Seconds that a stopped application has to cancel its Spark jobs before its processes are killed.
GRACE = 5.0

_ENTRY = ("oxcart.spark.work.driver", "enter")
_MASTER = re.compile(r"local(\[[^\]]+\])?|yarn|(spark|k8s)://\S+")


class ApplicationSettings(msgspec.Struct, frozen=True):
    """How an application runs.

    Attributes:
        master: Its cluster, or ``local[n]``; None for all cores of the worker's machine.
        conf: Spark's settings.
        script: The script to run instead of a function, or None.
    """

    master: str | None = None
    conf: dict[str, str] = {}
    script: str | None = None


class SparkRunner:
    """Runs functions of a session, and scripts, as Spark applications."""

    settings = frozenset({"master", "conf"})
    fills = frozenset({"spark"})
    face = SparkJob

    def prepare(self, target: Callable[..., Any] | str | Path, settings: Mapping[str, Any]) -> Prepared:
        """Checks the settings of a handler.

        Raises:
            ValidationError: A setting is wrong, or there is no such script.
        """
        master, conf = settings.get("master"), _read_conf(settings.get("conf") or {})
        if master is not None and not (isinstance(master, str) and _MASTER.fullmatch(master)):
            raise ValidationError("master", "local[n], spark://host:port, yarn or k8s://…", master)
        if callable(target):
            return Prepared(target, Entry(_ENTRY, ApplicationSettings(master, conf), GRACE))
        path = os.path.abspath(target)
        if not path.endswith(".py") or not os.path.isfile(path):
            raise ValidationError("script", "the path of a Python file", str(target))
        return Prepared(script, Entry(_ENTRY, ApplicationSettings(master, conf, path), GRACE), path)


def script(args: list[str] | None = None) -> Any:
    """The payload of a script: its arguments. The driver runs the script in place of this function."""
    raise NotImplementedError("a Spark script runs in its own process")


def _read_conf(conf: Any) -> dict[str, str]:
    if not isinstance(conf, Mapping):
        raise ValidationError("conf", "settings of Spark by their names", conf)
    read = {}
    for name, value in conf.items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise ValidationError("conf", "settings whose names begin with spark.", name)
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float):
            raise ValidationError(f"conf {name}", "a text, a number or a bool", value)
        read[name] = str(value)
    return read
