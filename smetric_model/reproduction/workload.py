"""Figures of the paper's traces (claims C01 to C10), from the presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smetric_model.workload.trace import Trace

__all__ = ["execution_times", "other_trace", "workload_row"]

#: instances of the dispatch in Figure 9: the paper does not say, its testbed has so many
INSTANCES = 32
#: others that decode beside a request, in the stated execution times
_DECODE_BATCH = 8
#: the first minutes fill the cluster [s]
_FILLED_S = 300.0


def execution_times(trace: Trace) -> NDArray[np.float64]:
    """Return stated execution times: a request beside others that decode, without queue.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    ndarray, shape (requests,)
        Qwen3-Coder-30B-A3B on one H20 (the paper's instance): prefill of what ideal reuse leaves,
        then decode in a batch of 8 at the request's own context [s].
    """
    from smetric_model.analytic.latency import decode_time_s, host_time_s, prefill_time_s
    from smetric_model.analytic.step_model import step_model
    from smetric_model.catalog.gpu import get_gpu
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.catalog.llm import get_llm
    from smetric_model.workload.reuse import ideal_reuse

    instance = InstanceSpec(get_llm("Qwen3-Coder-30B-A3B-Instruct"), get_gpu("H20"))
    model = step_model(instance)
    prompt = trace.column("prompt_tokens").astype(np.float64)
    output = np.maximum(trace.column("output_tokens").astype(np.float64), 1.0)
    hit = np.minimum(ideal_reuse(trace), prompt - 1)
    budget = instance.token_budget
    prefill = prefill_time_s(model, prompt - hit, hit, budget, _DECODE_BATCH - 1, prompt)
    step = decode_time_s(model, _DECODE_BATCH, prompt, output)
    times = host_time_s(instance, prompt) + prefill + (output - 1) * step
    return np.asarray(times, dtype=np.float64)


def other_trace(preset: str) -> str:
    """Name of the same preset for the paper's other trace.

    Parameters
    ----------
    preset : str
    """
    return preset.replace("-trace-1-", "-trace-2-")


def workload_row(preset: str, seed: int) -> dict[str, float | str]:
    """Figures of a preset, at its own rate and window.

    Parameters
    ----------
    preset : str
    seed : int

    Returns
    -------
    dict
        ``preset``, ``seed``, those of
        :func:`~smetric_model.workload.synthesis_statistics.traffic_statistics`, and
        ``requests_per_instance_and_minute`` and ``imbalance_median`` of the paper's dispatch.
    """
    from smetric_model.workload import dispatch_balance
    from smetric_model.workload.synthesis import load_preset
    from smetric_model.workload.synthesis_statistics import traffic_statistics

    trace = load_preset(preset, seed=seed)
    table = dispatch_balance(trace, INSTANCES, service_s=execution_times(trace))
    full = table[table["start_s"] >= _FILLED_S].iloc[:-1]  # the last window is cut
    return {
        "preset": preset,
        "seed": seed,
        **traffic_statistics(trace),
        "requests_per_instance_and_minute": float(full["requests_per_instance"].mean()),
        "imbalance_median": float(full["imbalance_processed_tokens"].median()),
    }
