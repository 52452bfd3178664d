"""The screens of ``oxcart top``: queues, the jobs of one, and a job with the tail of its log."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, RichLog, Static

from oxcart.broker.factory import overview
from oxcart.broker.port.results import QueueRow
from oxcart.cli import output
from oxcart.cli.namespace import names_of_types
from oxcart.model.errors import OxcartError
from oxcart.observe.terminal import clean, clean_lines

if TYPE_CHECKING:
    from oxcart.broker.port.sampling import Crew
    from oxcart.cli.settings import Settings
    from oxcart.http.web.pulse import Pulse
    from oxcart.model.job import Job
    from oxcart.queue import Queue

#: Seconds between two looks at the server.
EVERY = 1.0
#: Types of jobs that fail, of which the screen of queues names so many.
FAILING = 3
#: Jobs of a screen.
JOBS = 100
#: The states that the jobs of a queue are shown in, in the order of the key that changes it.
STATES = (
    None,
    "failed",
    "dead_letter",
    "running",
    "scheduled",
    "delayed",
    "retrying",
    "completed",
    "cancelled",
)


class Looking(Screen[None]):
    """A screen that looks at the server again and again, and says when it is away."""

    app: Top

    def compose(self) -> ComposeResult:
        """Lays the screen out: what it shows, between head, status and keys."""
        yield Header()
        yield from self.body()
        yield Static("", id="status", markup=False)
        yield Footer()

    def body(self) -> ComposeResult:
        """Yields what the screen shows."""
        yield from ()

    def on_mount(self) -> None:
        """Begins to look."""
        self._is_looking = False
        self.set_interval(EVERY, self.look)
        self.call_after_refresh(self.look)

    async def look(self) -> None:
        """Reads and shows once; skipped while the last look is still under way."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            await self.show()
            self.say(f"read at {time.strftime('%H:%M:%S')}")
        except OxcartError as error:
            self.say(f"server away, trying again: {error}", bad=True)
        finally:
            self._is_looking = False

    async def show(self) -> None:
        """Reads what the screen shows from the server."""

    def say(self, words: str, *, bad: bool = False) -> None:
        """Writes the status line."""
        self.query_one("#status", Static).update(Text(clean(words), style="bold red" if bad else "dim"))

    async def act(self, work: Awaitable[Any], done: str) -> None:
        """Does something by a key, shows its result, and looks again."""
        try:
            await work
        except OxcartError as error:
            self.app.notify(clean(str(error)), severity="error", markup=False)
        else:
            self.app.notify(clean(done), markup=False)
        await self.look()


