"""What arrives: traces, their prefix structure, summaries."""

from __future__ import annotations

from smetric_model.workload.trace import LoadReport, Trace, load_trace

__all__ = ["LoadReport", "Trace", "load_trace"]
