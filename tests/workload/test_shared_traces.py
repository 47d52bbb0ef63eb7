"""The two public traces that the repository does not carry."""

from __future__ import annotations

import pytest

from smetric_model.workload import load_trace
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.summary import summarise

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def mooncake(shared_dir):
    return load_trace(shared_dir / "traces" / "mooncake-conversation.jsonl.gz")


@pytest.fixture(scope="module")
def weka(shared_dir):
    return load_trace(shared_dir / "traces" / "weka-claude-code-120.jsonl.gz")


def test_mooncake(mooncake) -> None:
    summary = summarise(mooncake)
    assert summary["requests"] == 12_031
    assert summary["sessions"] is None
    assert summary["first_turn_ratio"] is None
    assert summary["ideal_reuse_ratio"] == pytest.approx(0.3736, abs=5e-5)
    assert summary["fully_cached_requests"] == 118
    assert mooncake.requests["arrival_s"].nunique() == 1_180


def test_weka(weka) -> None:
    summary = summarise(weka)
    assert summary["requests"] == 7_546
    assert summary["sessions"] == 120
    assert summary["ideal_reuse_ratio"] == pytest.approx(0.9636, abs=5e-5)
    prompt = weka.column("prompt_tokens")
    assert (prompt > 262_144).mean() == pytest.approx(0.078, abs=5e-4)
    assert prompt[prompt > 262_144].sum() / prompt.sum() == pytest.approx(0.28, abs=5e-3)
    assert (prompt > 40_960).mean() == pytest.approx(0.897, abs=5e-4)
    # floor tails: the last tokens of a prompt belong to no block
    assert (ideal_reuse(weka) <= prompt // 64 * 64).all()
