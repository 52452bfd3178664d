"""Flows: trees over queues, children's values, failures, waiting in a processor."""

from __future__ import annotations

from typing import Any

from seen import Ends, error, ids, seen, until


def tree(node: Any) -> Any:
    shown = {"job": blank(seen(node["job"]))}
    if "children" in node:
        shown["children"] = [tree(child) for child in node["children"]]
    return shown


def blank(job: Any) -> Any:
    """Replaces generated ids, which are not compared."""
    for name in ("id", "parent"):
        if job[name] and "own" not in str(job[name]):
            job[name] = "made up" if name == "id" else job[name][1] and sorted(job[name][1])
    parent = job["opts"].pop("parent", None)
    if parent:
        job["opts"]["parent"] = parent["queue"]
    return job


async def waits(queue: Any, job_id: str) -> bool:
    return bool(await queue.getJobState(job_id) == "waiting-children")


async def main(bullmq: Any, connection: Any) -> Any:
    found: dict[str, Any] = {}
    producer = bullmq.FlowProducer(connection)
    parents = bullmq.Queue("parents", {"connection": connection})
    children = bullmq.Queue("children", {"connection": connection})
    flow = {
        "name": "top",
        "queueName": "parents",
        "data": {"t": 1},
        "opts": {"jobId": "own-top", "attempts": 2},
        "children": [
            {"name": "a", "queueName": "children", "data": {"n": 1}, "opts": {"jobId": "own-a"}},
            {"name": "b", "queueName": "children", "opts": {"failParentOnFailure": True, "priority": 2}},
            {
                "name": "c",
                "queueName": "parents",
                "children": [{"name": "d", "queueName": "children", "data": 4, "opts": {"delay": 5}}],
            },
        ],
    }
    added = await producer.add(flow, {"queuesOptions": {"children": {"defaultJobOptions": {"attempts": 4}}}})
    found["added"] = tree(added)
    found["counts"] = [await parents.getJobCounts(), await children.getJobCounts()]
    found["waiting"] = sorted(blank(seen(job))["name"] for job in await parents.getWaitingChildren())
    top = await parents.getJob("own-top")
    found["top waits"] = [await top.isWaitingChildren(), await top.getState()]
    child = {
        "name": "late",
        "queueName": "children",
        "opts": {"parent": {"id": "own-top", "queue": "bull:parents"}},
    }
    found["below it"] = tree(await producer.add(child))
    below = await children.add(
        "also late", {}, {"parent": {"id": "own-top", "queue": "bull:parents"}, "jobId": "own-l"}
    )
    found["also below it"] = [seen(below)["parent"], seen(await children.getJob("own-l"))["parent"]]
    nowhere = {
        "name": "x",
        "queueName": "children",
        "opts": {"parent": {"id": "none", "queue": "bull:parents"}},
    }
    found["below nothing"] = await error(producer.add(nowhere))

    values: list[Any] = []

    async def child_process(job: Any, token: str) -> Any:
        if job.name == "fails":
            raise ValueError("no luck")
        return {"of": job.name}

    async def parent_process(job: Any, token: str) -> Any:
        if job.name == "steps" and job.data["step"] == 1:
            await child_worker.pause()
            await producer.add(
                {
                    "name": "s",
                    "queueName": "children",
                    "opts": {"parent": {"id": job.id, "queue": job.queueQualifiedName}},
                }
            )
            await job.updateData({"step": 2})
            if await job.moveToWaitingChildren(token, {}):
                raise bullmq.WaitingChildrenError
        if job.name == "steps":
            values.append(["waits again", await job.moveToWaitingChildren(token, {})])
        got = await job.getChildrenValues()
        values.append([job.name, sorted(value["of"] for value in got.values())])
        return {"of": job.name}

    child_worker = bullmq.Worker("children", child_process, {"connection": connection, "concurrency": 4})
    parent_worker = bullmq.Worker("parents", parent_process, {"connection": connection, "concurrency": 4})
    ends, child_ends = Ends(parent_worker), Ends(child_worker)
    await ends.wait(2)
    found["values"] = sorted(values, key=str)
    found["top"] = seen(await parents.getJob("own-top"))
    found["keys"] = sorted(key for key in await top.getChildrenValues() if "own" in key)

    bulk = await producer.addBulk(
        [
            {
                "name": f"bulk-{i}",
                "queueName": "parents",
                "children": [{"name": "kid", "queueName": "children"}],
            }
            for i in range(2)
        ]
    )
    found["bulk"] = [tree(one) for one in bulk]
    await ends.wait(4)

    def failing(name: str, **opts: Any) -> dict[str, Any]:
        kids = [{"name": "fails", "queueName": "children", "opts": {"jobId": f"own-{name}-kid", **opts}}]
        return {"name": name, "queueName": "parents", "opts": {"jobId": f"own-{name}"}, "children": kids}

    await producer.add(failing("fail", failParentOnFailure=True))
    await producer.add(failing("ignore", ignoreDependencyOnFailure=True))
    await producer.add(failing("remove", removeDependencyOnFailure=True))
    await producer.add(failing("continue", continueParentOnFailure=True))
    await producer.add(failing("waits"))
    await ends.wait(8)
    await until(lambda: len([one for one in child_ends.events if one[0] == "failed"]) >= 5)
    for name in ("fail", "ignore", "remove", "continue", "waits"):
        job = await parents.getJob(f"own-{name}")
        found[f"after {name}"] = [await job.getState(), job.failedReason, job.returnvalue]
    await parents.add("steps", {"step": 1}, {"jobId": "own-steps"})
    await until(lambda: waits(parents, "own-steps"))
    child_worker.resume()
    await until(lambda: any(one[1] == "own-steps" for one in ends.events))
    found["steps"] = [one for one in sorted(values, key=str) if one[0] in ("steps", "waits again")]
    found["steps job"] = seen(await parents.getJob("own-steps"))["attempts"]

    waiting = await parents.getJob("own-waits")
    await waiting.remove()
    found["removed with its children"] = [
        await children.getJobState("own-waits-kid"),
        await waiting.getState(),
    ]

    queue = producer.queueFromNode({"queueName": "parents"}, "bull")
    found["queue"] = [queue.name, queue.prefix, queue.qualifiedName]
    entries: list[Any] = []
    node = {"name": "n", "queueName": "parents", "children": [{"name": "k", "queueName": "children"}]}
    made = await producer.addNode(node, {"parentOpts": None}, None, entries)
    found["made"] = [tree(made), [[one["job"].name, one["is_parent"]] for one in entries]]
    await producer.addNodes([node], entries)
    link = {"parentOpts": {"id": "own-p", "queue": "bull:parents"}}
    kids = await producer.addChildren([{"name": "k", "queueName": "children"}], link, None, entries)
    found["kids"] = [seen(kids[0]["job"])["parent"], len(entries)]
    listener = producer.on("x", lambda *args: found.setdefault("x", list(args)))
    producer.emit("x", 1)
    producer.off("x", listener)
    found["ids"] = sorted(await ids(parents.getCompleted()), key=len)[-4:] and "some"
    for one in (child_worker, parent_worker):
        await one.close()
    await producer.close()
    found["closed"] = [await producer.add(flow), await producer.addBulk(flows=[flow])]
    await bullmq.FlowProducer({"connection": connection, "prefix": "other"}).disconnect()
    await parents.close()
    await children.close()
    return found
