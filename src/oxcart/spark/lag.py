"""The lag of a pipeline in Prometheus' form, served by the process that reads or follows the streams."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from oxcart.spark.status import Standing

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("oxcart.pipeline")

#: A reading younger than this (seconds) is not repeated, so several scrapers cost as much as one.
FRESH = 5.0


class LagMetrics(Collector):
    """A collector of a pipeline's lag.

    If the server or the lake cannot be read there are no numbers: old ones would look like new ones.

    Args:
        read: Returns the lag of every stream.
        clock: Seconds, for the age of a reading.
    """

    def __init__(
        self, read: Callable[[], Sequence[Standing]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._reading = threading.Lock()
        self._known: Sequence[Standing] = ()
        self._read_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        labels = ["queue", "stream"]
        entries = GaugeMetricFamily(
            "bullmq_pipeline_lag_entries",
            "Entries that the pipeline has not read.",
            labels=labels,
        )
        seconds = GaugeMetricFamily(
            "bullmq_pipeline_lag_seconds", "The age of the oldest unread entry, 0 for none.", labels=labels
        )
        loss = GaugeMetricFamily(
            "bullmq_pipeline_seconds_until_loss",
            "How long until an entry is trimmed unread, at the rate of the last minute.",
            labels=labels,
        )
        for one in self._standings():
            place = [one.queue, one.stream]
            if one.lag is not None:
                entries.add_metric(place, one.lag)
            seconds.add_metric(place, one.lag_ms / 1000)
            if one.lost_in_ms is not None:
                loss.add_metric(place, one.lost_in_ms / 1000)
        yield from (entries, seconds, loss)

    def _standings(self) -> Sequence[Standing]:
        with self._reading:
            if self._clock() - self._read_at >= FRESH:
                try:
                    self._known = self._read()
                except Exception as error:
                    log.warning("could not read the lag of the pipeline: %s", error)
                    self._known = ()
                self._read_at = self._clock()
            return self._known


def serve_lag(read: Callable[[], Sequence[Standing]], host: str, port: int) -> WSGIServer:
    """Serves the lag at ``/metrics``, and ``/live``, in threads of their own.

    ``/live`` reads neither the server nor the lake: a lost server is no reason to restart a pipeline.

    Raises:
        OSError: The port is taken.
    """
    registry = CollectorRegistry()
    registry.register(LagMetrics(read))
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        live = environ["PATH_INFO"] == "/live"
        status, body = ("200 OK", b"live\n") if live else ("404 Not Found", b"there are /metrics and /live\n")
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    kind = _SixServer if ":" in host else _Server
    server = make_server(host, port, answer, server_class=kind, handler_class=_Handler)
    threading.Thread(target=server.serve_forever, name="oxcart-pipeline-lag", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a probe every ten seconds would fill the log."""
