"""One request: chunks, hits, tiers, and the arithmetic cases 5d and 7."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.latency import (
    decode_time_s,
    fetch_time_s,
    prefill_steps,
    prefill_time_s,
    request_latency,
    usable_hit_tokens,
)
from smetric_model.analytic.memory import kv_bytes_per_token
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.catalog.cluster import get_cluster
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm
from smetric_model.errors import SpecError

INSTANCE = InstanceSpec(get_llm("Qwen3-Coder-30B-A3B-Instruct"), get_gpu("H20"))
MODEL = step_model(INSTANCE)


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    # cases/arithmetic.md 5d: 32,768 reusable, 32,752 where the last block is recomputed to sample
    assert usable_hit_tokens(32_768, 32_768, 16) == 32_752
    # 5b: 40-token prompt, block 16, two blocks cached
    assert usable_hit_tokens(40, 40, 16) / 40 == 0.8


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.sampled_from([1, 16, 64, 512]))
def test_a_hit_is_whole_blocks_and_leaves_a_token(prompt: int, hit: int, block: int) -> None:
    used = int(usable_hit_tokens(prompt, hit, block))
    assert used % block == 0
    assert 0 <= used <= min(hit, prompt - 1)
    assert used + block > min(hit, prompt - 1)


@given(
    st.integers(0, 100_000), st.integers(0, 100_000), st.integers(0, 200), st.integers(0, 50_000)
)
def test_a_prefill_is_the_sum_of_its_chunks(new: int, cached: int, batch: int, ctx: int) -> None:
    budget = 8192
    chunk = budget - batch
    expected, done = 0.0, 0
    while done < new:
        p = min(chunk, new - done)
        expected += step_time_s(MODEL, p, cached + done, batch, ctx)
        done += p
    total = prefill_time_s(MODEL, new, cached, budget, batch, ctx)
    assert total == pytest.approx(expected, rel=1e-9)
    assert prefill_steps(new, budget, batch) == np.ceil(new / chunk)


def test_prefill_takes_arrays_of_any_shape() -> None:
    new = np.array([[10, 9000], [0, 40_000]])
    together = prefill_time_s(MODEL, new, 100, 8192, 2, 500)
    assert together.shape == (2, 2)
    for index, tokens in np.ndenumerate(new):
        alone = prefill_time_s(MODEL, int(tokens), 100, 8192, 2, 500)
        assert together[index] == pytest.approx(alone)


def test_decode_averages_over_the_growing_context() -> None:
    steps = [step_time_s(MODEL, 0, 0, 4, 20_000 + i) for i in range(0, 1001)]
    assert decode_time_s(MODEL, 4, 20_000, 1000) == pytest.approx(np.mean(steps), rel=1e-6)


lengths = st.integers(1, 120_000)


@given(lengths, st.integers(1, 2000), st.data())
def test_identities_of_one_request(prompt: int, output: int, data: st.DataObject) -> None:
    hit = data.draw(st.integers(0, prompt))
    tier = data.draw(st.sampled_from(["local", "dram", "rdma"]))
    concurrency = data.draw(st.integers(1, 64))
    latency = request_latency(INSTANCE, prompt, output, hit, tier, concurrency)
    # cases/arithmetic.md 8: TPOT × (output − 1) + TTFT = end to end
    if output == 1:
        assert np.isnan(latency.tpot_s)
        assert latency.e2e_s == latency.ttft_s
    else:
        assert latency.ttft_s + latency.tpot_s * (output - 1) == pytest.approx(latency.e2e_s)
    assert latency.computed_prompt_tokens + latency.reused_prompt_tokens == prompt
    parts = latency.host_s + latency.fetch_s + latency.prefill_s
    assert parts == pytest.approx(latency.ttft_s)
    assert all(
        value >= 0
        for value in dataclasses.asdict(latency).values()
        if isinstance(value, float) and not np.isnan(value)
    )


@given(lengths, st.data())
def test_a_local_hit_never_slows_a_request_down(prompt: int, data: st.DataObject) -> None:
    hit = data.draw(st.integers(0, prompt))
    cold = request_latency(INSTANCE, prompt, 2)
    hot = request_latency(INSTANCE, prompt, 2, hit, "local")
    # a shorter tail may be cut into chunks at other places: allow what one kernel's tile costs
    assert hot.ttft_s <= cold.ttft_s * 1.001


def test_farther_tiers_take_longer() -> None:
    times = [
        request_latency(INSTANCE, 30_000, 2, 29_000, tier).ttft_s
        for tier in ("local", "dram", "rdma")
    ]
    assert times == sorted(times)
    assert times[0] < times[1] < times[2]


def test_load_or_recompute() -> None:
    """cases/arithmetic.md 7: break-even bandwidth = KV bytes per token × prefill tokens/s."""
    assert pytest.approx(23.08e9, rel=1e-3) == 524_288 * 44_025
    llm = get_llm("Qwen3-32B")
    tokens = 32_768
    # linear layers and causal attention at 60 % of 148 TFLOPS; load at 50 GB/s
    linear = 2 * llm.params.active_non_embedding * tokens
    attention = llm.attention
    causal = 4 * attention.layers * attention.heads * attention.head_dim * tokens**2 / 2
    assert (linear + causal) / (0.6 * 148e12) == pytest.approx(35.7, rel=0.01)
    load = tokens * kv_bytes_per_token(InstanceSpec(llm, get_gpu("H20"))) / 50e9
    assert load == pytest.approx(0.172, rel=0.01)
    # our own roofline with the same efficiency everywhere and nothing else gives the same
    flat = MODEL._replace(
        dense_flop_s_per_token=2 * llm.params.active_non_embedding / (0.6 * 148e12),
        dense_weights_s=0.0,
        experts=0.0,
        attention_pair_s=4
        * attention.layers
        * attention.heads
        * attention.head_dim
        / (0.6 * 148e12),
        attention_tile_tokens=0.0,
        kv_token_s=0.0,
        gap_s=0.0,
        eager_launch_s=0.0,
        head_token_s=0.0,
        head_weights_s=0.0,
    )
    assert prefill_time_s(flat, tokens, 0, 8192) == pytest.approx(35.7, rel=0.01)


@pytest.mark.parametrize(("rate", "pays"), [(30e9, True), (1e6, False)])
def test_advice_says_when_reuse_is_a_loss(rate: float, pays: bool) -> None:
    cluster = dataclasses.replace(get_cluster(), nic_bytes_per_s=rate, nic_efficiency=1.0)
    latency = request_latency(INSTANCE, 20_000, 2, 20_000, "rdma", cluster=cluster)
    size = latency.reused_prompt_tokens * kv_bytes_per_token(INSTANCE)
    # the break-even link moves the hit in the time it takes to recompute it
    slower = size / latency.recompute_s > rate
    assert slower is not pays
    assert ("saves" in latency.advice) is pays


def test_fetching_nothing_takes_no_time() -> None:
    assert fetch_time_s(INSTANCE, get_cluster(), 0, "rdma") == 0
    times = fetch_time_s(INSTANCE, get_cluster(), np.array([0, 100, 10_000]), "dram")
    assert times[0] == 0
    assert times[1] < times[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "prompt_tokens is 0; it must be at least 1"),
        ((1, 0), "output_tokens is 0"),
        ((10, 1, 11), "hit_tokens is 11; it must lie between 0 and prompt_tokens = 10"),
        ((10, 1, 5, "disk"), "hit_tier is 'disk'; one of local, dram, rdma"),
        ((10, 1, 0, "local", 0), "concurrency is 0"),
    ],
)
def test_wrong_requests_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        request_latency(INSTANCE, *arguments)
