"""What happens to a cluster in the minutes after an event, simulated with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.operations.findings import Progress, silent

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["binned", "recovered_s", "with_and_without"]

_SUMS = ("prompt_tokens", "local_tokens", "global_tokens")
_IN_A_ROW = 3  # bins whose mean must be back before a curve counts as recovered


def binned(requests: pd.DataFrame, from_s: float, bin_s: float) -> pd.DataFrame:
    """Sum a simulation's requests over bins of their arrival.

    Parameters
    ----------
    requests : DataFrame
        Table of the requests of an outcome.
    from_s : float
        Where the first bin begins [s].
    bin_s : float
        Width of a bin [s].

    Returns
    -------
    DataFrame
        One line a bin, by its number: ``requests`` (servable ones), ``within_slo``, ``failed``,
        ``prompt_tokens``, ``local_tokens``, ``global_tokens``.
    """
    import pandas as pd

    servable = requests[requests["status"] != "unservable"]
    number = np.floor((servable["arrival_s"].to_numpy() - from_s) / bin_s).astype(np.int64)
    served = servable["status"].to_numpy() == "served"
    sums = pd.DataFrame(
        {
            "bin": number,
            "requests": 1,
            "within_slo": servable["within_slo"].to_numpy().astype(np.int64),
            "failed": (servable["status"].to_numpy() == "failed").astype(np.int64),
            **{name: servable[name].to_numpy() * served for name in _SUMS},
        }
    )
    return sums.groupby("bin").sum()


def with_and_without(
    scenario: Scenario,
    event: Scenario,
    seeds: Sequence[int],
    bin_s: float,
    *,
    emptied: Sequence[int] = (),
    trace: Trace | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Simulate a scenario and the same with an event, seed by seed, and sum over the seeds.

    Parameters
    ----------
    scenario, event : Scenario
        Without and with the event; bins count from the beginning of their windows.
    seeds : sequence of int
        The same for both.
    bin_s : float
        Width of a bin [s].
    emptied : sequence of int, optional
        Instances whose requests are summed up apart as well.
    trace : Trace, optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is simulated.

    Returns
    -------
    DataFrame
        One line a bin and run: ``run`` is ``without`` or ``with``, ``instances`` is ``all`` or
        ``emptied``, ``age_s`` the middle of the bin from the beginning of the window, sums as of
        :func:`binned`, and ``local_ratio``, ``global_ratio``, ``reused_ratio`` (÷ prompt tokens),
        ``within_slo_ratio``.
    """
    import pandas as pd

    from smetric_model.simulate import simulate

    parts = []
    for count, seed in enumerate(seeds, 1):
        for run, asked in (("without", scenario), ("with", event)):
            progress(f"simulating {run} it, seed {count} of {len(seeds)}")
            outcome = simulate(asked.replace(seed=seed), trace)
            requests = outcome.requests
            assert requests is not None
            looked_at = {"all": requests}
            if len(emptied):
                there = requests["instance"].isin(list(emptied))
                looked_at["emptied"] = requests[there]
            for name, rows in looked_at.items():
                sums = binned(rows, asked.workload.warmup_s, bin_s)
                parts.append(sums.assign(run=run, instances=name).reset_index())
    table = pd.concat(parts).groupby(["instances", "run", "bin"], as_index=False).sum()
    prompt = np.maximum(table["prompt_tokens"].to_numpy(dtype=float), 1.0)
    reused = table["local_tokens"] + table["global_tokens"]
    return table.assign(
        age_s=(table["bin"] + 0.5) * bin_s,
        local_ratio=table["local_tokens"] / prompt,
        global_ratio=table["global_tokens"] / prompt,
        reused_ratio=reused / prompt,
        within_slo_ratio=table["within_slo"] / table["requests"],
    )


def recovered_s(curves: pd.DataFrame, column: str, tolerance_ratio: float, bin_s: float) -> float:
    """Return when a curve with the event is back at the one without.

    Parameters
    ----------
    curves : DataFrame
        From :func:`with_and_without`.
    column : str
        Which of its ratios.
    tolerance_ratio : float
        How far below the mean of the run without counts as back, ÷ that mean.
    bin_s : float
        Width of a bin [s].

    Returns
    -------
    float
        Beginning of the first bin that is back and with it the mean of itself and the two that
        follow; ``inf`` where there is none [s].
    """
    without = curves[curves["run"] == "without"]
    after = curves[curves["run"] == "with"].sort_values("bin")
    weight = "requests" if column == "within_slo_ratio" else "prompt_tokens"
    steady = float(np.average(without[column], weights=without[weight]))
    values = after[column].to_numpy()
    weights = after[weight].to_numpy(dtype=float)
    wanted = (1 - tolerance_ratio) * steady
    for first in range(values.size - _IN_A_ROW + 1):
        span = slice(first, first + _IN_A_ROW)
        if values[first] >= wanted and np.average(values[span], weights=weights[span]) >= wanted:
            return float(after["bin"].iloc[first]) * bin_s
    return float("inf")
