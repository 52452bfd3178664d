"""Runs the examples of PyPI bullmq's README on a package; only the import line differs.

python readme.py <package> <port> < README.md

Prints what each example leaves in the queue. The examples name no server, so PyPI's package connects to port
6379, which leads to the server of the test here.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

from seen import seen


def turn_to(port: int) -> None:
    """Makes the default address lead to the server of the test."""
    os.environ["OXCART_URL"] = f"redis://127.0.0.1:{port}/0"
    import redis.asyncio

    made = redis.asyncio.Redis.__init__

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "port": port})

    redis.asyncio.Redis.__init__ = make  # type: ignore[method-assign]


async def run(package: str, example: str) -> Any:
    """Runs an example and returns its output and the content of the queue."""
    changed = example.replace("from bullmq import", f"from {package} import")
    assert changed.count("import") == example.count("import") == 1, example
    names: dict[str, Any] = {}
    code = compile(changed, "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    doing = eval(code, names)
    if inspect.isawaitable(doing):
        await doing
    queue = names["queue"]
    held = await queue.getJobs(["waiting", "prioritized", "delayed"])
    found = {
        "job": seen(names.get("job")),
        "counts": await queue.getJobCounts(),
        "held": sorted((seen(job) for job in held), key=lambda job: int(job["id"])),
        "next": [job.id for job in await queue.getPrioritized()],
    }
    await queue.close()
    return found


async def main() -> None:
    package, port = sys.argv[1], int(sys.argv[2])
    importlib.import_module(package)
    turn_to(port)
    examples = re.findall(r"```python\n(.*?)```", sys.stdin.read(), re.DOTALL)
    print(json.dumps([await run(package, example) for example in examples]))


if __name__ == "__main__":
    asyncio.run(main())
