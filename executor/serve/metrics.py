"""What is counted and timed, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from executor.model.scheduling.status import SchedulerStatus
from executor.serve.worker import End

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_GAUGES: Final = {
    "running": "Sequences that have a slot.",
    "queued": "Sequences that wait for a slot or for pages.",
    "pages_held": "Pages of the cache that sequences hold.",
    "pages_idle": "Pages that no sequence holds and that are still found.",
    "pages_free": "Pages that hold nothing.",
}
_COUNTERS: Final = {
    "steps": "Steps of the model.",
    "rows": "Tokens that steps have computed.",
    "prompt_rows": "Of these, those of prompts.",
    "preemptions": "Sequences whose pages were taken away and computed again.",
    "drafted_tokens": "Tokens that were guessed.",
    "accepted_tokens": "Guessed tokens that were right.",
}


class Metrics:
    """A registry of its own. status: the scheduler's after its last step; places: answers that run or wait now."""

    def __init__(self, status: Callable[[], SchedulerStatus], places: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_SchedulerCollector(status, places))
        self._requests = Counter(
            "ptxrun_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "ptxrun_request_seconds",
            "From a request to the end of its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first = Histogram(
            "ptxrun_first_token_seconds", "From a request to its first token.", buckets=_SECONDS, registry=self.registry
        )
        self._answers = Counter("ptxrun_answers", "Answers by what ended them.", ["stopped"], registry=self.registry)
        self._prompt = Counter("ptxrun_prompt_tokens", "Tokens of prompts of ended answers.", registry=self.registry)
        self._cached = Counter("ptxrun_cached_prompt_tokens", "Of these, those that were in the cache.", registry=self.registry)
        self._answer = Counter("ptxrun_answer_tokens", "Tokens of ended answers.", registry=self.registry)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """A request has been answered, or its client has gone (status 499, as nginx counts it)."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def first_token(self, seconds: float) -> None:
        """An answer has begun."""
        self._first.observe(seconds)

    def ended(self, end: End) -> None:
        """An answer has ended."""
        self._answers.labels(end.stopped).inc()
        self._prompt.inc(end.usage.prompt_tokens)
        self._cached.inc(end.usage.cached_prompt_tokens)
        self._answer.inc(end.usage.answer_tokens)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _SchedulerCollector(Collector):
    """What the scheduler knows itself."""

    def __init__(self, status: Callable[[], SchedulerStatus], places: Callable[[], int]) -> None:
        self._status = status
        self._places = places

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield GaugeMetricFamily("ptxrun_places_taken", "Answers that run or wait.", value=self._places())
        for name, what in _GAUGES.items():
            yield GaugeMetricFamily(f"ptxrun_{name}", what, value=getattr(status, name))
        for name, what in _COUNTERS.items():
            yield CounterMetricFamily(f"ptxrun_{name}", what, value=getattr(status, name))
