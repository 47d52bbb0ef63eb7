r"""From measurements of running engines to a GPU file: the hardware as the model needs it.

The instance model's own form is fitted, the roofline by operator group of
:mod:`smetric_model.analytic.step_time`, with twelve numbers: seconds per FLOP of matrices and of
attention, seconds per byte of weights and of KV, a fixed cost of a step, one of a sequence in it,
one of a request and of a prompt token before the engine takes it up, one of a request that holds
up the engine, the decode steps that a request waits through, and one of a fetch with its rate.
What is minimised is the mean square of :math:`\ln(\mathrm{model}/\mathrm{measured})` over medians
of repeats.  The peak rates in the file are the best rates found: there is no data sheet of a core
to compare with, and only the products of peak and efficiency enter a step's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import LiveError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.catalog.llm import Llm

__all__ = ["ENGINE", "Calibration", "fit", "write_gpu_file"]

#: name of the engine in the file's efficiencies
ENGINE = "vllm"
_NAMES = (
    "matrix_flop_per_s",
    "attention_flop_per_s",
    "weight_bytes_per_s",
    "kv_bytes_per_s",
    "step_s",
    "sampled_token_s",
    "request_s",
    "request_s_per_token",
    "request_engine_s",
    "request_wait_steps",
)
_START = (1e11, 2e10, 2e10, 2e10, 2e-3, 1e-4, 5e-3, 1e-6, 2e-3, 0.3)
_LOW = (1e8, 1e7, 1e8, 1e8, 1e-6, 1e-9, 1e-6, 1e-10, 1e-7, 1e-3)
_HIGH = (1e18, 1e18, 1e15, 1e15, 1.0, 1e-1, 1.0, 1e-3, 1.0, 1e2)


@dataclass(frozen=True)
class Calibration:
    """What was fitted, and how well.

    Attributes
    ----------
    numbers : dict of str to float
        The fitted numbers, by name and unit.
    points : DataFrame
        A line a point (median of repeats and engines): ``kind``, ``tokens``, ``batch``,
        ``context_tokens``, ``hit_tokens``, ``held_out``, ``measured_s``, ``spread_ratio`` (half
        of the range of the middle half over the median), ``model_s``, ``error_ratio``.
    """

    numbers: dict[str, float]
    points: pd.DataFrame

    def errors(self) -> pd.DataFrame:
        """Mean and largest relative error by kind, of the points fitted and held out."""
        points = self.points.assign(size=self.points["error_ratio"].abs())
        table = points.groupby(["kind", "held_out"])["size"].agg(["count", "mean", "max"])
        return table.reset_index().rename(columns={"mean": "mean_error", "max": "largest_error"})


def _gpu_tables(
    numbers: dict[str, float], llm: Llm, memory_mib: int, source: str
) -> dict[str, Any]:
    """Content of the GPU file."""
    from smetric_model.datafiles import load_toml

    flop = max(numbers["matrix_flop_per_s"], numbers["attention_flop_per_s"])
    bandwidth = max(numbers["weight_bytes_per_s"], numbers["kv_bytes_per_s"])
    matrix, attention = (numbers[f"{name}_flop_per_s"] / flop for name in ("matrix", "attention"))
    weight, kv = (numbers[f"{name}_bytes_per_s"] / bandwidth for name in ("weight", "kv"))
    pcie = load_toml("fabric.toml")["pcie"]["measured"]["efficiency"]
    fetch_s = numbers.get("fetch_s", 0.0)
    per_layer = numbers["step_s"] / llm.layers
    dtypes = sorted({llm.weight_dtype, llm.activation_dtype, llm.kv_dtype, "bf16"})
    names = [name for name in dtypes if name]
    return {
        "gpu": {
            "memory_mib": memory_mib,
            "memory_bandwidth_bytes_per_s": bandwidth,
            "nvlink_bytes_per_s": 0.0,
            # transfers reach this share of it, by data/fabric.toml
            "pcie_bytes_per_s": numbers.get("fetch_bytes_per_s", 1e9) / pcie,
            "flops": dict.fromkeys(names, flop),
            "source": source,
        },
        "efficiencies": {
            ENGINE: {
                "dense_compute": dict.fromkeys(names, matrix),
                "dense_bandwidth": dict.fromkeys(names, weight),
                "expert_compute": dict.fromkeys(names, matrix),
                "expert_bandwidth": dict.fromkeys(names, weight),
                "expert_call_s": dict.fromkeys(names, 0.0),
                "head_bandwidth": weight,
                "attention_compute": attention,
                "attention_bandwidth": dict.fromkeys(names, kv),
                "attention_stream_bandwidth": kv,
                "attention_stream_group": 1.0,
                "attention_tile_tokens": 0.0,
                "expert_tile_tokens": 1.0,
                "graph_s_per_dense_layer": per_layer,
                "graph_s_per_moe_layer": per_layer,
                "eager_s_per_layer": 0.0,
                "graph_capture_tokens": 10**9,
                "all_reduce_s": 0.0,
                "all_reduce_bandwidth": 1.0,
                "request_host_s": numbers["request_s"] + numbers.get("router_s", 0.0),
                "request_host_s_per_token": numbers["request_s_per_token"],
                "dram_fetch_s": fetch_s,
                "rdma_fetch_s": fetch_s,
                "sampled_token_s": numbers["sampled_token_s"],
                "request_engine_s": numbers["request_engine_s"],
                "request_wait_steps": numbers["request_wait_steps"],
                "provenance": {"all": source},
            }
        },
    }


def write_gpu_file(
    path: Path, numbers: dict[str, float], llm: Llm, memory_mib: int, source: str
) -> None:
    """Write the file that ``engine.gpu`` of a scenario may name.

    Parameters
    ----------
    path : Path
        The file.
    numbers : dict
        Of :class:`Calibration`.
    llm : Llm
        The model that was served: the fixed cost of a step is kept per layer of it.
    memory_mib : int
        Memory of one instance [MiB].
    source : str
        What was measured, when.
    """
    import tomli_w

    path.write_text(tomli_w.dumps(_gpu_tables(numbers, llm, memory_mib, source)))


def _instance(numbers: dict[str, float], llm: Llm, block_tokens: int, budget: int) -> Any:
    from smetric_model.analytic.efficiencies import Efficiencies
    from smetric_model.catalog.gpu import Gpu
    from smetric_model.catalog.instance import InstanceSpec

    tables = _gpu_tables(numbers, llm, 1 << 20, "fit")
    facts = tables["gpu"]
    gpu = Gpu(
        "fit",
        facts["memory_mib"] << 20,
        facts["memory_bandwidth_bytes_per_s"],
        facts["flops"],
        0.0,
        facts["pcie_bytes_per_s"],
    )
    fitted = Efficiencies(**tables["efficiencies"][ENGINE], fitted_for="fit")
    instance = InstanceSpec(
        llm, gpu, token_budget=budget, block_tokens=block_tokens, kv_pool_tokens=1 << 20
    )
    return instance, fitted


def _model_s(
    points: pd.DataFrame, numbers: dict[str, float], llm: Llm, block_tokens: int, budget: int
) -> NDArray[np.float64]:
    """Return the instance model's time of each point [s]."""
    from smetric_model.analytic.latency import prefill_steps, prefill_time_s
    from smetric_model.analytic.memory import kv_bytes_per_token
    from smetric_model.analytic.step_model import step_model
    from smetric_model.analytic.step_time import step_time_s

    instance, fitted = _instance(numbers, llm, block_tokens, budget)
    model = step_model(instance, fitted)
    kind = points["kind"].to_numpy()
    tokens, batch, context, hit = (
        points[name].to_numpy(float) for name in ("tokens", "batch", "context_tokens", "hit_tokens")
    )
    decode, beside, late = (kind == name for name in ("decode", "beside", "late"))
    batch = np.where(beside | late | decode, batch, 0.0)
    step = np.asarray(step_time_s(model, 0, 0, batch, np.where(decode, tokens, context)))
    others = np.where(decode, 0.0, batch)
    prefill = np.asarray(prefill_time_s(model, tokens - hit, hit, budget, others, context))
    host = fitted.request_host_s + fitted.request_host_s_per_token * tokens
    # one that comes at any time finds half a step to go
    seconds = host + (0.5 + fitted.request_wait_steps) * step + prefill
    seconds = np.where(
        beside, prefill - prefill_steps(tokens - hit, budget, others) * step, seconds
    )
    seconds = np.where(decode, step, seconds)
    fetch = kind == "fetch"
    rate = numbers.get("fetch_bytes_per_s", np.inf)
    fetched = fitted.dram_fetch_s + hit * kv_bytes_per_token(instance) / rate
    return np.asarray(seconds + np.where(fetch, fetched, 0.0))


