"""Fixed-length open-loop loads, as the benchmarks that come with engines make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["fixed_length_trace", "with_fixed_load"]

Arrivals = Literal["poisson", "uniform"]


def fixed_length_trace(
    prompt_tokens: int,
    output_tokens: int,
    requests: int,
    rate_rps: float,
    seed: int = 0,
    arrivals: Arrivals = "poisson",
) -> Trace:
    """Make a load of equal requests that share nothing.

    Parameters
    ----------
    prompt_tokens, output_tokens : int
        Lengths of every request [tokens].
    requests : int
        How many.
    rate_rps : float
        Arrivals per second [1/s]; infinite: all at once.
    seed : int, default 0
        Of the arrivals.
    arrivals : {'poisson', 'uniform'}, default 'poisson'
        Random arrivals, or equal gaps.

    Returns
    -------
    Trace
        Without block ids; every request is a session of its own.

    Raises
    ------
    SpecError
        If a number is not positive.
    """
    import pandas as pd

    from smetric_model.workload.trace import LoadReport, Trace

    for name, value in (
        ("prompt_tokens", prompt_tokens),
        ("output_tokens", output_tokens),
        ("requests", requests),
        ("rate_rps", rate_rps),
    ):
        if not value > 0:
            raise SpecError(f"{name} = {value!r}: a number above 0 is needed")
    gaps = np.full(requests, 1 / rate_rps)
    if arrivals == "poisson":
        gaps = np.random.default_rng(seed).exponential(1.0, requests) / rate_rps
    arrival = np.cumsum(gaps) - gaps[0]
    rows = np.arange(requests)
    empty = pd.Categorical([None] * requests, categories=[])
    table = pd.DataFrame(
        {
            "request_id": rows,
            "session_id": rows,
            "turn": np.zeros(requests, np.int64),
            "parent": np.full(requests, -1),
            "arrival_s": arrival,
            "prompt_tokens": np.full(requests, prompt_tokens),
            "output_tokens": np.full(requests, output_tokens),
            "think_time_s": np.full(requests, np.nan),
            "e2e_s": np.full(requests, np.nan),
            "trigger": empty,
            "model": empty,
            "source_line": np.full(requests, -1),
        }
    )
    source = f"{requests} x {prompt_tokens}+{output_tokens} tokens, {arrivals}"
    return Trace(table, None, None, "shared", LoadReport(), source, "fixed-length")


def with_fixed_load(scenario: Scenario, trace: Trace) -> Scenario:
    """Return the scenario with a fixed load in place of its workload: all of it is the window.

    Parameters
    ----------
    scenario : Scenario
        Everything but the workload.
    trace : Trace
        From :func:`fixed_length_trace`.

    Returns
    -------
    Scenario
        Open loop, cold, no warm-up; the window ends just after the last arrival.
    """
    last = float(trace.column("arrival_s").max())
    return scenario.replace(
        workload={
            "trace": trace.source,
            "rate_rps": "trace",
            "window_s": last * (1 + 1e-9) + 1e-3,
            "warmup_s": 0.0,
            "start": "cold",
            "loop": "open",
        }
    )
