"""Laws of the step time, and its known pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import (
    GROUPS,
    StepModel,
    experts_touched,
    padded_rows,
    step_breakdown,
    step_groups,
    step_time_s,
)
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm
from smetric_model.errors import SpecError

CASES = [
    ("Qwen3-Coder-30B-A3B-Instruct", "H20", 1, "vllm", "graph"),
    ("Qwen3-Coder-30B-A3B-Instruct", "H20", 1, "vllm", "eager"),
    ("Qwen3-235B-A22B-FP8", "H20", 4, "vllm", "graph"),
    ("Qwen3-32B", "H200", 2, "sglang", "graph"),
    ("Qwen3-Next-80B-A3B", "H200", 2, "vllm", "graph"),
    ("DeepSeek-V3", "H200", 8, "vllm", "graph"),
    ("Qwen3-0.6B", "L40S", 1, "sglang", "graph"),
]


def model_of(llm: str, gpu: str, tp: int, engine: str, mode: str) -> StepModel:
    return step_model(InstanceSpec(get_llm(llm), get_gpu(gpu), tp=tp, engine=engine, mode=mode))


MODELS = [model_of(*case) for case in CASES]
models = st.sampled_from(MODELS)
tokens = st.integers(0, 16_384)
contexts = st.integers(0, 200_000)
batches = st.integers(0, 512)


def test_experts_touched_are_those_of_the_arithmetic_case() -> None:
    # cases/arithmetic.md 4: 128 experts, 8 chosen, batch 1 / 8 / 20 / 64
    touched = experts_touched(128, 8, np.array([1, 8, 20, 64]))
    np.testing.assert_allclose(touched, [8.00, 51.62, 92.79, 125.94], atol=0.005)


@given(st.integers(1, 512), st.data(), st.integers(0, 10_000))
def test_experts_touched_stays_between_one_tokens_and_all(
    experts: int, data: st.DataObject, n: int
) -> None:
    k = data.draw(st.integers(1, experts))
    touched = float(experts_touched(experts, k, n))
    assert touched == pytest.approx(0 if n == 0 else min(k, experts), abs=1e-6) or touched > k
    assert touched <= experts * (1 + 1e-12)
    assert touched <= k * n + 1e-9
    if n:
        assert float(experts_touched(experts, k, 1)) == pytest.approx(k)


@given(st.floats(1, 1e6), st.floats(1, 512), st.sampled_from([16.0, 64.0, 128.0]))
def test_padding_adds_rows_and_never_more_than_a_tile_each(
    assigned: float, touched: float, tile: float
) -> None:
    touched = min(touched, assigned)
    rows = float(padded_rows(assigned, touched, tile))
    assert rows >= assigned * (1 - 1e-12)
    assert rows <= assigned + tile * touched + 1e-6


@given(models, tokens, contexts, batches, contexts)
def test_a_step_is_the_sum_of_its_groups(
    model: StepModel, p: int, c: int, d: int, context: int
) -> None:
    if p + d == 0:
        assert step_time_s(model, p, c, d, context) == 0
        with pytest.raises(SpecError, match="an empty step"):
            step_breakdown(model, p, c, d, context)
        return
    step = step_breakdown(model, p, c, d, context)
    assert tuple(step.groups) == GROUPS
    assert all(group["time_s"] >= 0 for group in step.groups.values())
    assert sum(g["time_s"] for g in step.groups.values()) == pytest.approx(step.step_time_s)
    assert sum(g["share_ratio"] for g in step.groups.values()) == pytest.approx(1)
    assert step.step_time_s == pytest.approx(step_time_s(model, p, c, d, context), rel=1e-12)
    assert step.bound_by in ("compute", "memory", "network", "launch")


@given(models, tokens, contexts, batches, contexts, st.sampled_from("pcdk"), st.integers(1, 5000))
def test_more_work_never_takes_less_time(
    model: StepModel, p: int, c: int, d: int, context: int, grows: str, more: int
) -> None:
    before = step_time_s(model, p, c, d, context)
    after = step_time_s(
        model,
        p + more * (grows == "p"),
        c + more * (grows == "c"),
        d + more * (grows == "d"),
        context + more * (grows == "k"),
    )
    assert after >= before * (1 - 1e-12)


@given(models, st.integers(1, 8192), contexts, batches, contexts)
def test_two_chunks_in_one_step_take_no_longer_than_one_after_the_other(
    model: StepModel, p: int, c: int, d: int, context: int
) -> None:
    """Mixed steps share the reading of weights: never slower than apart.

    One exception is real: a step that no longer fits a captured graph is launched eagerly.
    """
    captured = model.graph_capture_tokens
    assume(not (max(p, d) <= captured < p + d))
    apart = step_time_s(model, p, c) + step_time_s(model, 0, 0, d, context)
    assert step_time_s(model, p, c, d, context) <= apart * 1.02


@given(models, st.integers(2, 8192), contexts)
def test_chunking_changes_no_attention_work_but_the_tiles(model: StepModel, p: int, c: int) -> None:
    first = p // 2
    pairs = [
        first * (c + first / 2) + (p - first) * (c + first + (p - first) / 2),
        p * (c + p / 2),
    ]
    assert pairs[0] == pytest.approx(pairs[1])
    whole = step_groups(model, float(p), pairs[1], float(c + p), 0.0, 0.0, 1.0)[2]
    floor = model.attention_pair_s * pairs[0]
    assert float(whole) >= floor * (1 - 1e-12)


@given(models, st.lists(st.tuples(tokens, contexts, batches, contexts), min_size=1, max_size=40))
def test_arrays_give_what_scalars_give(
    model: StepModel, rows: list[tuple[int, int, int, int]]
) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    together = step_time_s(model, *columns)
    assert together.shape == (len(rows),)
    np.testing.assert_allclose(together, [step_time_s(model, *row) for row in rows], rtol=1e-12)


def test_large_arrays_are_sliced_without_a_seam() -> None:
    p = np.arange(40_000) % 9000
    whole = step_time_s(MODELS[0], p, 5, 3, 700)
    np.testing.assert_array_equal(whole[:9000], step_time_s(MODELS[0], p[:9000], 5, 3, 700))
    grid = step_time_s(MODELS[0], p.reshape(200, 200), 5, 3, 700)
    np.testing.assert_array_equal(grid, whole.reshape(200, 200))


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("position", range(4))
def test_outside_the_domain(wrong: float, position: int) -> None:
    values = [10.0, 10.0, 10.0, 10.0]
    values[position] = wrong
    if wrong == -1.0 or np.isnan(wrong):
        assert np.isnan(step_time_s(MODELS[0], *values))
    with pytest.raises(SpecError, match="must be a finite number >= 0"):
        step_breakdown(MODELS[0], *values)


def test_eager_takes_the_longer_of_launching_and_computing() -> None:
    graph, eager = MODELS[0], MODELS[1]
    # a small step waits for the CPU, a large one hides it
    assert step_time_s(eager, 0, 0, 1, 100) == pytest.approx(eager.eager_launch_s)
    assert step_time_s(eager, 8192) == pytest.approx(step_time_s(graph, 8192))
    # a captured-graph engine launches what it has not captured eagerly
    edge = graph.graph_capture_tokens
    assert step_time_s(graph, edge + 1) >= graph.eager_launch_s
    assert step_time_s(graph, 16) < graph.eager_launch_s


def test_one_token_reads_eight_experts_and_a_chunk_all() -> None:
    """Reading every expert at batch 1 is the classic mistake (TPOT several times too long)."""
    model = MODELS[0]
    per_expert = model.expert_weights_s
    one = step_breakdown(model, 0, 0, 1, 0).groups["experts"]
    assert one["time_s"] == pytest.approx(8 * per_expert)
    assert one["bound_by"] == "memory"
    assert step_breakdown(model, 8192).groups["experts"]["bound_by"] == "compute"


def test_tensor_parallelism_splits_work_and_adds_all_reduces() -> None:
    one, two = (model_of("Qwen3-32B", "H20", tp, "vllm", "graph") for tp in (1, 2))
    assert two.dense_weights_s == pytest.approx(one.dense_weights_s / 2, rel=1e-3)
    assert two.attention_pair_s == pytest.approx(one.attention_pair_s / 2)
    assert two.kv_token_s == pytest.approx(one.kv_token_s / 2)
    assert one.all_reduce_latency_s == 0 < two.all_reduce_latency_s
    # KV heads beyond their number are replicated: reading does not get faster
    four, eight = (model_of("Qwen3-30B-A3B", "H20", tp, "vllm", "graph") for tp in (4, 8))
    assert eight.kv_token_s == pytest.approx(four.kv_token_s)


def test_a_state_of_fixed_size_costs_the_same_at_any_context() -> None:
    model = model_of("Qwen3-Next-80B-A3B", "H200", 2, "vllm", "graph")
    linear = [
        step_breakdown(model, 0, 0, 4, context).groups["linear_attention"]["time_s"]
        for context in (100, 100_000)
    ]
    assert linear[0] == pytest.approx(linear[1])
    assert linear[0] > 0
