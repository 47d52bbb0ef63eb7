"""What each group of equal instances did, from the tables of requests and instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario

__all__ = ["group_table"]

_LATENCIES = {"ttft": "instance", "tpot": "decode_instance", "queue": "instance"}
_QUANTILES = {"p50": 0.5, "p90": 0.9}


def group_table(
    scenario: Scenario, requests: pd.DataFrame, instances: pd.DataFrame
) -> pd.DataFrame:
    """Return one line a group of instances, inside the window.

    Parameters
    ----------
    scenario : Scenario
        For what the groups are.
    requests, instances : DataFrame
        Tables of the outcome.

    Returns
    -------
    DataFrame
        ``group``, its ``gpu`` and ``tp``, how many ``instances``; the sums of their ``requests``,
        ``first_turns`` and tokens per second (``total_tps`` …); the means of their
        ``…_utilisation_ratio``; and of the requests placed there ``within_slo_ratio`` and mean,
        median and 90th percentile of ``ttft``, ``tpot`` and ``queue`` [s].  With disaggregated
        serving TPOT is that of the requests that decode there, the rest of those prefilled there
        (NaN for a group that does not).
    """
    import pandas as pd

    group_of = instances["group"].to_numpy()
    rows = []
    for number, alike in enumerate(scenario.by_group()):
        lines = instances[group_of == number]
        sums = [name for name in lines if name.endswith("_tps")]
        means = [name for name in lines if name.endswith("_utilisation_ratio")]
        here = {
            where: requests[_of_group(requests[where].to_numpy(), group_of, number)]
            for where in ("instance", "decode_instance")
            if where in requests
        }
        here.setdefault("decode_instance", here["instance"])
        placed = here["instance"]
        servable = placed["status"] != "unservable"
        row: dict[str, Any] = {
            "group": number,
            "gpu": alike.engine.gpu,
            "tp": alike.engine.tp,
            "instances": len(lines),
            **{name: int(lines[name].sum()) for name in ("requests", "first_turns")},
            **{name: float(lines[name].sum()) for name in sums},
            **{name: float(lines[name].mean()) for name in means},
            "within_slo_ratio": float(placed["within_slo"][servable].mean()),
        }
        for quantity, where in _LATENCIES.items():
            served = here[where][here[where]["status"] == "served"]
            values = served[f"{quantity}_s"].dropna().to_numpy()
            row[f"{quantity}_mean_s"] = float(values.mean()) if values.size else np.nan
            for name, level in _QUANTILES.items():
                at = float(np.quantile(values, level)) if values.size else np.nan
                row[f"{quantity}_{name}_s"] = at
        rows.append(row)
    return pd.DataFrame(rows)


def _of_group(where: Any, group_of: Any, number: int) -> Any:
    """Whether each request is on an instance of the group."""
    return (where >= 0) & (group_of[np.maximum(where, 0)] == number)
