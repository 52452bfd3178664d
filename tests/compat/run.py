"""Runs a script on a package and prints what it found: the same file on PyPI's bullmq and on ours.

python run.py <package> <script> <port>

It runs in the environment of either package, so it uses nothing but the standard library. Every public method
that the script itself calls is noted, by the name of its class; calls that methods make among themselves are
not.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"


def public(package: ModuleType) -> dict[str, list[str]]:
    """The public methods and properties of every class that the package offers, inherited ones too."""
    found = {}
    for name, value in vars(package).items():
        if (
            not name.startswith("_")
            and inspect.isclass(value)
            and value.__module__.startswith(package.__name__)
        ):
            found[name] = sorted(
                attribute
                for attribute in dir(value)
                if not attribute.startswith("_")
                and not (issubclass(value, BaseException) and hasattr(Exception, attribute))
                and (callable(getattr(value, attribute)) or isinstance(static(value, attribute), property))
            )
    return found


def static(kind: type, attribute: str) -> Any:
    return inspect.getattr_static(kind, attribute)


def watch(package: ModuleType, script: str) -> set[str]:
    """Lets every public method note that the script has called it; returns where."""
    called: set[str] = set()

    def note(name: str) -> None:
        if sys._getframe(2).f_code.co_filename.startswith(script):
            called.add(name)

    def noting(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            note(name)
            return function(*args, **kwargs)

        return wrapper

    for kind, attributes in public(package).items():
        owner = getattr(package, kind)
        for attribute in attributes:
            value, name = static(owner, attribute), f"{kind}.{attribute}"
            if isinstance(value, property):
                setattr(owner, attribute, property(noting(name, value.fget), value.fset))
            elif isinstance(value, staticmethod):
                setattr(owner, attribute, staticmethod(noting(name, value.__func__)))
            else:
                setattr(owner, attribute, noting(name, value))
    return called


def main() -> None:
    package = importlib.import_module(sys.argv[1])
    if sys.argv[2] == "public":
        print(json.dumps(public(package)))
        return
    sys.path.insert(0, str(SCRIPTS))
    script = importlib.import_module(sys.argv[2])
    called = watch(package, str(SCRIPTS))
    found = asyncio.run(script.main(package, {"host": "127.0.0.1", "port": int(sys.argv[3])}))
    print(json.dumps({"found": found, "called": sorted(called)}, sort_keys=True))


if __name__ == "__main__":
    main()
