"""Decides cheaply which traces begin with a job, for services that sample a few of them.

The SDK makes several objects for a span that its sampler drops. Its ratio sampler decides by the trace id
alone. So the same decision is taken here, on an id of the same generator, and only a sampled trace reaches
the SDK. Any other sampler is asked by starting a span.
"""

from __future__ import annotations

import copy
import os
import re
from random import getrandbits
from typing import Any

from oxcart.model.errors import MissingExtra

try:
    from opentelemetry import trace
    from opentelemetry.trace import Tracer, TracerProvider
except ImportError as error:
    raise MissingExtra("tracing", "otel") from error

#: The SDK's descriptions of a sampler that takes roots by the ratio of trace ids.
_RATIO = re.compile(r"(?:ParentBased\{root:)?TraceIdRatioBased\{([0-9.e+-]+)\}(?:,remoteParentSampled:.*\})?")
_SAMPLING = "opentelemetry.sdk.trace.sampling"
#: The SDK's generator of random ids, by its full name.
_RANDOM_IDS = "opentelemetry.sdk.trace.id_generator.RandomIdGenerator"
#: The SDK counts the spans that its samplers drop if this is set, so each must reach it.
_SELF_METRICS = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
_LOW_64_BITS = (1 << 64) - 1
_RANDOM_FLAG = 2

#: The beginning of a context that is a ``traceparent`` and nothing else, as most are.
PLAIN_START = '{"traceparent":"00-'


def plain_context(trace_id: int, span_id: int, flags: int) -> str:
    """Returns the context of a job below a span, without state and baggage."""
    # A third of the time of "%032x-%016x".
    return f'{PLAIN_START}{trace_id.to_bytes(16).hex()}-{span_id.to_bytes(8).hex()}-{flags:02x}"}}'


def _global_provider() -> TracerProvider | None:
    """Returns the global provider; None if none is set yet."""
    # The function reads the environment at each call, which costs an add as much as all else of a trace.
    if getattr(trace, "_TRACER_PROVIDER", trace) is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


class Roots:
    """The tracer of a `Tracing`, and what is known of its sampler.

    Args:
        provider: Makes the tracer; None for the global provider, which may be set later.
        scope: The names of the library, of its version and of the schema.

    Attributes:
        tracer: Starts spans.
    """

    __slots__ = ("_bound", "_end", "_ids", "_is_absent", "_is_random", "_provider", "_scope", "tracer")

    def __init__(self, provider: TracerProvider | None, scope: tuple[str, str | None, str]) -> None:
        self._provider = provider
        self._scope = scope
        self._bound = 0
        self._end = ""  # of a context: the flags
        self._ids: Any = None  # of a tracer whose sampler is known
        self._is_random = False  # they are plain random numbers
        self._is_absent = True
        name, version, schema = scope
        self.tracer: Tracer = trace.get_tracer(name, version, provider, schema)

    def absent(self) -> bool:
        """Returns whether there is no SDK, so that no span can be recorded."""
        if self._is_absent:
            provider = self._provider or _global_provider()
            if provider is not None:
                self._settle(provider)
        return self._is_absent

    def draw(self) -> Tracer | str:
        """Begins a trace.

        Returns:
            The context of a trace that the sampler drops. Otherwise the tracer that starts its first span,
            and asks the sampler if need be.
        """
        if self._ids is None and (self.absent() or self._ids is None):
            return self.tracer
        # Each call that an add makes less counts: these two are half of a dropped trace.
        trace_id = (self._is_random and getrandbits(128)) or self._ids.generate_trace_id()
        if trace_id & _LOW_64_BITS < self._bound:
            tracer: Any = copy.copy(self.tracer)
            tracer.id_generator = _Drawn(trace_id, self._ids)
            return tracer  # type: ignore[no-any-return]
        span_id = (self._is_random and getrandbits(64)) or self._ids.generate_span_id()
        return f"{PLAIN_START}{trace_id.to_bytes(16).hex()}-{span_id.to_bytes(8).hex()}{self._end}"

    def _settle(self, provider: TracerProvider) -> None:
        name, version, schema = self._scope
        tracer: Any = provider.get_tracer(name, version, schema)
        self.tracer = tracer
        self._is_absent = isinstance(tracer, trace.NoOpTracer)
        sampler: Any = getattr(tracer, "sampler", None)
        ids = getattr(tracer, "id_generator", None)
        if type(sampler).__module__ != _SAMPLING or os.environ.get(_SELF_METRICS, "").lower() == "true":
            return
        rate = _RATIO.fullmatch(sampler.get_description())
        if rate is not None and ids is not None:
            from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

            self._bound = TraceIdRatioBased.get_bound_for_rate(float(rate[1]))
            flags = _RANDOM_FLAG if getattr(ids, "is_trace_id_random", bool)() else 0
            self._end = f'-{flags:02x}"}}'
            self._ids = ids
            self._is_random = f"{type(ids).__module__}.{type(ids).__qualname__}" == _RANDOM_IDS


class _Drawn:
    """A generator of ids whose next trace is drawn already."""

    def __init__(self, trace_id: int, ids: Any) -> None:
        self._trace_id = trace_id
        self._ids = ids

    def generate_trace_id(self) -> int:
        return self._trace_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)
