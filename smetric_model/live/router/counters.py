"""Counters and histograms that cost little where they count: read when Prometheus asks.

The client library's own take a lock for every number; here one thread counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

__all__ = ["Count", "Distribution"]


class Count:
    """A counter, with labels or without.

    Parameters
    ----------
    name, text : str
        Name without ``_total``, and what it counts.
    labels : sequence of str
        Names of its labels.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()):
        self._name, self._text, self._labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, labels: tuple[str, ...] = (), amount: float = 1) -> None:
        """Count."""
        values = self.values
        values[labels] = values.get(labels, 0.0) + amount

    def family(self) -> CounterMetricFamily:
        """Return it as Prometheus has it."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Distribution:
    """A histogram.

    Parameters
    ----------
    name, text : str
        Name, and what it measures.
    bounds : sequence of float
        Upper bounds of its buckets; infinity comes by itself.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]):
        self._name, self._text = name, text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Record a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> HistogramMetricFamily:
        """Return it as Prometheus has it."""
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
        # A sum of values of either sign is no counter, and has no place in a histogram.
        total_value = self._sum if self._bounds[0] >= 0 else None
        return HistogramMetricFamily(self._name, self._text, buckets, total_value)
