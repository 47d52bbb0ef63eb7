"""``compare``: outcomes side by side, and whether they differ by more than noise."""

from __future__ import annotations

from smetric_model.comparison.run import Comparison, compare

__all__ = ["Comparison", "compare"]
