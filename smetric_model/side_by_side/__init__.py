"""``compare``: outcomes side by side, and whether they differ by more than noise."""

from __future__ import annotations

from smetric_model.side_by_side.run import Comparison, compare

__all__ = ["Comparison", "compare"]
