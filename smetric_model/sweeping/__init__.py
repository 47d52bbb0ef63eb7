"""``sweep``: any scenarios, any verb, one tidy row a point (``docs/sweep.md``)."""

from __future__ import annotations

from smetric_model.sweeping.run import sweep

__all__ = ["sweep"]
