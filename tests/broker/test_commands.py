"""A command that changes something is sent by ``Caller.write``; ``command`` and ``pipeline`` only read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oxcart.broker

BROKER = Path(oxcart.broker.__path__[0])
#: Every command that a broker may send from Python. Scripts send others.
READS = {
    *("CLIENT", "DBSIZE", "EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN"),
    *("HMGET", "HSCAN", "INFO", "LINDEX", "LLEN", "LPOS", "LRANGE", "MGET", "PTTL", "SCAN"),
    *("SCARD", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SSCAN", "STRLEN", "TIME", "TTL", "TYPE"),
    *("XINFO", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE"),
    *("ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREVRANGE", "ZSCAN", "ZSCORE"),
}
WRITES = {
    *("APPEND", "DEL", "EXPIRE", "GETDEL", "HDEL", "HINCRBY", "HSET", "HSETNX", "INCR", "INCRBY"),
    *("LPOP", "LPUSH", "LREM", "LSET", "LTRIM", "PERSIST", "PEXPIRE", "RENAME", "RPOP"),
    *("RPOPLPUSH", "RPUSH", "SADD", "SET", "SETEX", "SREM", "UNLINK", "XADD", "XDEL", "XTRIM"),
    *("ZADD", "ZINCRBY", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"),
}
#: Files of brokers. The caller itself stands below the difference.
FILES = sorted(path for path in BROKER.rglob("*.py") if path.name != "caller.py")


def misplaced(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each writing command that is sent as a read."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        names = {_name(call) for call in calls}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node) != "write" and node.args:
                command = _constant(node.args[0])
            elif isinstance(node, ast.Tuple) and node.elts and "write_all" not in names:
                command = _constant(node.elts[0])
            else:
                continue
            if command in WRITES:
                yield node.lineno, command


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(BROKER)))
def test_a_read_sends_only_commands_that_read(path: Path) -> None:
    source = path.read_text()
    assert list(misplaced(source)) == []
    sent = {
        _constant(node.args[0])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _name(node) == "command" and node.args
    }
    assert sent - {""} <= READS


def test_a_write_that_is_sent_as_a_read_is_noticed() -> None:
    source = """
async def look(caller, command, key):
    await caller.write("ZADD", key, 0, "")
    await command("HSET", key, "done", 1)
    await caller.pipeline([("GET", key), ("UNLINK", key)])
"""
    assert sorted(misplaced(source)) == [(4, "HSET"), (5, "UNLINK")]
