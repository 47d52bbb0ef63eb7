"""Turns of the shared cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smetric_model.routing.turn import infer_turn


@pytest.mark.shared
def test_shared_turn_cases(shared_dir: Path) -> None:
    cases = json.loads((shared_dir / "routing" / "turn_cases.json").read_text())
    assert len(cases) >= 14
    for case in cases:
        told = infer_turn(case["api"], case["body"])
        assert (told.turn, told.history_items) == (case["turn"], case["history_items"]), case
        if "image" in case["name"]:
            assert 1_000 < told.est_hit_tokens < 1_100  # an image, no base64, no reasoning
