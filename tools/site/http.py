"""The reference of the HTTP API, generated from its OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")


def document() -> dict[str, Any]:
    """Returns the OpenAPI document of the API."""
    from oxcart import Queue
    from oxcart.http import app

    return app([Queue("emails")]).litestar.openapi_schema.to_schema()


def page(schema: dict[str, Any]) -> str:
    """Returns the page of all routes and of the values that they take and return.

    Args:
        schema: The OpenAPI document.
    """
    parts = [
        "# HTTP API",
        (
            f"Generated from the OpenAPI {schema['openapi']} document, which a server has at "
            "`/api/v1/openapi.json` and this site [as a file](openapi.json). Roles, errors and limits are in "
            "[the guide](../http.md)."
        ),
    ]
    operations = [
        (method.upper(), path, operations[method])
        for path, operations in schema["paths"].items()
        for method in _METHODS
        if method in operations
    ]
    for group in dict.fromkeys(_group(path) for _, path, _ in operations):
        parts.append(f"## {group}")
        for method, path, one in operations:
            if _group(path) == group:
                parts += _operation(method, path, one)
    parts.append("## Values")
    for name, value in sorted(schema.get("components", {}).get("schemas", {}).items()):
        parts += _value(name, value)
    return "\n\n".join(part for part in parts if part) + "\n"


def _group(path: str) -> str:
    """The heading of a route: the noun behind the version, or "The whole"."""
    noun = path.removeprefix("/api/v1").strip("/").split("/")[0]
    return noun.capitalize() if noun in ("jobs", "queues") else "The whole"


def _operation(method: str, path: str, one: dict[str, Any]) -> list[str]:
    parts = [f"### {method} {path}", _text(one.get("description") or one.get("summary") or "")]
    if one.get("parameters"):
        rows = [
            f"| `{given['name']}` | {given['in']} | {_type(given.get('schema', {}))} "
            f"| {_cell(given.get('description') or given.get('schema', {}).get('description') or '')} |"
            for given in one["parameters"]
        ]
        parts.append("\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows]))
    if "requestBody" in one:
        parts.append("Body: " + ", ".join(_bodies(one["requestBody"])))
    answers = [
        f"| {status} | {', '.join(_bodies(answer)) or 'none'} | {_cell(answer.get('description', ''))} |"
        for status, answer in sorted(one.get("responses", {}).items())
    ]
    parts.append("\n".join(["| status | body | meaning |", "|---|---|---|", *answers]))
    return parts


def _bodies(answer: dict[str, Any]) -> list[str]:
    return [
        f"{_type(content.get('schema', {}))}" if kind == "application/json" else f"`{kind}`"
        for kind, content in (answer.get("content") or {}).items()
    ]


def _value(name: str, value: dict[str, Any]) -> list[str]:
    parts = [f"### {name}", _text(value.get("description", ""))]
    if "enum" in value:
        parts.append("One of " + ", ".join(f"`{one}`" for one in value["enum"]) + ".")
    required = set(value.get("required", ()))
    rows = [
        f"| `{field}` | {_type(kind)} | {'yes' if field in required else ''} "
        f"| {_cell(kind.get('description', ''))} |"
        for field, kind in value.get("properties", {}).items()
    ]
    if rows:
        parts.append("\n".join(["| field | type | required | meaning |", "|---|---|---|---|", *rows]))
    return parts


def _type(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for word in ("oneOf", "anyOf"):
        if word in kind:
            return " or ".join(dict.fromkeys(_type(one) for one in kind[word]))
    if "enum" in kind:
        return ", ".join(f"`{one}`" for one in kind["enum"])
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    found = kind.get("type", "any")
    return " or ".join(found) if isinstance(found, list) else str(found)


def _text(text: str) -> str:
    return text.strip().replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|")
