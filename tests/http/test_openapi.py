"""The OpenAPI document: valid, complete, and true under random requests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from oxcart import Queue
from oxcart.http.application import app
from tests.http.conftest import Serve
from tests.http.test_access import NEEDS

DOCUMENT: dict[str, Any] = app([Queue("q")]).litestar.openapi_schema.to_schema()


def operations() -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    }


async def test_the_document_is_served(queue: Queue, serve: Serve) -> None:
    answer = await (await serve(queue)).get("/api/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json()["openapi"].startswith("3.1")
    assert answer.json()["paths"].keys() == DOCUMENT["paths"].keys()


def test_every_route_is_documented_with_its_answers() -> None:
    undescribed = {"GET /api/v1/openapi.json", "GET /sign-in", "POST /sign-in", "POST /sign-out"}
    assert set(operations()) == NEEDS.keys() - undescribed
    for name, operation in operations().items():
        assert operation["summary"], name
        assert operation["description"], name
        answers = operation["responses"]
        assert any(status.startswith("2") for status in answers), name
        if NEEDS[name] is not None:
            assert {"400", "401", "403", "500", "503"} <= answers.keys(), name
        for status, answer in answers.items():
            assert answer["description"], (name, status)
            if status >= "400" and NEEDS[name] is not None:
                schema = answer["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("ErrorBody"), (name, status)


def test_every_schema_is_valid() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema.get("description") or schema.get("title"), name


def test_the_fields_of_a_job_have_examples() -> None:
    fields = DOCUMENT["components"]["schemas"]["Submit"]["properties"]
    for name in ("type", "payload", "priority", "scheduled_at", "max_attempts", "idempotency_key", "tags"):
        assert "examples" in json.dumps(fields[name]), name


def test_every_body_has_an_example_that_fits_its_schema() -> None:
    for name, operation in operations().items():
        body = operation.get("requestBody")
        if body is None:
            continue
        schema = body["content"]["application/json"]["schema"]
        (example,) = schema["examples"]
        assert len(example) > 0, name
        Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(example)


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        name = part.split('"')[0].removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"], name


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_random_requests_get_documented_answers(queue: Queue, serve: Serve, tmp_path: Path) -> None:
    """Schemathesis sends requests made from the document: no 5xx, no answer that is not documented."""
    client = await serve(queue)
    checks = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{client.base_url}/api/v1/openapi.json",
        "--checks", ",".join((*checks, "response_schema_conformance")),
        "--exclude-path", "/api/v1/events",
        "--exclude-path-regex", "/wait$",
        "--max-examples", "8",
        "--phases", "examples,fuzzing",
        "--seed", "7",
        "--no-color",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[-6000:]
