"""Prompts share tokens exactly as far as the trace's paths do; follow-ups hold what was made."""

from __future__ import annotations

import numpy as np
import pytest

from smetric_model.live.prompts import PromptMaker
from smetric_model.live.validation_spec import ValidationSpec, build_workload, jittered


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    spec = ValidationSpec(
        engines={"block_tokens": 64, "blocks": 192, "max_context_tokens": 8192},
        workload={"parameters": "data/live/agents-tiny.toml", "rate_rps": 4.0},
    )
    return build_workload(spec, tmp_path_factory.mktemp("w") / "workload.parquet")


def common(one, other):
    length = min(len(one), len(other))
    differs = np.flatnonzero(np.array(one[:length]) != np.array(other[:length]))
    return int(differs[0]) if differs.size else length


def made(trace, salt=1):
    """Prompts of all requests, and what was generated for each."""
    maker = PromptMaker(trace, 4096, salt)
    session = trace.column("session_id")
    output = trace.column("output_tokens")
    last, prompts, outputs = {}, [], []
    chance = np.random.default_rng(5)
    for row in range(len(trace)):
        before = last.get(session[row])
        prompt = maker.prompt(
            row,
            prompts[before] if before is not None else None,
            outputs[before] if before is not None else None,
        )
        prompts.append(prompt)
        outputs.append(chance.integers(16, 4096, output[row]).tolist())
        last[session[row]] = row
    return prompts, outputs


def test_lengths_and_shared_blocks(trace):
    prompts, _ = made(trace)
    assert [len(p) for p in prompts] == trace.column("prompt_tokens").tolist()
    tree, block = trace.require_tree()
    chance = np.random.default_rng(0)
    for one, other in chance.integers(0, len(prompts), (300, 2)).tolist():
        if one == other:
            continue
        a, b = tree.block_ids(one), tree.block_ids(other)
        a, b = a[: len(prompts[one]) // block], b[: len(prompts[other]) // block]
        shared = common(a, b)
        assert shared * block <= common(prompts[one], prompts[other]) < (shared + 1) * block


def test_follow_ups_hold_what_was_generated(trace):
    prompts, outputs = made(trace)
    session = trace.column("session_id")
    held = follow = 0
    last = {}
    for row in range(len(trace)):
        before = last.get(session[row])
        if before is not None:
            history = prompts[before] + outputs[before]
            follow += 1
            held += prompts[row][: len(history)] == history[: len(prompts[row])]
        last[session[row]] = row
    assert held > 0.8 * follow  # the others were rewritten


def test_salts_share_nothing(trace):
    one, other = made(trace, 1)[0], made(trace, 2)[0]
    assert max(common(a, b) for a, b in zip(one, other, strict=True)) < 8


def test_jitter_keeps_sessions_in_order(trace):
    moved = jittered(trace, 0.02, 3)
    assert len(moved) == len(trace)
    assert (np.diff(moved.column("arrival_s")) >= 0).all()
    for _, rows in moved.requests.groupby("session_id"):
        assert (np.diff(rows["turn"]) > 0).all()
    key = ["session_id", "turn"]
    a = trace.requests.sort_values(key)
    b = moved.requests.sort_values(key)
    assert (a["prompt_tokens"].to_numpy() == b["prompt_tokens"].to_numpy()).all()
    assert np.abs(a["arrival_s"].to_numpy() - b["arrival_s"].to_numpy()).max() <= 0.0201
