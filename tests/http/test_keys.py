"""API keys of the store: grants per queue, expiry, revocation, hidden payloads, masks and the audit log."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from oxcart import Flow, Queue, Worker
from oxcart.broker.access import AccessStore, AuditEntry
from oxcart.http import credentials
from oxcart.http.application import app
from oxcart.http.rates import Rates
from oxcart.http.redaction import Masks
from oxcart.http.server import Server
from oxcart.model.access import AccessKey, Grant, id_of_key
from oxcart.model.errors import ValidationError
from tests.conftest import MakeQueue
from tests.http.conftest import MakeKey, Serve


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_the_store_holds_only_hashes(make_key: MakeKey, store: redis.Redis) -> None:
    text = await make_key("observer")
    assert list(store.scan_iter("*")) == ["bull::ox:access"]
    assert text.split("_", 2)[2] not in str(store.hgetall("bull::ox:access"))


async def test_a_grant_reaches_only_its_queues(
    make_queue: MakeQueue, serve: Serve, make_key: MakeKey
) -> None:
    mails, video = make_queue("emails"), make_queue("video")
    key = await make_key("operator@emails*", "observer@video")
    narrow = await make_key("operator@bull:emails")
    client = await serve(mails, video)
    mail = await mails.add("welcome", {"to": "ada"})
    film = await video.add("encode")
    headers = bearer(key)
    for method, path, status in (
        ("POST", "/api/v1/queues/emails/pause", 200),
        ("POST", "/api/v1/queues/video/pause", 403),
        ("GET", "/api/v1/queues/video", 200),
        ("POST", "/api/v1/queues/other/pause", 404),
        ("POST", f"/api/v1/jobs/{film.id}/cancel", 404),
        ("POST", f"/api/v1/jobs/{mail.id}/cancel", 200),
        ("POST", "/api/v1/queues/emails/clear", 403),
    ):
        assert (await client.request(method, path, headers=headers)).status_code == status, path
    headers = bearer(narrow)
    names = (await client.get("/api/v1/queues", headers=headers)).json()["queues"]
    assert [row["name"] for row in names] == ["emails"]
    listed = (await client.get("/api/v1/jobs", headers=headers)).json()["jobs"]
    assert {job["queue"] for job in listed} == {"emails"}
    for path in (f"/api/v1/jobs/{film.id}", "/api/v1/queues/video", f"/api/v1/jobs/{film.id}?queue=video"):
        assert (await client.get(path, headers=headers)).status_code == 404
    metrics = (await client.get("/metrics", headers=headers)).text
    assert 'queue="emails"' in metrics
    assert 'queue="video"' not in metrics
    other = await client.post("/api/v1/jobs", json={"type": "encode", "queue": "video"}, headers=headers)
    assert other.status_code == 400
    assert (await client.post("/api/v1/jobs", json={"type": "video"}, headers=headers)).status_code == 403


async def test_a_tree_shows_no_jobs_of_queues_without_a_grant(
    make_queue: MakeQueue, serve: Serve, make_key: MakeKey
) -> None:
    mails, video = make_queue("emails"), make_queue("video")
    parent = await Flow(mails, "digest", children=[Flow(video, "secret-film"), Flow(mails, "collect")]).add()
    client = await serve(mails, video)
    answer = await client.get(
        f"/api/v1/jobs/{parent.id}/flow", headers=bearer(await make_key("observer@emails"))
    )
    tree = answer.json()
    assert [child["job"]["type"] for child in tree["children"]] == ["collect"]
    assert tree["more"] == 1
    assert "secret-film" not in answer.text


async def test_events_are_those_of_the_callers_queues(
    make_queue: MakeQueue, serve: Serve, make_key: MakeKey
) -> None:
    mails, video = make_queue("emails"), make_queue("video")
    client = await serve(mails, video)
    headers = bearer(await make_key("observer@emails"))
    async with client.stream("GET", "/api/v1/events", headers=headers) as stream:
        lines = stream.aiter_lines()
        assert "video" not in await anext(lines)
        await video.add("encode")
        await mails.add("welcome")
        async for line in lines:
            if line.startswith("data: {") and "connected" not in line:
                assert json.loads(line[6:])["queue"] == "emails"
                return


async def test_expired_and_revoked_keys_are_refused(
    queue: Queue, serve: Serve, make_key: MakeKey, keys: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "FRESH", 0.0)
    client = await serve(queue)
    now = int(time.time() * 1000)
    assert (await client.get("/api/v1/jobs")).status_code == 200  # no key exists yet
    fine = await make_key("observer", expires_ms=now + 600_000)
    over = await make_key("observer", expires_ms=now - 1)
    gone = await make_key("observer", revoked_ms=now - 1)
    wrong = [over, gone, fine + "x", fine[:-1], "-"]
    for text, status in ((fine, 200), *((text, 401) for text in wrong)):
        assert (await client.get("/api/v1/jobs", headers=bearer(text))).status_code == status
    for key in await keys.keys():
        if key.revoked_ms is None:
            await keys.put(
                AccessKey(
                    id=key.id, name=key.name, hash=key.hash, grants=key.grants, created_ms=1, revoked_ms=now
                )
            )
    for headers in (bearer(fine), {}):  # revoked keys still mean that a key is needed
        assert (await client.get("/api/v1/jobs", headers=headers)).status_code == 401


async def test_payloads_and_results_are_hidden_by_role(queue: Queue, serve: Serve, make_key: MakeKey) -> None:
    @queue.job
    async def pay(card: dict[str, str]) -> dict[str, str]:
        return {"receipt": "r-1", "card_number": card["number"]}

    job = await queue.add("pay", {"card": {"number": "4111", "owner": "ada"}})
    async with Worker(queue).running():
        await job.result(30)
    client = await serve(queue, mask=["*number*"])
    shown: dict[str, tuple[Any, Any]] = {}
    for name, grant, more in (
        ("observer", "observer", {}),
        ("submitter", "submitter", {}),
        ("operator", "operator", {}),
        ("reader", "observer", {"payloads": True}),
    ):
        headers = bearer(await make_key(grant, **more))
        body = (await client.get(f"/api/v1/jobs/{job.id}?payload=true", headers=headers)).json()
        result = (await client.get(f"/api/v1/jobs/{job.id}/result", headers=headers)).json()
        waited = (await client.get(f"/api/v1/jobs/{job.id}/wait", headers=headers)).json()
        assert waited["result"]["output"] == result["output"]
        output = result["output"]
        assert result["output_hidden"] == (output is None)
        assert body.get("payload_hidden", False) == ("payload" not in body)
        shown[name] = body.get("payload"), None if output is None else json.loads(base64.b64decode(output))
    masked = {"card": {"number": "[masked]", "owner": "ada"}}
    result = {"receipt": "r-1", "card_number": "[masked]"}
    assert shown == {
        "observer": (None, None),
        "submitter": (None, result),
        "operator": (masked, result),
        "reader": (masked, result),
    }


async def test_payloads_of_schedules_are_hidden_by_role(
    queue: Queue, serve: Serve, make_key: MakeKey
) -> None:
    await queue.schedules.upsert("nightly", every="1h", data={"password": "x", "to": "ada"})
    client = await serve(queue, mask=["password"])
    for role, payload in (("observer", None), ("operator", {"password": "[masked]", "to": "ada"})):
        answer = await client.get("/api/v1/queues/q/schedules/nightly", headers=bearer(await make_key(role)))
        assert (answer.json()["payload"], answer.json()["payload_hidden"]) == (payload, payload is None)


async def test_the_audit_log_names_who_did_what(
    make_queue: MakeQueue, serve: Serve, make_key: MakeKey
) -> None:
    mails, video = make_queue("emails"), make_queue("video")
    client = await serve(mails, video)
    operator, local = await make_key("operator", name="Ada\x1b[2J"), await make_key("admin@emails")
    admin = await make_key("admin")
    secret = "a-secret-of-the-payload"
    await client.post(
        "/api/v1/queues/emails/pause", headers={**bearer(operator), "X-Request-ID": "request-1"}
    )
    await client.post("/api/v1/queues/video/clear", headers=bearer(operator))
    job = (
        await client.post(
            "/api/v1/jobs", json={"type": "emails", "payload": secret}, headers=bearer(operator)
        )
    ).json()
    await client.post(f"/api/v1/jobs/{job['id']}/cancel", json={"reason": secret}, headers=bearer(operator))
    await client.post("/sign-in", data={"key": admin})
    answer = await client.get("/api/v1/audit", headers=bearer(admin))
    rows = answer.json()["entries"]
    assert [(row["action"], row["queue"], row["status"], row["job_id"]) for row in rows] == [
        ("POST /sign-in", "", 303, ""),
        ("POST /api/v1/jobs/{job_id}/cancel", "", 200, job["id"]),
        ("POST /api/v1/queues/{name}/clear", "video", 403, ""),
        ("POST /api/v1/queues/{name}/pause", "emails", 200, ""),
    ]
    assert (rows[3]["caller"], rows[3]["kind"], rows[3]["address"], rows[3]["request_id"]) == (
        id_of_key(operator), "key", "127.0.0.1", "request-1",
    )  # fmt: skip
    assert secret not in answer.text
    assert operator not in answer.text
    for query, count in (("queue=emails", 1), ("action=CLEAR", 1), (f"caller={id_of_key(admin)}", 1)):
        found = await client.get(f"/api/v1/audit?{query}", headers=bearer(admin))
        assert len(found.json()["entries"]) == count, query
    page = (await client.get("/api/v1/audit?limit=3", headers=bearer(admin))).json()
    rest = await client.get("/api/v1/audit", params={"before": page["next_before"]}, headers=bearer(admin))
    assert [*page["entries"], *rest.json()["entries"]] == rows
    assert (await client.get("/api/v1/audit?before=x", headers=bearer(admin))).status_code == 400
    partial = (await client.get("/api/v1/audit", headers=bearer(local))).json()["entries"]
    assert {row["queue"] for row in partial} == {"emails"}


async def test_each_key_has_its_own_rate(queue: Queue, serve: Serve, make_key: MakeKey) -> None:
    client = await serve(queue, rate=0.001)
    first, second = await make_key("observer"), await make_key("observer")
    answers = [await client.get("/api/v1", headers=bearer(first)) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["code"] == "quota_exceeded"
    assert 900 <= int(answers[1].headers["retry-after"]) <= 1000
    assert (await client.get("/api/v1", headers=bearer(second))).status_code == 200
    assert (await client.get("/health", headers=bearer(first))).status_code == 200


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    rates = Rates(2.0, 3.0, lambda: now[0])
    for _ in range(3):
        rates.take("a")
    with pytest.raises(Exception, match="too many requests"):
        rates.take("a")
    rates.take("b")
    now[0] = 0.5
    rates.take("a")
    with pytest.raises(ValidationError):
        Rates(-1, 1)


async def test_every_answer_has_the_security_headers(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    for path in ("/health", "/api/v1/jobs", "/none", "/sign-in", "/api/v1/openapi.json"):
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "strict-transport-security" not in headers


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of localhost."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, private = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert, private


async def test_it_serves_https_with_a_certificate(queue: Queue, tmp_path: Path) -> None:
    import ssl

    cert, key = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(cert))
    async with (
        Server(app([queue]), tls_cert=cert, tls_key=key) as server,
        httpx.AsyncClient(base_url=server.url, verify=trust) as client,
    ):
        assert server.url.startswith("https://")
        answer = await client.get("/health")
        assert answer.status_code == 200
        assert "strict-transport-security" in answer.headers


def test_wrong_tls_files_are_refused(queue: Queue, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    wrongs: list[dict[str, Any]] = [{"tls_cert": wrong}, {"tls_cert": tmp_path / "none"}, {"tls_key": wrong}]
    for files in wrongs:
        with pytest.raises(ValidationError, match="tls_"):
            Server(app([queue]), **files)


@pytest.mark.parametrize("text", ["chief", "operator@", "@emails", ""])
def test_a_wrong_grant_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Grant.parse(text)


def test_masks_reach_every_depth_and_leave_the_value_alone() -> None:
    value = {"a": [{"Password": 1}], "passwords": 2, "b": ("x", {"password": {"deep": 3}})}
    masked = Masks(["password"]).apply(value)
    assert masked == {"a": [{"Password": "[masked]"}], "passwords": 2, "b": ["x", {"password": "[masked]"}]}
    assert value["a"] == [{"Password": 1}]
    with pytest.raises(ValidationError):
        Masks([" "])


async def test_a_queue_that_is_added_is_seen_by_those_with_a_grant(
    make_queue: MakeQueue, make_key: MakeKey, queue: Queue
) -> None:
    server = Server(app([queue]), grace=1)
    key, other = await make_key("observer@emails*"), await make_key("observer@q")
    async with server, httpx.AsyncClient(base_url=server.url) as client:

        async def names(text: str) -> list[str]:
            rows = (await client.get("/api/v1/queues", headers=bearer(text))).json()["queues"]
            return [row["name"] for row in rows]

        assert (await names(key), await names(other)) == ([], ["q"])
        async with client.stream("GET", "/api/v1/events", headers=bearer(other)) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("id: ")
            await server.api.service.add_queue(make_queue("emails"))
            assert [line async for line in lines]  # the stream ends
        assert (await names(key), await names(other)) == (["emails"], ["q"])
        with pytest.raises(ValidationError):
            await server.api.service.add_queue(make_queue("emails"))


async def test_failed_sign_ins_are_in_the_audit_log(queue: Queue, serve: Serve, make_key: MakeKey) -> None:
    client, admin = await serve(queue), await make_key("admin")
    wrong = "ox_the-wrong-key-of-nobody"
    for _ in range(30):
        await client.post("/sign-in", data={"key": wrong})
    answer = await client.get("/api/v1/audit", headers=bearer(admin))
    rows = answer.json()["entries"]
    assert {(row["caller"], row["action"], row["status"]) for row in rows} == {
        ("unknown", "POST /sign-in", 401)
    }
    assert 20 <= len(rows) < 30
    assert rows[0]["address"] == "127.0.0.1"
    assert wrong not in answer.text


async def test_empty_keys_at_the_sign_in_are_limited_too(
    queue: Queue, serve: Serve, make_key: MakeKey
) -> None:
    client, admin = await serve(queue), await make_key("admin")
    seen = [(await client.post("/sign-in", data={"key": ""})).status_code for _ in range(30)]
    assert seen[:20] == [401] * 20
    assert 429 in seen
    entries = (await client.get("/api/v1/audit", headers=bearer(admin))).json()["entries"]
    assert len(entries) == seen.count(401)
    # A page without a session asks for its routes again and again: these are no attempts.
    assert {(await client.get("/api/v1/jobs")).status_code for _ in range(30)} == {401}


async def test_failed_sign_ins_push_no_entry_of_a_known_caller_out(
    keys: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxcart.broker.access.AUDIT_ENTRIES", 1)
    monkeypatch.setattr("oxcart.broker.access.FAILED_ENTRIES", 1, raising=False)
    await keys.record(AuditEntry(caller="ada", kind="session", action="POST /sign-out"))
    for _ in range(300):
        await keys.record(AuditEntry(caller="unknown", kind="key", action="POST /sign-in", status=401))
    await keys.record(AuditEntry(caller="bob", kind="session", action="POST /sign-out"))
    found = [entry async for entry in keys.audit()]
    assert (found[-1].caller, {entry.caller for entry in found}) == ("ada", {"ada", "bob", "unknown"})
    assert len(found) < 250
    times = [entry.at_ms for entry in found]
    assert times == sorted(times, reverse=True)
    rest = [entry.id async for entry in keys.audit(found[1].id)]
    assert rest == [entry.id for entry in found[2:] if entry.id != found[1].id]
