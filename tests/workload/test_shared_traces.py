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


def test_mooncake_column_of_the_study(mooncake) -> None:
    """docs/traces.md lays these beside the published figures."""
    from smetric_model.workload import (
        infer_sessions,
        origin_shares,
        reuse_intervals,
        reuse_origin,
        session_table,
        share_within,
        turn_table,
    )

    quantiles = [0.5, 0.9, 0.99]
    frame = mooncake.requests
    prompt = frame["prompt_tokens"].quantile(quantiles)
    assert (prompt / 1e3).round().tolist() == [7, 27, 85]
    assert frame["output_tokens"].quantile(quantiles).round().tolist() == [350, 597, 1119]
    table = reuse_intervals(mooncake)
    shares = share_within(table["start_to_start_s"], table["tokens"], [1, 10, 100, 1000])
    assert shares.round(2).tolist() == [0.10, 0.12, 0.46, 0.98]

    trace = infer_sessions(mooncake).trace
    assert trace.sessions == pytest.approx(8_137, rel=0.005)
    turns = turn_table(trace)
    assert (turns["history"] == "first").mean() == pytest.approx(0.68, abs=0.005)
    assert session_table(trace)["turns"].quantile(quantiles).tolist() == [1, 2, 7]
    assert turns["gap_s"].quantile(quantiles).tolist() == pytest.approx([150, 536, 1557], rel=0.01)
    origin = origin_shares(reuse_origin(trace), int(prompt_total(trace)))
    by_last = origin["last_toucher_reuse_ratio"] * origin["prompt_ratio"].sum()
    assert by_last["intra"] == pytest.approx(0.300, abs=0.001)
    assert by_last["system"] + by_last["other"] == pytest.approx(0.073, abs=0.002)
    assert origin["prompt_ratio"].sum() == pytest.approx(0.3736, abs=5e-5)


def prompt_total(trace):
    return trace.column("prompt_tokens").sum()


def test_weka_sessions_can_be_inferred_roughly(weka) -> None:
    from smetric_model.workload import infer_sessions

    inferred = infer_sessions(weka).trace
    truth, guess = weka.column("session_id"), inferred.column("session_id")
    assert inferred.sessions == 249  # rewritten histories start anew
    pairs = set(zip(guess.tolist(), truth.tolist(), strict=True))
    assert len(pairs) == inferred.sessions  # none joins two sessions


def test_compression(weka) -> None:
    """A request is a handful of segments, however many blocks its prompt has."""
    lengths = weka.tree.path_lengths()[weka.tree.request_segment]
    assert weka.tree.request_blocks.mean() > 1_800
    assert lengths.mean() < 10
