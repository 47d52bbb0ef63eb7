"""The fit finds the form it fits, and its file is what scenarios read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from smetric_model.analytic.demand import instance_of
from smetric_model.analytic.memory import local_tier
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.llm import get_llm
from smetric_model.errors import LiveError, SpecError
from smetric_model.live.calibrate import ENGINE, _model_s, fit, write_gpu_file
from smetric_model.live.microbenchmark import (
    BESIDE,
    BESIDE_HELD_OUT,
    DECODE,
    DECODE_HELD_OUT,
    PREFILL,
    PREFILL_HELD_OUT,
)
from smetric_model.live.rig.tiny_model import write_tiny_model
from smetric_model.scenario import Scenario

NUMBERS = {
    "matrix_flop_per_s": 2e11,
    "attention_flop_per_s": 5e10,
    "weight_bytes_per_s": 1.2e10,
    "kv_bytes_per_s": 1e10,
    "step_s": 0.003,
    "sampled_token_s": 2e-4,
    "request_s": 0.01,
    "request_s_per_token": 1e-6,
    "request_engine_s": 0.006,
    "request_wait_steps": 1.5,
    "fetch_s": 0.02,
    "fetch_bytes_per_s": 5e8,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return get_llm(str(folder / "config.json"))


def points():
    rows = []
    for n in (*PREFILL, *PREFILL_HELD_OUT):
        hit = (n - 1) // 64 * 64
        for kind, cached in (("prefill", 0), ("cached", hit), ("fetch", hit)):
            rows.append((kind, n, 1, cached, n in PREFILL_HELD_OUT, 0))
    for batch, context in (*DECODE, *DECODE_HELD_OUT):
        rows.append(("decode", context, batch, 0, (batch, context) in DECODE_HELD_OUT, 0))
    for batch, n in (*BESIDE, *BESIDE_HELD_OUT):
        held_out = (batch, n) in BESIDE_HELD_OUT
        rows += [(kind, n, batch, 0, held_out, 400) for kind in ("beside", "late")]
    names = ["kind", "tokens", "batch", "hit_tokens", "held_out", "context_tokens"]
    return pd.DataFrame(rows, columns=names)


def test_times_of_the_model_are_found_again(llm):
    table = points()
    chance = np.random.default_rng(1)
    table["seconds"] = _model_s(table, NUMBERS, llm, 64, 2048)
    noisy = [
        table.assign(seconds=table["seconds"] * chance.lognormal(0, 0.03, len(table)))
        for _ in range(5)
    ]
    found = fit(pd.concat(noisy), llm, 64, 2048)
    held = found.points[found.points["held_out"]]
    assert held["error_ratio"].abs().max() < 0.05
    assert found.numbers["fetch_s"] == pytest.approx(0.02, rel=0.2)
    # what only shows beside decoding sequences
    assert found.numbers["request_engine_s"] == pytest.approx(0.006, rel=0.2)
    assert found.numbers["request_wait_steps"] == pytest.approx(1.5, abs=0.3)
    kinds = {"prefill", "cached", "fetch", "decode", "beside", "late"}
    assert set(found.errors()["kind"]) == kinds


def test_too_few_points(llm):
    table = points().head(4).assign(seconds=1.0)
    with pytest.raises(LiveError, match="at least 10"):
        fit(table, llm, 64, 2048)


def test_a_scenario_reads_the_file(llm, tmp_path):
    write_gpu_file(tmp_path / "mine.toml", NUMBERS, llm, 8192, "a test")
    write_tiny_model(tmp_path / "m")
    text = (
        '[llm]\nname = "m/config.json"\n[engine]\ngpu = "mine.toml"\nblock_tokens = 64\n'
        f'max_context_tokens = 8192\nkv_pool_tokens = 12224\nname = "{ENGINE}"\n'
    )
    (tmp_path / "scenario.toml").write_text(text)
    instance = instance_of(Scenario.from_toml(tmp_path / "scenario.toml"))
    assert instance.gpu.memory_bandwidth_bytes_per_s == 1.2e10
    tier = local_tier(instance)
    assert (tier.tokens, tier.blocks) == (12224, 191)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no such table"),
        ("[gpu]\nmemory_mib = 1\n", "is missing"),
        ("[gpu\n", "no TOML"),
        (None, "cannot be read"),
    ],
)
def test_wrong_gpu_files(tmp_path, text, words):
    path = tmp_path / "gpu.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=words):
        get_gpu(str(path))