class Table(DataTable[Text]):
    """A table whose rows are replaced without moving the cursor."""

    def __init__(self, *columns: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._heads = columns

    def on_mount(self) -> None:
        """Adds the columns."""
        self.add_columns(*self._heads)

    def fill(self, rows: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Shows rows, each with its key; the cursor stays at the key where it was."""
        key, at = self.chosen, self.cursor_row
        self.clear()
        for row_key, cells in rows:
            self.add_row(*(Text(output.count(cell)) for cell in cells), key=row_key)
        keys = [row_key for row_key, _ in rows]
        if keys:
            self.move_cursor(row=keys.index(key) if key in keys else min(at, len(keys) - 1))

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value


class Queues(Looking):
    """All queues at a glance."""

    BINDINGS: ClassVar[list[BindingType]] = [("p", "pause", "Pause or resume"), ("q", "app.quit", "Quit")]

    def body(self) -> ComposeResult:
        """Yields the table of queues, and the types that fail most."""
        yield Table(
            "queue",
            "ready",
            "running",
            "delayed",
            "waiting",
            "failed",
            "completed",
            "ended/s",
            "oldest",
            "workers",
            "state",
        )
        yield Static("", id="failing", markup=False)

    async def show(self) -> None:
        """Reads the queues."""
        rows = await self.app.read_queues()
        pulse = await self.app.read_pulse([row.queue for row in rows])
        self._paused = {row.queue for row in rows if row.paused}
        shown = []
        for row in rows:
            counts = row.counts
            ready = counts.get("wait", 0) + counts.get("paused", 0) + counts.get("prioritized", 0)
            shown.append(
                (
                    row.queue,
                    (
                        row.queue,
                        ready,
                        counts.get("active", 0),
                        counts.get("delayed", 0),
                        counts.get("waiting-children", 0),
                        counts.get("failed", 0),
                        counts.get("completed", 0),
                        self.app.rate(row),
                        _span(pulse.tracks[row.queue].oldest_s),
                        _members(pulse.tracks[row.queue].crew),
                        "paused" if row.paused else "",
                    ),
                )
            )
        self.query_one(Table).fill(shown)
        failing = [
            f"{one.queue}/{one.name} {one.count}: {one.reason.partition(chr(10))[0][:80]}"
            for one in pulse.failing[:FAILING]
        ]
        words = "failing lately: " + "   ".join(failing) if failing else ""
        self.query_one("#failing", Static).update(Text(clean(words), style="red"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Opens the queue under the cursor."""
        if event.row_key.value is not None:
            self.app.push_screen(Jobs(self.app.settings.plain(event.row_key.value)))

    async def action_pause(self) -> None:
        """Pauses or resumes the queue under the cursor."""
        name = self.query_one(Table).chosen
        if name is None:
            return
        queue = self.app.settings.plain(name)
        paused = name in self._paused
        try:
            await self.act(
                queue.resume() if paused else queue.pause(), f"{name} {'resumed' if paused else 'paused'}"
            )
        finally:
            await queue.close()


class Jobs(Looking):
    """The jobs of a queue, latest change first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "leave", "Back"),
        ("s", "state", "Next state"),
        ("r", "retry", "Retry"),
        ("c", "cancel", "Cancel"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.queue = queue
        self.wanted = 0

    def body(self) -> ComposeResult:
        """Yields the table of jobs."""
        yield Static("", id="head", markup=False)
        yield Table("job", "type", "state", "attempt", "changed", "failure")

    async def show(self) -> None:
        """Reads the jobs."""
        state = STATES[self.wanted]
        found = await self.queue.jobs.search(state=state, limit=JOBS)
        more = "" if found.exact else " at least"
        head = f"{self.queue.name}: {state or 'all states'}, {found.matched:,}{more} jobs"
        self.query_one("#head", Static).update(Text(clean(head)))
        self.query_one(Table).fill([(job.id, _row(job)) for job in found.jobs])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Opens the job under the cursor."""
        if event.row_key.value is not None:
            self.app.push_screen(OneJob(self.queue, event.row_key.value))

    async def action_state(self) -> None:
        """Shows the jobs of the next state."""
        self.wanted = (self.wanted + 1) % len(STATES)
        await self.look()

    async def action_retry(self) -> None:
        """Retries the job under the cursor."""
        if (job := self.query_one(Table).chosen) is not None:
            await self.act(self.queue.jobs.retry(job), f"job {job} will run again")

    async def action_cancel(self) -> None:
        """Cancels the job under the cursor."""
        if (job := self.query_one(Table).chosen) is not None:
            await self.act(self.queue.jobs.cancel(job, "oxcart top"), f"job {job} is cancelled")

    async def action_leave(self) -> None:
        """Goes back to the queues."""
        await self.queue.close()
        self.app.pop_screen()


class OneJob(Looking):
    """A job: its facts, its failure, and the tail of its log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "app.pop_screen", "Back"),
        ("r", "retry", "Retry"),
        ("c", "cancel", "Cancel"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, queue: Queue, job_id: str) -> None:
        super().__init__()
        self.queue = queue
        self.job_id = job_id
        self._lines = 0

    def body(self) -> ComposeResult:
        """Yields the facts and the log."""
        yield Static("", id="facts", markup=False)
        yield RichLog(id="log", wrap=True, markup=False, highlight=False)

    async def show(self) -> None:
        """Reads the job, and the lines of its log that are new."""
        queue = self.queue
        job = await queue.jobs.get(self.job_id)
        facts = self.query_one("#facts", Static)
        if job is None:
            facts.update(Text(clean(f"job {self.job_id} was removed"), style="bold"))
            return
        facts.update(Text(clean_lines(_facts(job))))
        lines = await queue.jobs.handle(self.job_id).logs() if queue.capabilities.can("logs") else []
        log = self.query_one("#log", RichLog)
        for line in lines[self._lines :]:
            log.write(Text(clean(line)))
        self._lines = len(lines)

    async def action_retry(self) -> None:
        """Retries the job."""
        await self.act(self.queue.jobs.retry(self.job_id), f"job {self.job_id} will run again")

    async def action_cancel(self) -> None:
        """Cancels the job."""
        await self.act(self.queue.jobs.cancel(self.job_id, "oxcart top"), f"job {self.job_id} is cancelled")


class Top(App[None]):
    """Queues, jobs and logs in a terminal, read once a second.

    Args:
        settings: The server and the prefix.
        match: Only queues whose names match this pattern.
    """

    TITLE = "oxcart top"
    CSS = """
    #status, #head, #failing { height: 1; padding: 0 1; }
    #facts { height: auto; max-height: 60%; padding: 0 1; }
    """

    def __init__(self, settings: Settings, match: str | None = None) -> None:
        super().__init__()
        self.settings = settings
        self._match = match
        self._ended: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}
        self._types: dict[str, Queue] = {}
        self._pulse: Pulse | None = None

    def on_mount(self) -> None:
        """Opens the queues."""
        if self.settings.namespace is not None:
            self.sub_title = f"namespace {self.settings.namespace}"
        self.push_screen(Queues())

    async def on_unmount(self) -> None:
        """Closes the connections of the queues."""
        for queue in self._types.values():
            await queue.close()

    async def read_queues(self) -> list[QueueRow]:
        """Reads all queues, sorted by name."""
        rows: list[QueueRow] = []
        using = self.settings
        if using.namespace is not None:
            rows = await self._read_types()
        else:
            async for page in overview(using.server, using.prefix, using.reconnect, match=self._match):
                rows += page
        now = time.monotonic()
        for row in rows:
            ended = row.counts.get("completed", 0) + row.counts.get("failed", 0)
            at, before = self._ended.get(row.queue, (now, ended))
            if now > at:
                self._rates[row.queue] = max(0.0, (ended - before) / (now - at))
            self._ended[row.queue] = (now, ended)
        return sorted(rows, key=lambda row: row.queue)

    async def read_pulse(self, names: list[str]) -> Pulse:
        """Returns what the dashboard knows of queues: workers, oldest ready jobs and failing types."""
        if self._pulse is None or list(self._pulse.tracks) != names:
            from oxcart.http.web.pulse import Pulse

            for name in names:
                if name not in self._types:
                    self._types[name] = self.settings.plain(name)
            self._pulse = Pulse([self._types[name] for name in names])
        if names:
            await self._pulse.fresh()
        return self._pulse

    async def _read_types(self) -> list[QueueRow]:
        """Reads the job types of a namespace of Bridge."""
        known = await names_of_types(self.settings)
        names = [name for name in known if self._match is None or fnmatchcase(name, self._match)]
        rows = []
        for name in names:
            if name not in self._types:
                self._types[name] = self.settings.plain(name)
            queue = self._types[name]
            counts = await queue._core.broker.counts()
            rows.append(QueueRow(name, dict(counts), await queue.is_paused(), None))
        return rows

    def rate(self, row: QueueRow) -> str:
        """Returns how many jobs of a queue ended per second, between the last two looks."""
        found = self._rates.get(row.queue)
        return "" if found is None else f"{found:.1f}"


def _span(seconds: float | None) -> str:
    return "" if seconds is None else output.span(seconds)


def _members(crew: Crew) -> str:
    return str(len(crew.workers) + len(crew.peers))


def _row(job: Job) -> tuple[Any, ...]:
    from oxcart.model.filter import failure_of
    from oxcart.model.search import changed_ms

    failure = (failure_of(job) or "").partition("\n")[0]
    return (
        job.id,
        job.name,
        str(job.state or ""),
        str(job.attempts_used),
        output.ago(changed_ms(job)),
        failure[:200],
    )


def _facts(job: Job) -> str:
    from oxcart.model.filter import failure_of

    rows = {
        "job": job.id,
        "type": job.name,
        "state": job.state,
        "attempts": f"{job.attempts_used} of {job.options.attempts}",
        "created": output.moment(job.timestamp),
        "started": output.moment(job.processed_on),
        "ended": output.moment(job.finished_on),
        "worker": job.worker_id,
        "progress": None if not job.progress else output.data(job.progress),
        "payload": output.data(job.data),
        "result": None if job.return_value is None else output.data(job.return_value),
        "failure": failure_of(job),
    }
    lines = [f"{name:<9} {clean(str(value))}" for name, value in rows.items() if value is not None]
    return "\n".join([*lines, *(job.stacktrace[-1:] and [job.stacktrace[-1]])])
