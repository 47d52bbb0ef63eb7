"""Prometheus metrics.  Names start with ``smetric_router_``; ``docs/router.md`` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from smetric_model.live.router.counters import Count, Distribution
from smetric_model.routing.policy import Reason

if TYPE_CHECKING:
    from smetric_model.live.router.decide import Choice
    from smetric_model.live.router.exchange import Exchange
    from smetric_model.live.router.service import Service
    from smetric_model.live.router.usage import Usage

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "smetric_router_"
_REASONS = {reason: reason.name.lower() for reason in Reason}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_DECISION_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
_ERROR_TOKENS = (-65536, -16384, -4096, -1024, -256, -64, -16, -1, 0, 16, 64, 256, 1024, 4096)


class Metrics:
    """What the router counts, and what it reads off its parts when asked."""

    def __init__(self, service: Service):
        self.registry = CollectorRegistry()
        self._families: list[Count | Distribution] = []
        self._requests = self._count(
            "requests", "Requests ended, by instance and how", ("instance", "ended")
        )
        self._answers = self._count("answers", "Answers to clients, by status", ("status",))
        self._decisions = self._count("decisions", "Decisions, by reason", ("reason",))
        self._failures = self._count(
            "attempt_failures", "Attempts that gave nothing", ("instance", "cause")
        )
        self._prompt = self._count(
            "prompt_tokens", "Tokens of routed prompts, by the router's count"
        )
        self._predicted = self._count(
            "predicted_hit_tokens", "Hit tokens predicted on the chosen instance", ("source",)
        )
        self._delivered_prompt = self._count(
            "engine_prompt_tokens", "Prompt tokens where the engine reported its hit"
        )
        self._delivered = self._count("engine_hit_tokens", "Hit tokens the engines reported")
        self._not_tokenised = self._count(
            "not_tokenised", "Prompts looked up approximately, though hits are exact"
        )
        self._first_byte = self._distribution(
            "first_byte_seconds", "Arrival to first byte of the answer", _SECONDS
        )
        self._duration = self._distribution("request_seconds", "Arrival to end", _SECONDS)
        self._deciding = self._distribution(
            "decision_seconds", "Index lookup and policy", _DECISION_SECONDS
        )
        self._tokenising = self._distribution(
            "tokenise_seconds", "Prompt to tokens, waiting included", _SECONDS
        )
        self._hit_error = self._distribution(
            "hit_error_tokens", "Engine's hit minus the predicted one", _ERROR_TOKENS
        )
        self.registry.register(_State(service, self._families))

    def _count(self, name: str, text: str, labels: Sequence[str] = ()) -> Count:
        made = Count(_PREFIX + name, text, labels)
        self._families.append(made)
        return made

    def _distribution(self, name: str, text: str, bounds: Sequence[float]) -> Distribution:
        made = Distribution(_PREFIX + name, text, bounds)
        self._families.append(made)
        return made

    def decided(self, choice: Choice) -> None:
        """Count a decision."""
        self._decisions.add((_REASONS[choice.reason],))
        self._deciding.add(choice.seconds)
        if choice.request.prompt_tokens:
            self._prompt.add((), choice.request.prompt_tokens)
            if choice.hit_tokens:
                self._predicted.add((choice.source,), choice.hit_tokens)

    def failed(self, instance: str, cause: str) -> None:
        """Count an attempt that gave nothing."""
        self._failures.add((instance, cause))

    def tokenised(self, seconds: float, known: bool) -> None:
        """Record a tokenisation, and whether it gave the prompt's tokens in time."""
        self._tokenising.add(seconds)
        if not known:
            self._not_tokenised.add()

    def delivered(self, usage: Usage, predicted_tokens: int) -> None:
        """Compare an engine's report with the prediction."""
        if usage.cached_tokens is None or usage.prompt_tokens is None:
            return
        self._delivered_prompt.add((), usage.prompt_tokens)
        self._delivered.add((), usage.cached_tokens)
        self._hit_error.add(usage.cached_tokens - predicted_tokens)

    def ended(self, exchange: Exchange) -> None:
        """Count a request that ended."""
        choice = exchange.choice
        name = "-" if choice is None else choice.instance.name
        self._requests.add((name, exchange.ended_as))
        if exchange.status:
            self._answers.add((str(exchange.status),))
        self._duration.add(exchange.seconds)
        first = exchange.first_byte_s
        if first is not None:
            self._first_byte.add(first)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text form."""
        return generate_latest(self.registry)


class _State:
    """Gauges, read when asked for."""

    def __init__(self, service: Service, families: Sequence[Count | Distribution]):
        self._service = service
        self._families = families

    def collect(self) -> Iterator[Metric]:
        service = self._service
        for counted in self._families:
            yield counted.family()
        yield from self._instances()
        yield _gauge(
            "client_connections", "Open connections of clients", len(service.server.connections)
        )
        yield _gauge("in_flight", "Requests in flight", len(service.exchanges))
        yield _gauge("draining", "Whether the router drains", int(service.draining))
        if service.approximate is not None:
            index = service.approximate
            yield _gauge("index_entries", "Entries of the approximate index", index.entries)
            yield _gauge("index_bytes", "Memory of the approximate index", index.memory_bytes)
            yield _count("index_forgotten", "Entries forgotten", index.forgotten)
        if service.exact is not None:
            yield from self._feeds()
        if service.decision_log is not None:
            yield _count("decision_log_lost", "Lines not written", service.decision_log.failed)

    def _instances(self) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(_PREFIX + "instance_" + name, text, labels=["instance"])
            for name, text in (
                ("up", "Whether it passes its probes"),
                ("draining", "Whether it drains"),
                ("in_flight", "Requests sent and not ended"),
                ("unprefilled_tokens", "Their prompt tokens not cached and not yet prefilled"),
                ("held_tokens", "Their prompt tokens"),
                ("engine_running", "Scraped: requests running"),
                ("engine_waiting", "Scraped: requests waiting"),
                ("engine_kv_usage_ratio", "Scraped: KV cache in use"),
                ("engine_age_seconds", "Age of what was scraped"),
            )
        }
        now = self._service.loop.time()
        for item in self._service.fleet:
            label = [item.name]
            families["up"].add_metric(label, int(item.up))
            families["draining"].add_metric(label, int(item.draining))
            families["in_flight"].add_metric(label, item.load.requests)
            families["unprefilled_tokens"].add_metric(label, item.load.unprefilled_tokens)
            families["held_tokens"].add_metric(label, item.load.held_tokens)
            engine = item.engine
            if engine is not None:
                families["engine_running"].add_metric(label, engine.running)
                families["engine_waiting"].add_metric(label, engine.waiting)
                families["engine_kv_usage_ratio"].add_metric(label, engine.kv_usage_ratio)
                families["engine_age_seconds"].add_metric(label, now - engine.scraped_s)
        yield from families.values()

    def _feeds(self) -> Iterator[Metric]:
        service = self._service
        assert service.exact is not None
        live = GaugeMetricFamily(
            _PREFIX + "kv_feed_live", "Whether its KV events are complete", labels=["instance"]
        )
        blocks = GaugeMetricFamily(
            _PREFIX + "kv_blocks", "Blocks in the exact index", labels=["instance"]
        )
        counters = {
            name: CounterMetricFamily(_PREFIX + "kv_" + name, text, labels=["instance"])
            for name, text in (
                ("batches", "Batches of KV events applied"),
                ("gaps", "Gaps in their numbers"),
                ("replayed", "Batches that came by replay"),
                ("restarts", "Restarts seen"),
                ("orphans", "Blocks whose parent is not known"),
                ("garbled", "Messages that could not be read"),
            )
        }
        for name, feed in service.feeds.items():
            label = [name]
            live.add_metric(label, int(feed.is_live))
            blocks.add_metric(label, service.exact.blocks(feed.bit))
            for key, family in counters.items():
                family.add_metric(label, feed.counts[key])
        yield live
        yield blocks
        yield from counters.values()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)
