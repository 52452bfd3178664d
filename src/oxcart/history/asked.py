"""The days that a query asks for: conditions on ``day``, read from DuckDB's own tree of the query.

A table that is computed from trees or schedules costs as much as the days that it reads. A condition that is
not understood limits nothing, so an answer never lacks rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

Node = dict[str, Any]
Days = Callable[[str], bool]

_ORDERS: dict[str, Callable[[str, str], bool]] = {
    "COMPARE_EQUAL": operator.eq,
    "COMPARE_LESSTHAN": operator.lt,
    "COMPARE_LESSTHANOREQUALTO": operator.le,
    "COMPARE_GREATERTHAN": operator.gt,
    "COMPARE_GREATERTHANOREQUALTO": operator.ge,
}
#: Joins whose result a condition on a side limits as it limits that side. ASOF and POSITIONAL are none.
_PLAIN_JOINS = ("REGULAR", "CROSS")


def asked_days(tree: Any, table: str) -> Days | None:
    """Returns which days of a table a parsed query asks for; None for all.

    Args:
        tree: The query, as ``json_serialize_sql`` returns it.
        table: The table; every mention of it in the query counts.
    """
    limits: list[list[Days]] = []
    mentions = 0
    for node in _nodes(tree):
        mentions += _is_table(node, table)
        if node.get("type") != "SELECT_NODE":
            continue
        source = node["from_table"]
        for place in _joined(source):
            if _is_table(place, table):
                if place.get("column_name_alias"):  # its day may have another name, and another column its
                    return None
                names = {(place.get("alias") or place["table_name"]).lower()}
                limits.append(list(_limits(node["where_clause"], names, alone=place is source)))
    # DuckDB has no tree of some statements, such as EXPLAIN: then there is no mention.
    if not limits or mentions != len(limits) or not all(limits):
        return None
    return lambda day: any(all(one(day) for one in each) for each in limits)


def _nodes(tree: Any) -> Iterator[Node]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _is_table(node: Node, table: str) -> bool:
    return node.get("type") == "BASE_TABLE" and str(node.get("table_name", "")).lower() == table


def _joined(source: Node) -> Iterator[Node]:
    """The tables that a FROM clause joins."""
    if source.get("type") == "BASE_TABLE":
        yield source
    elif source.get("type") == "JOIN" and source.get("ref_type") in _PLAIN_JOINS:
        yield from _joined(source["left"])
        yield from _joined(source["right"])


def _limits(where: Node | None, names: Iterable[str], *, alone: bool) -> Iterator[Days]:
    """The conditions on the days of a table, all of which a row fulfils."""
    if where is None:
        return
    kind = where.get("type", "")
    if kind == "CONJUNCTION_AND":
        for child in where["children"]:
            yield from _limits(child, names, alone=alone)
    elif kind == "COMPARE_IN":
        column, *values = where["children"]
        days = [_day(value) for value in values]
        if _is_day(column, names, alone) and None not in days:
            yield lambda day: day in days
    elif kind == "COMPARE_BETWEEN":
        low, high = _day(where["lower"]), _day(where["upper"])
        if _is_day(where["input"], names, alone) and low and high:
            yield lambda day: low <= day <= high
    elif kind in _ORDERS:
        compare = _ORDERS[kind]
        left, right = _day(where["left"]), _day(where["right"])
        if _is_day(where["left"], names, alone) and right:
            yield lambda day: compare(day, right)
        elif _is_day(where["right"], names, alone) and left:
            yield lambda day: compare(left, day)


def _is_day(node: Node, names: Iterable[str], alone: bool) -> bool:
    if node.get("type") != "COLUMN_REF":
        return False
    *table, column = [str(name).lower() for name in node["column_names"]]
    return column == "day" and (alone if not table else len(table) == 1 and table[0] in names)


def _day(node: Node) -> str | None:
    """A constant day; None for anything else."""
    if node.get("type") == "OPERATOR_CAST" and node["type_expr"].get("type_name", "").upper() == "DATE":
        node = node["child"]
    literal = node.get("literal") if node.get("type") == "VALUE_CONSTANT" else None
    if not literal or literal.get("kind") != "STRING":
        return None
    try:
        return date.fromisoformat(literal["text"]).isoformat()
    except ValueError:
        return None
