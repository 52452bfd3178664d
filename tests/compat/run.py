"""Runs a script on a package and prints its findings: the same file on PyPI's bullmq and on ours.

python run.py <package> <script> <port>
python run.py <package> public
python run.py <package> parameters
python run.py <package> surface <port>
python run.py <package> missing <port> < names.json

It runs in the environment of either package, so it uses only the standard library. It records every public
method that the script itself calls, by the name of its class, but no calls between methods.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import pkgutil
import sys
from enum import Enum
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


def parameters(package: ModuleType) -> dict[str, list[str]]:
    """The names of the parameters of every public class and method."""
    found = {}
    for kind, attributes in public(package).items():
        owner = getattr(package, kind)
        for attribute in ("__init__", *attributes):
            value = getattr(owner, attribute, None)
            if inspect.isfunction(value):
                found[f"{kind}.{attribute}"] = [*inspect.signature(value).parameters]
    return found


def surface(package: ModuleType, connection: Any) -> list[str]:
    """Every public name that can be imported from the package or read off an object of it.

    As paths below the package: ``types.job_options``, ``types.job_options.JobOptions``, ``job.Job.log``.
    A name that a module only imports does not count, unless the module is a package.
    """
    names: set[str] = set()
    for module in _modules(package):
        path = module.__name__.removeprefix(package.__name__).removeprefix(".")
        names |= {path} - {""}
        for name, value in vars(module).items():
            if not name.startswith("_") and _is_own(name, value, module, package):
                own = f"{path}.{name}".removeprefix(".")
                names.add(own)
                if inspect.isclass(value) and not issubclass(value, BaseException | dict | Enum):
                    names |= {f"{own}.{attribute}" for attribute in dir(value) if attribute[0] != "_"}
    for path, one in asyncio.run(_objects(package, connection)).items():
        names |= {f"{path}.{attribute}" for attribute in vars(one) if attribute[0] != "_"}
    return sorted(names)


def _modules(package: ModuleType) -> list[ModuleType]:
    modules = [package]
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            modules.append(importlib.import_module(found.name))
        except ImportError:  # for PostgreSQL, which is not installed
            modules.append(ModuleType(found.name))
    return modules


def _is_own(name: str, value: Any, module: ModuleType, package: ModuleType) -> bool:
    if isinstance(value, ModuleType) or name == "TYPE_CHECKING":
        return False
    home = getattr(value, "__module__", None)
    if isinstance(home, str) and (inspect.isclass(value) or callable(value)):
        return home.startswith(package.__name__) if hasattr(module, "__path__") else home == module.__name__
    return type(value).__module__ not in ("typing", "__future__", "types")


async def _objects(package: Any, connection: Any) -> dict[str, Any]:
    """An object of every class that users hold."""
    opts = {"connection": connection}
    queue = package.Queue("surface", opts)
    worker = package.Worker("surface", None, opts)
    events = package.QueueEvents("surface", {**opts, "autorun": False})
    producer = package.QueueEventsProducer("surface", opts)
    flows = package.FlowProducer(connection)
    controller = package.AbortController()
    found = {
        "queue.Queue": queue,
        "worker.Worker": worker,
        "queue_events.QueueEvents": events,
        "queue_events_producer.QueueEventsProducer": producer,
        "flow_producer.FlowProducer": flows,
        "job.Job": await queue.add("n", {}),
        "job_scheduler.JobScheduler": queue.jobScheduler,
        "lock_manager.LockManager": worker.lockManager,
        "abort_controller.AbortController": controller,
        "abort_controller.AbortSignal": controller.signal,
    }
    for one in (worker, events, producer, flows, queue):
        await one.close()
    return found


def missing(package: ModuleType, names: list[str], connection: Any) -> list[str]:
    """Returns the paths that lead to nothing, neither by import nor on an object."""
    objects = asyncio.run(_objects(package, connection))
    for module in _modules(package):
        objects[module.__name__.removeprefix(package.__name__).removeprefix(".")] = module

    def is_there(path: str) -> bool:
        if path in objects:
            return True
        of, _, last = path.rpartition(".")
        if of in objects:
            return hasattr(objects[of], last)
        module, _, kind = of.rpartition(".")
        return hasattr(getattr(objects.get(module), kind, None), last)

    return [name for name in names if not is_there(name)]


def static(kind: type, attribute: str) -> Any:
    return inspect.getattr_static(kind, attribute)


def watch(package: ModuleType, script: str) -> set[str]:
    """Makes every public method record its calls from the script. Returns the record."""
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
    if sys.argv[2] == "parameters":
        print(json.dumps(parameters(package)))
        return
    if sys.argv[2] in ("surface", "missing"):
        connection = {"host": "127.0.0.1", "port": int(sys.argv[3])}
        if sys.argv[2] == "surface":
            print(json.dumps(surface(package, connection)))
        else:
            print(json.dumps(missing(package, json.load(sys.stdin), connection)))
        return
    sys.path.insert(0, str(SCRIPTS))
    script = importlib.import_module(sys.argv[2])
    called = watch(package, str(SCRIPTS))
    found = asyncio.run(script.main(package, {"host": "127.0.0.1", "port": int(sys.argv[3])}))
    print(json.dumps({"found": found, "called": sorted(called)}, sort_keys=True))


if __name__ == "__main__":
    main()
