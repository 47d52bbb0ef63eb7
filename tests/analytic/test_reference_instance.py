"""The simulation that the closed form is held against obeys laws of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.batching import RequestMix
from smetric_model.analytic.latency import request_latency
from smetric_model.analytic.memory import local_tier
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm


def load_reference():
    name = "reference_instance"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, Path(__file__).with_name("reference_instance.py")
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


reference = load_reference()
SPEC = InstanceSpec(
    get_llm("Qwen3-Coder-30B-A3B-Instruct"),
    get_gpu("H20"),
    1,
    1,
    "vllm",
    "graph",
    token_budget=8192,
)
MODEL = step_model(SPEC)
POOL = float(local_tier(SPEC).tokens)


def column(*values):
    return np.array(values, dtype=float)


def some_mix(seed, size=50, longest=40_000):
    random = np.random.default_rng(seed)
    prompt = random.integers(100, longest, size).astype(float)
    return RequestMix(
        prompt,
        random.integers(1, 400, size).astype(float),
        np.floor(prompt * random.uniform(0, 0.9, size)),
        random.uniform(0, 0.2, size),
    )


@given(
    prompt=st.integers(2, 60_000),
    output=st.integers(1, 300),
    cached=st.floats(0, 1),
    beside=st.floats(0, 1),
)
@settings(max_examples=15)
def test_one_request_alone_is_request_latency(prompt, output, cached, beside):
    hit = int(cached * (prompt - 1)) // 16 * 16
    alone = request_latency(SPEC, prompt, output, hit)
    served = reference.serve(
        MODEL, column(1.0), column(prompt), column(output), column(hit), column(beside), POOL
    )
    assert served.ttft_s[0] == pytest.approx(beside + alone.prefill_s, rel=2e-3)
    if output > 1:
        assert served.tpot_s[0] == pytest.approx(alone.tpot_s, rel=1e-2)
    assert served.prefilled_tokens == prompt - hit


@given(seed=st.integers(0, 1000), rate=st.floats(0.05, 3.0), reserve=st.booleans())
@settings(max_examples=15)
def test_conservation_and_little(seed, rate, reserve):
    mix = some_mix(seed)
    pool = 120_000.0
    rows, served = reference.serve_poisson(
        MODEL, mix, rate, 150, seed, pool, reserve_output=reserve, max_running_requests=16
    )
    assert np.isfinite(served.first_s).all()
    assert (served.first_s >= served.arrival_s + mix.before_prefill_s[rows]).all()
    assert (served.last_s >= served.first_s).all()
    # idle or busy, nothing else; work is conserved
    assert served.running_s.sum() == pytest.approx(served.last_s.max())
    assert served.running_s[1:].sum() == pytest.approx(served.busy_s)
    if reserve:
        assert served.preemptions == 0
    new = (mix.prompt_tokens - mix.hit_tokens)[rows].sum()
    assert served.prefilled_tokens >= new
    if served.preemptions == 0:
        assert served.prefilled_tokens == new
        # Little: sequences that decode are those between first and last token, up to the steps
        # that prefill nobody's last chunk
        decoding = (served.last_s - served.first_s).sum()
        area = served.decoding_s @ np.arange(served.decoding_s.size)
        assert area == pytest.approx(decoding, rel=1e-9)
    assert served.held_token_s <= pool * served.last_s.max() * (1 + 1e-12)


@given(seed=st.integers(0, 1000), rate=st.floats(0.1, 3.0))
@settings(max_examples=5)
def test_compiled_and_plain_agree(seed, rate):
    mix = some_mix(seed, longest=8000)
    both = [
        reference.serve_poisson(MODEL, mix, rate, 40, seed, 30_000.0, compiled=compiled)[1]
        for compiled in (True, False)
    ]
    assert both[0].last_s == pytest.approx(both[1].last_s, rel=1e-9)
    assert both[0].preemptions == both[1].preemptions


def test_prefill_of_one_step_alone_is_md1():
    # one output token, prompts of a whole budget: a server with constant service times
    mix = RequestMix(column(8192.0), column(1.0), column(0.0), column(0.0))
    service = step_time_s(MODEL, 8192, 0)
    for load in (0.3, 0.7):
        _, served = reference.serve_poisson(MODEL, mix, load / service, 200_000, 7, POOL)
        wait = served.ttft_s.mean() - service
        assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.04)


def test_first_come_first_served():
    mix = some_mix(3)
    rows, served = reference.serve_poisson(MODEL, mix, 2.0, 200, 1, POOL, reserve_output=True)
    order = np.argsort(served.arrival_s + mix.before_prefill_s[rows], kind="stable")
    assert (np.diff(served.first_s[order]) >= 0).all()


def test_a_full_pool_preempts_and_still_serves():
    count = 12
    served = reference.serve(
        MODEL,
        np.zeros(count),
        np.full(count, 1000.0),
        np.full(count, 500.0),
        np.zeros(count),
        np.zeros(count),
        5000.0,
    )
    assert served.preemptions > 0
    assert np.isfinite(served.last_s).all()
    with pytest.raises(ValueError, match="longer than the pool"):
        reference.serve(MODEL, *[column(v) for v in (0, 1000, 500, 0, 0)], 1200.0)