def fit(measured: pd.DataFrame, llm: Llm, block_tokens: int, token_budget: int) -> Calibration:
    """Fit the instance model to measurements of engines.

    Parameters
    ----------
    measured : DataFrame
        Of :func:`smetric_model.live.microbenchmark.microbenchmark`.
    llm : Llm
        What the engines serve.
    block_tokens, token_budget : int
        Of the engines.

    Returns
    -------
    Calibration
        The points held out have no part in the fit.

    Raises
    ------
    LiveError
        If there are too few points.
    """
    from scipy.optimize import least_squares

    keys = ["kind", "tokens", "batch", "context_tokens", "held_out"]
    grouped = measured.groupby(keys)
    points = grouped.agg(
        measured_s=("seconds", "median"),
        low=("seconds", lambda v: v.quantile(0.25)),
        high=("seconds", lambda v: v.quantile(0.75)),
        hit_tokens=("hit_tokens", "median"),
    ).reset_index()
    points["spread_ratio"] = (points["high"] - points["low"]) / 2 / points["measured_s"]
    points = points.drop(columns=["low", "high"])
    used = points[~points["held_out"]]
    # what a prompt costs others may be less than the noise
    steps = used[(used["kind"] != "fetch") & (used["measured_s"] > 1e-3)]
    if len(steps) < len(_NAMES):
        raise LiveError(f"{len(steps)} points measured: at least {len(_NAMES)} are needed")

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers = dict(zip(_NAMES, np.exp(logs).tolist(), strict=True))
        model = _model_s(steps, numbers, llm, block_tokens, token_budget)
        logs_off: NDArray[np.float64] = np.log(model / steps["measured_s"].to_numpy())
        return logs_off

    best = None
    chance = np.random.default_rng(0)
    for trial in range(6):  # the maxima of a roofline make local minima
        start = np.log(_START) + (trial > 0) * chance.normal(0, 1, len(_NAMES))
        found = least_squares(residuals, start, bounds=(np.log(_LOW), np.log(_HIGH)))
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    numbers = dict(zip(_NAMES, np.exp(best.x).tolist(), strict=True))
    fetches = used[used["kind"] == "fetch"]
    if len(fetches) >= 2:
        numbers |= _fetch(fetches, numbers, llm, block_tokens, token_budget)
    points["model_s"] = _model_s(points, numbers, llm, block_tokens, token_budget)
    points["error_ratio"] = points["model_s"] / points["measured_s"] - 1
    return Calibration(numbers, points)


def _fetch(
    fetches: pd.DataFrame, numbers: dict[str, float], llm: Llm, block_tokens: int, budget: int
) -> dict[str, float]:
    """Return fixed time and rate of a fetch: a line through what TTFT has beyond the rest."""
    from scipy.optimize import lsq_linear

    from smetric_model.analytic.memory import kv_bytes_per_token

    rest = _model_s(fetches, numbers, llm, block_tokens, budget)
    instance, _ = _instance(numbers, llm, block_tokens, budget)
    size = fetches["hit_tokens"].to_numpy(float) * kv_bytes_per_token(instance)
    seconds = fetches["measured_s"].to_numpy() - rest
    weight = 1 / fetches["measured_s"].to_numpy()  # relative errors
    columns = np.stack([np.ones(size.size), size], axis=1) * weight[:, None]
    # a fetch cannot take less than no time, nor go faster than 1 TB/s
    answer = lsq_linear(columns, seconds * weight, bounds=([0.0, 1e-12], [np.inf, np.inf]))
    return {"fetch_s": float(answer.x[0]), "fetch_bytes_per_s": float(1 / answer.x[1])}
