"""One worker process: loads the application and runs a worker on its queues until it is stopped.

Run by ``oxcart work`` itself, or by its fleet as ``python -m oxcart.cli.runner PLAN``. A supervised
process keeps its standard input open to its supervisor: when the supervisor ends, this process ends too.

The first SIGINT or SIGTERM lets running jobs end, the second returns them to the queue, the third ends the
process.
Five seconds after the shutdown timeout the process ends, whatever still runs in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from oxcart.cli import apps, exits
from oxcart.cli.ending import Ending
from oxcart.cli.reloading import EVERY, SourceWatch
from oxcart.model.duration import parse_ms
from oxcart.observe import logs

log = logging.getLogger("oxcart.work")

#: The exit code of a process that ends because its source has changed.
RELOAD = 75
#: The signals that stop a worker.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after the shutdown timeout at which the process ends. Until then the worker returns jobs, and
#: handlers and a lifespan clean up.
SPARE = 5.0


class Plan(msgspec.Struct, kw_only=True):
    """The settings of a worker process, without secrets: the list of processes shows them.

    Attributes:
        targets: ``module:queue`` names.
        concurrency: How many handlers run at once.
        name: The worker's name, or None for its id.
        version: The version of the program, or None for that of the environment.
        abilities: Its abilities, or None if it takes no jobs with a target.
        lock_duration: How long a lease lasts.
        stalled_interval: How often to recover jobs of lost workers.
        shutdown_timeout: How long running jobs may take to end.
        max_started: How often a job may be started; 0 for no limit, None for the worker's default.
        schedules: Whether the worker stores and removes the schedules that its handlers declare.
        metrics_minutes: For how many minutes the queue keeps its counts of ended jobs.
        lifespan: ``module:function`` of an async context manager around the worker, or None.
        middleware: ``module:function`` names of layers around every handler, the first outermost.
        observers: ``module:name`` names of observers, for example of a hook for an error tracker.
        metrics_host: Where metrics and health are served.
        metrics_port: The port, or None for none.
        log_format: ``text`` or ``json``.
        log_level: The lowest level shown.
        reload: Whether to end when the source changes.
        supervised: Whether a fleet has the other end of the standard input.
    """

    targets: list[str]
    concurrency: int = 10
    name: str | None = None
    version: str | None = None
    abilities: dict[str, list[str]] | None = None
    lock_duration: str = "30s"
    stalled_interval: str = "30s"
    shutdown_timeout: str = "30s"
    max_started: int | None = None
    schedules: bool = True
    metrics_minutes: int = 0
    lifespan: str | None = None
    middleware: list[str] = []
    observers: list[str] = []
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    log_format: logs.LogFormat = "text"
    log_level: str = "INFO"
    reload: bool = False
    supervised: bool = False


def run(plan: Plan) -> int:
    """Runs a worker process to its end; returns its exit code.

    Raises:
        CommandError: A target of the plan names no queue with handlers.
    """
    context = logs.configure(plan.log_format, plan.log_level)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ending = Ending()
    with contextlib.closing(asyncio.Runner()) as runner:
        try:
            code = runner.run(_Process(plan, context, ending).run())
            ending.leave(runner.get_loop(), code)
        except KeyboardInterrupt:  # before our handlers were installed
            return exits.INTERRUPTED
        finally:
            ending.close()
            for number, handler in before.items():
                # The supervisor's second signal must not interrupt the exit of a process that has ended well.
                signal.signal(number, signal.SIG_IGN if plan.supervised else handler)
    return code


class _Process:
    def __init__(self, plan: Plan, context: logs.JobContext, ending: Ending) -> None:
        self._plan = plan
        self._context = context
        self._ending = ending
        self._born = time.time()
        self._signals = 0
        self._worker: Any = None
        self._stopped = asyncio.Event()
        self._reloading = False
        self._shutdown_timeout = parse_ms(plan.shutdown_timeout, "shutdown_timeout") / 1000

    async def run(self) -> int:
        self._catch_signals()
        if self._plan.supervised:
            await self._watch_supervisor()
        try:
            queues = apps.load(self._plan.targets)
            around = self._load_around()
        except exits.CommandError as error:
            return await self._broken(str(error), error)
        except Exception as error:
            return await self._broken(f"the application cannot be loaded\n{apps.explain(error)}", error)
        if self._stopped.is_set():
            return exits.OK
        return await self._work(queues, around)

    def _load_around(self) -> dict[str, Any]:
        """Loads the lifespan, the middleware and the observers of the application."""
        lifespan = self._plan.lifespan
        return {
            "lifespan": None if lifespan is None else apps.load_function(lifespan),
            "middleware": [apps.load_function(name) for name in self._plan.middleware],
            "observer": [apps.load_object(name) for name in self._plan.observers],
        }

    async def _work(self, queues: Sequence[Any], around: dict[str, Any]) -> int:
        from oxcart.engine.worker import Worker
        from oxcart.model.errors import OxcartError

        plan = self._plan
        metrics, lengths = None, None
        if plan.metrics_port is not None:
            from oxcart.observe.lengths import QueueLengths
            from oxcart.observe.metrics import Metrics

            lengths = [QueueLengths(queue) for queue in queues]
            metrics = Metrics(lengths)
            around["observer"].insert(0, metrics)
        self._worker = worker = Worker(
            *queues,
            concurrency=plan.concurrency,
            name=plan.name,
            version=plan.version,
            abilities=plan.abilities,
            lock_duration=plan.lock_duration,
            stalled_interval=plan.stalled_interval,
            shutdown_timeout=plan.shutdown_timeout,
            max_started=UNSET if plan.max_started is None else plan.max_started or None,
            schedules=plan.schedules,
            metrics=plan.metrics_minutes,
            **around,
        )
        self._context.worker_id = worker.id
        async with contextlib.AsyncExitStack() as stack:
            if metrics is not None:
                try:
                    await stack.enter_async_context(self._health(metrics, lengths or []))
                except OSError as error:
                    log.error("metrics cannot be served: %s", error.strerror or error)
                    return exits.USAGE
            if plan.reload:
                stack.callback(asyncio.create_task(self._reload_on_change()).cancel)
            if self._stopped.is_set():
                return exits.OK
            try:
                await worker.run()
            except OxcartError as error:
                log.error("the worker has failed: %s", error)
                judged = exits.judge(error)
                return judged[0] if judged else exits.FAILED
        return RELOAD if self._reloading else exits.OK

    @contextlib.asynccontextmanager
    async def _health(self, metrics: Any, lengths: Sequence[Any]) -> Any:
        from oxcart.observe.health import HealthServer

        assert self._plan.metrics_port is not None
        server = HealthServer(
            metrics, self._not_ready, host=self._plan.metrics_host, port=self._plan.metrics_port
        )
        await server.start()
        try:
            yield
        finally:
            await server.close()
            for length in lengths:
                await length.close()

    def _not_ready(self) -> str | None:
        if self._stopped.is_set():
            return "shutting down"
        if self._worker is None or not self._worker.started.is_set():
            return "starting"
        return None if self._worker.is_connected else "the server cannot be reached"

    # -- the end

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def signalled(number: int, _: object) -> None:
            # Not in the loop, which a handler may block: the process must still end.
            self._signals += 1
            if self._signals > 2:
                os._exit(128 + number)
            now = self._signals == 2
            self._ending.within(SPARE if now else self._shutdown_timeout + SPARE)
            loop.call_soon_threadsafe(self._signalled, now)

        for number in SIGNALS:
            signal.signal(number, signalled)

    def _signalled(self, now: bool) -> None:
        if now:
            log.warning("stopping at once; running jobs are returned to the queue")
        self._stop(now=now)

    def _stop(self, *, now: bool = False) -> None:
        self._ending.within(self._shutdown_timeout + SPARE)
        if not self._stopped.is_set():
            log.info("stopping; running jobs may end within %s", self._plan.shutdown_timeout)
        self._stopped.set()
        if self._worker is not None:
            self._worker.stop(now=now)

    async def _watch_supervisor(self) -> None:
        loop = asyncio.get_running_loop()

        class _Pipe(asyncio.Protocol):
            def connection_lost(_, exc: Exception | None) -> None:  # noqa: N805
                self._stop()

        await loop.connect_read_pipe(_Pipe, sys.stdin)

    # -- changing source

    async def _broken(self, message: str, error: BaseException) -> int:
        """Ends the process, or waits for a change of the source, when the application cannot be loaded."""
        if isinstance(error, exits.CommandError) and not self._plan.supervised:
            raise error
        log.error(message)
        if not self._plan.reload:
            return exits.USAGE
        watch = SourceWatch(self._born, apps.files_of(error))
        log.info("waiting for a change of the source")
        await self._until_changed(watch)
        return exits.OK if self._stopped.is_set() else RELOAD

    async def _reload_on_change(self) -> None:
        await self._until_changed(SourceWatch(self._born))
        self._reloading = not self._stopped.is_set()
        self._stop()

    async def _until_changed(self, watch: SourceWatch) -> None:
        while not self._stopped.is_set():
            if (file := watch.changed()) is not None:
                log.info("%s has changed", file)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), EVERY)


def main() -> None:
    """Entry point of a supervised process."""
    sys.exit(run(msgspec.json.decode(sys.argv[1], type=Plan)))


if __name__ == "__main__":
    main()
