"""Pages over HTTP: what they show, and that they escape everything."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from oxcart import Abilities, Graph, Queue, RunningJob, Target, Worker
from oxcart.http.web.flow import CLIMB
from oxcart.http.web.page import link
from oxcart.http.web.schedules import missed
from oxcart.model.schedule import Schedule, Scheduler
from tests.conftest import MakeQueue
from tests.history.lakes import MIDNIGHT, make_lake
from tests.http.conftest import Serve
from tests.http.web.made_up import make_history
from tests.http.web.reading import EVIL, fail_one, tags
from tests.signals import eventually


async def test_overview_shows_every_queue_with_its_lengths(make_queue: MakeQueue, serve: Serve) -> None:
    emails, video = make_queue("emails"), make_queue("video")
    await emails.add_many([("welcome", {})] * 3)
    await video.pause()
    page = (await (await serve(emails, video)).get("/")).text
    assert re.search(r"href=\"/jobs\?state=ready&amp;queue=emails\">3</a>", page)
    assert page.count("badge warn") == 1
    assert "Failing types" in page


async def test_pages_allow_no_script_but_ours_and_no_frame(queue: Queue, serve: Serve) -> None:
    answer = await (await serve(queue)).get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe-inline" not in policy
    assert "frame-ancestors 'none'" in policy
    for tag, attributes in tags(answer.text):
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (
            tag,
            attributes,
        )
        assert tag != "style"
        if tag == "script":
            assert attributes["src"] == "/static/oxcart.js"


@pytest.mark.parametrize(
    "path", ["/queue?name=none", "/job?queue=q&id=none", "/job", "/jobs?state=none", "/jobs?first=x"]
)
async def test_what_does_not_exist_is_a_page_that_says_so(queue: Queue, serve: Serve, path: str) -> None:
    answer = await (await serve(queue)).get(path)
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"].startswith("text/html")
    assert "Overview" in answer.text


async def test_every_field_of_a_job_is_escaped(make_queue: MakeQueue, serve: Serve) -> None:
    queue = make_queue("q")
    evil = EVIL.replace("\r\n", " ").replace("\u2028", " ").replace("\x1b", "")
    job_id = await fail_one(
        queue,
        name=evil,
        data={EVIL: EVIL},
        reason=EVIL,
        job_id="<b>&'\"id",
        tags={"tag": evil},
        correlation_id="<i>c",
    )
    await queue.jobs.handle(job_id).log(EVIL, "</pre><script>alert(1)</script>")
    await queue.jobs.handle(job_id).update_progress(40, EVIL)
    client = await serve(queue)
    for path in PAGES_OF_A_JOB:
        page = await client.get(path.format(id=httpx.QueryParams({"id": job_id})))
        assert page.status_code == 200, path
        assert "set-cookie" not in page.headers
        names = {tag for tag, _ in tags(page.text)}
        assert not names & {"img", "b", "iframe"}, path
        assert [attributes.get("src") for tag, attributes in tags(page.text) if tag == "script"] == [
            "/static/oxcart.js"
        ]
        for tag, attributes in tags(page.text):
            assert not [name for name in attributes if name.startswith("on")], (path, tag)
        assert "\u202e" not in page.text
        assert "49" not in re.findall(r"\$\{7\*7\}(\d*)", page.text)


async def test_what_results_groups_workers_and_schedules_carry_is_escaped(
    make_queue: MakeQueue, serve: Serve
) -> None:
    queue = make_queue("q")
    evil = EVIL.replace("\r\n", " ").replace("\u2028", " ").replace("\x1b", "")

    plain = evil.replace("\u202e", "")

    @queue.job(name=evil, history=True)
    async def evil_one(job: RunningJob) -> dict[str, Any]:
        await job.step(plain, make_step)
        return {EVIL: EVIL}

    def make_step() -> str:
        return EVIL

    async with Worker(queue, name=plain).running():
        job = await queue.add(evil, {}, limit_key=plain)
        await job.result(30)
        await queue.schedules.upsert("<img src=x>", cron="0 7 * * *", name=evil, data={EVIL: EVIL})
        await queue.limits.set_type_limit(plain, concurrent=2)
        await queue.limits.set_key_limit(concurrent=50)
        client = await serve(queue)
        await queue.pause()
        await queue.add_many([("send", {}, {"group": plain})] * 30)
        await queue.add("render", {}, target=Target(capabilities="gpu"), tags={"<b>": evil})
        for path in (*PAGES_OF_A_JOB, "/schedules", "/limits", "/jobs", "/jobs?state=ready", "/audit"):
            page = await client.get(path.format(id=httpx.QueryParams({"id": job.id})))
            assert page.status_code == 200, path
            names = {tag for tag, _ in tags(page.text)}
            assert not names & {"img", "b", "iframe"}, path
            for tag, attributes in tags(page.text):
                assert not [name for name in attributes if name.startswith("on")], (path, tag)
            assert "\u202e" not in page.text, path
            assert "\x1b" not in page.text, path


#: Pages that show a job; ``{id}`` stands for ``id=…``.
PAGES_OF_A_JOB = [
    "/",
    "/queue?name=q",
    "/jobs?state=failed",
    "/jobs?state=failed&queue=q",
    "/jobs?state=failed&reason=onerror",
    "/job?queue=q&{id}",
    "/flow?queue=q&{id}",
    "/failures",
    "/dead",
    "/workers",
]


async def test_schedules_show_their_next_ten_times_and_run_now(queue: Queue, serve: Serve) -> None:
    await queue.schedules.upsert(
        "digest", cron="0 7 * * *", name="send", data={"to": "all"}, attempts=7, priority=4
    )
    client = await serve(queue)
    page = (await client.get("/schedules")).text
    assert page.count("T07:00:00.000Z") >= 10
    await client.post("/schedules/run?queue=q&schedule=digest", data={"back": "/schedules"})
    (job,) = await queue.jobs.list("prioritized")
    assert (job.name, job.data, job.options.attempts, job.priority) == ("send", {"to": "all"}, 7, 4)
    await client.post("/schedules/pause?queue=q&schedule=digest", data={"back": "/schedules"})
    page = (await client.get("/schedules")).text
    assert '<span class="badge warn">paused</span>' in page
    assert "T07:00:00.000Z" not in page
    assert "missed" not in page
    await client.post("/schedules/resume?queue=q&schedule=digest", data={"back": "/schedules"})
    assert (await client.get("/schedules")).text.count("T07:00:00.000Z") >= 10
    assert (await client.post("/schedules/pause?queue=q&schedule=none")).status_code == 404
    await client.post("/schedules/remove?queue=q&schedule=digest", data={"back": "/schedules"})
    assert await queue.schedules.count() == 0


def test_missed_runs_are_counted() -> None:
    one = Scheduler(id="s", name="s", schedule=Schedule(every=60_000), next_ms=0)
    assert (missed(one, 0), missed(one, 60_000), missed(one, 200_000)) == (0, 1, 3)


async def test_a_partitioned_queue_is_one_with_its_partitions(make_queue: MakeQueue, serve: Serve) -> None:
    events = make_queue("events", partitions=4)

    @events.job
    async def work() -> None:
        pass

    client = await serve(events)
    async with Worker(events).running():
        for job in await events.add_many([("work", None)] * 40):
            await job.result(30)
    await events.pause()
    keyed = await events.add("work", partition_key="tenant-42")
    overview = (await client.get("/")).text
    assert overview.count("data-row") == 1
    assert "4 partitions" in overview
    page = (await client.get("/queue?name=events")).text
    rows = re.findall(r"events#(\d)</th><td[^>]*>(\d+)</td>", page)
    assert sorted(rows) == [(str(n), "1" if n == 0 else "0") for n in range(4)]
    jobs = (await client.get("/jobs?state=ready&queue=events")).text
    assert f"/job?queue=events&amp;id={keyed.id}" in jobs
    assert (await client.get(f"/job?queue=events&id={keyed.id}")).status_code == 200


async def test_schedules_and_limits_of_many_queues_are_found(make_queue: MakeQueue, serve: Serve) -> None:
    queues = [make_queue(f"queue-{number:03}") for number in range(60)]
    await queues[59].schedules.upsert("nightly", every="1h")
    await queues[7].schedules.upsert("hourly", every="1h")
    await queues[58].limits.set_concurrency(3)
    client = await serve(*queues)
    page = (await client.get("/schedules")).text
    assert set(re.findall(r'data-key="([^"]+)"', page)) == {"queue-007/hourly", "queue-059/nightly"}
    page = (await client.get("/schedules?queue=queue-007")).text
    assert re.findall(r'data-key="([^"]+)"', page) == ["queue-007/hourly"]
    page = (await client.get("/limits")).text
    assert re.findall(r'data-key="([^"]+)"', page) == ["queue-058"]
    page = (await client.get("/limits?queue=queue-002")).text
    assert re.findall(r'data-key="([^"]+)"', page) == ["queue-002"]
    for path in ("/schedules", "/limits"):
        assert (await client.get(f"{path}?queue=other")).status_code == 404


async def test_workers_show_abilities_and_jobs_that_nobody_can_do(
    make_queue: MakeQueue, serve: Serve
) -> None:
    queue = make_queue("video")
    await queue.add("render", {}, target=Target(capabilities="gpu"))
    async with Worker(queue, name="painter", abilities=Abilities(capabilities=["cpu"])).running():
        page = (await (await serve(queue)).get("/workers")).text
    assert "painter" in page
    assert '<span class="tag ability">cpu</span>' in page
    assert "all;c=gpu" in page


async def test_history_needs_a_lake(queue: Queue, serve: Serve) -> None:
    assert (await (await serve(queue)).get("/history")).status_code == 404


async def test_history_draws_the_figures_of_the_lake(queue: Queue, serve: Serve, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    hours = [now - now % 3_600_000 - back * 3_600_000 for back in range(5)]
    day = datetime.fromtimestamp(now / 1000, UTC).date()
    rows = [
        {
            "day": day,
            "queue": "q",
            "window": "hour",
            "name": "*",
            "start_ms": at,
            "arrivals": 40,
            "completed": 38,
            "failed": 2,
        }
        for at in hours
    ]
    make_lake(tmp_path, queue_metrics=rows)
    answer = await (await serve(queue, lake=tmp_path)).get("/history?since=24h")
    assert answer.status_code == 200
    page = answer.text
    assert page.count("class='chart'") >= 1
    assert "data-v='40,38,2'" in page


async def test_history_shows_how_the_service_stands(
    make_queue: MakeQueue, serve: Serve, tmp_path: Path
) -> None:
    lake = make_history(tmp_path)
    queues = [make_queue(name) for name in ("emails", "payments", "search-index")]
    tokens = {"the-key-of-everybody": "observer", "the-key-of-the-mail": "observer@emails"}
    client = await serve(*queues, lake=lake, tokens=tokens)
    path = "/history?view=service&since=7d"
    whole = (await client.get(path, headers={"X-API-Key": "the-key-of-everybody"})).text
    assert re.findall(r"<h3>([\w-]+)", whole) == ["payments-done", "index-fresh", "mail-sent"]
    assert whole.count("budget spent") == 1
    for words in ("Anomalies", "rate", "Slots needed", "acme", "9c41", "slower"):
        assert words in whole, words
    # Of other queues a caller sees nothing.
    mail = (await client.get(path, headers={"X-API-Key": "the-key-of-the-mail"})).text
    assert re.findall(r"<h3>([\w-]+)", mail) == ["mail-sent"]
    assert "payments" not in mail
    one = (await client.get(f"{path}&queue=payments", headers={"X-API-Key": "the-key-of-everybody"})).text
    assert re.findall(r"<h3>([\w-]+)", one) == ["payments-done"]


async def test_a_lake_without_objectives_says_so(queue: Queue, serve: Serve, tmp_path: Path) -> None:
    make_lake(tmp_path, queue_metrics=[{"window": "hour", "name": "*", "start_ms": MIDNIGHT, "arrivals": 1}])
    answer = await (await serve(queue, lake=tmp_path)).get("/history?view=service")
    assert answer.status_code == 200
    assert "No objective is declared" in answer.text


async def test_what_a_search_looks_for_is_escaped(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    page = await client.get(link("/jobs", state="failed", type='"><img src=x>', q='"><img src=x>'))
    assert "img" not in {tag for tag, _ in tags(page.text)}
    answer = await client.get(link("/search", q="a\r\nSet-Cookie: x=y"))
    assert answer.status_code == 303
    assert "set-cookie" not in answer.headers


async def test_search_leads_to_a_job_by_its_id(queue: Queue, serve: Serve) -> None:
    job = await queue.add("welcome")
    client = await serve(queue)
    answer = await client.get(link("/search", q=job.id))
    assert answer.headers["location"] == f"/job?queue=q&id={job.id}"
    assert (
        (await client.get(link("/search", q="tag:tenant=acme")))
        .headers["location"]
        .endswith("tag=tenant%3Dacme")
    )
    assert (await client.get(link("/search", q="type:welcome"))).headers["location"] == "/jobs?type=welcome"
    assert (await client.get(link("/search", q="q"))).headers["location"] == "/queue?name=q"


async def test_the_page_of_jobs_opens_on_the_latest_of_all_states(
    make_queue: MakeQueue, serve: Serve
) -> None:
    emails, video = make_queue("emails"), make_queue("video")
    failed = await fail_one(video, reason="no such picture")
    await emails.add_many([("welcome", {"number": number}) for number in range(60)])
    seen = time.monotonic()
    await eventually(lambda: time.monotonic() > seen + 0.05, "the next job is later by the server's clock")
    later = await emails.add("digest", {}, delay="1h")
    client = await serve(emails, video)
    page = (await client.get("/jobs")).text
    assert re.search(r'aria-current="page">All<strong>62</strong>', page)
    assert page.count("data-row") == 50
    assert "62 jobs; the latest 50 are shown: choose a state for more" in page
    assert f"id={later.id}" in page
    one = (await client.get("/jobs?queue=video")).text
    assert re.search(r'aria-current="page">All<strong>1</strong>', one)
    assert f"id={failed}" in one
    # Filters apply to every state.
    found = (await client.get("/jobs?type=send")).text
    assert found.count("data-row") == 1
    assert f"id={failed}" in found
    assert "No jobs match" in (await client.get("/jobs?type=none")).text
    # Many of them are changed together, whatever their states are.
    form = {"verb": "cancel", "every": "yes", "state": "all", "queue": "emails", "back": "/jobs"}
    assert "Cancel 61 jobs?" in (await client.post("/jobs/bulk", data=form)).text


async def test_a_page_of_jobs_goes_on_after_fifty(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("welcome", {"number": number}) for number in range(120)])
    client = await serve(queue)
    seen: list[str] = []
    path = "/jobs?state=ready&queue=q"
    while path:
        page = (await client.get(path)).text
        seen += re.findall(r'data-key="q/([^"]+)"', page)
        after = re.search(r'rel="next" href="([^"]+)"', page)
        path = after[1].replace("&amp;", "&") if after else ""
    assert len(seen) == len(set(seen)) == 120


async def test_pages_of_jobs_that_failed_before_show_each_once(
    queue: Queue, serve: Serve, store: redis.Redis
) -> None:
    jobs = await queue.add_many([("t", None, {"delay": f"{n + 1}m", "job_id": f"j{n}"}) for n in range(300)])
    for job in jobs[::2]:
        store.hset(f"bull:q:{job.id}", "atm", 1)
    client = await serve(queue)
    seen: list[str] = []
    path = "/jobs?state=retrying&queue=q"
    while path:
        page = (await client.get(path)).text
        seen += re.findall(r'data-key="q/([^"]+)"', page)
        after = re.search(r'rel="next" href="([^"]+)"', page)
        path = after[1].replace("&amp;", "&") if after else ""
    assert len(seen) == len(set(seen)) == 150
    assert set(seen) == {job.id for job in jobs[::2]}


TOKENS = {
    "the-key-of-an-observer": "observer",
    "the-key-of-an-operator": "operator",
    "the-key-for-emails-only": "operator@emails",
}


@pytest.mark.parametrize("partitions", [None, 2])
async def test_a_graph_is_whole_from_each_of_its_jobs_also_once_it_has_ended(
    make_queue: MakeQueue, serve: Serve, partitions: int | None
) -> None:
    queue = make_queue("q", partitions=partitions)
    names = {
        "fetch": (),
        "left": ("fetch",),
        "right": ("fetch",),
        "merge": ("left", "right"),
        "tell": ("fetch",),
    }

    async def run(job: RunningJob) -> None:
        pass

    queue.fallback(run)
    graph, made = Graph(queue), dict[str, Any]()
    for name, after in names.items():
        made[name] = graph.job(name, after=[made[one] for one in after])
    handles = dict(zip(names, await graph.add(), strict=True))
    edges = {(one, name) for name, after in names.items() for one in after}
    client = await serve(queue)

    async def check() -> None:
        for name, handle in handles.items():
            page = (await client.get(f"/flow?queue=q&id={handle.id}")).text
            assert len(re.findall("<text class='title'", page)) == len(names), name
            assert len(
                re.findall("<path class='", page.partition("<svg class='graph'")[2].partition("</svg>")[0])
            ) == len(edges), name

    await check()
    async with Worker(queue).running():
        for name in ("merge", "tell"):
            await handles[name].result(30)
    await check()


async def test_pages_below_a_mount_link_below_it(queue: Queue) -> None:
    from oxcart.http.application import app

    transport = httpx.ASGITransport(app([queue], trusted=True), root_path="/jobs")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = (await client.get("/jobs/")).text
        for tag, attributes in tags(page):
            for name in ("href", "src", "action", "formaction"):
                place = attributes.get(name)
                assert place is None or place.startswith(("/jobs/", "#")), (tag, place)
        answer = await client.post("/jobs/queue/pause?name=q", data={"back": "/queue?name=q"})
        assert answer.headers["location"] == "/jobs/queue?name=q&did=paused&n=1"


async def test_a_file_is_sent_once(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    first = await client.get("/static/oxcart.css")
    again = await client.get("/static/oxcart.css", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert (await client.get("/static/..%2Fpage.py")).status_code == 404


async def test_a_flow_is_shown_from_a_job_with_more_generations_above_than_are_read(
    queue: Queue, serve: Serve
) -> None:
    graph, above = Graph(queue), list[Any]()
    for number in range(CLIMB + 2):
        above = [graph.job(f"generation-{number}", after=above)]
    handles = await graph.add()
    answer = await (await serve(queue)).get(f"/flow?queue=q&id={handles[0].id}")
    assert answer.status_code == 200
    assert "generation-0" in answer.text
    assert f"generation-{CLIMB}" in answer.text
