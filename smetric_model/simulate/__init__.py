"""``simulate``: every engine step of a cluster (``docs/simulate.md``)."""

from __future__ import annotations

from smetric_model.simulate.run import simulate

__all__ = ["simulate"]
