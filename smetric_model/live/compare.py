"""Measured against simulated, predicted and bound: errors, noise, and a verdict per quantity."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.live.validation import Validation
    from smetric_model.live.validation_spec import Targets

__all__ = ["QUANTITIES", "comparison", "cpu_table", "speed_ratios", "speed_table", "verdict"]

#: column of the outcome -> (kind of target, name for people, the same where room is short)
QUANTITIES: dict[str, tuple[str, str, str]] = {
    "total_tps": ("tps", "tokens/s", "tokens/s"),
    "output_tps": ("tps", "output tokens/s", "output tokens/s"),
    "ttft_p50_s": ("latency", "TTFT, median [s]", "TTFT, median"),
    "tpot_p50_s": ("latency", "TPOT, median [s]", "TPOT, median"),
    "local_ratio": ("ratio", "local hits / prompt tokens", "local hits"),
    "global_ratio": ("ratio", "global hits / prompt tokens", "global hits"),
    "recomputed_ratio": ("ratio", "recomputed / prompt tokens", "recomputed"),
    "return_to_first_ratio": ("ratio", "return to first", "return to first"),
}


def verdict(
    kind: str,
    values: list[float],
    model: float,
    target: float,
    largest_cv: float,
    model_error: float = 0.0,
) -> tuple[float, float, str]:
    """Judge one answer of the model against the measurements of one quantity.

    Parameters
    ----------
    kind : {'ratio', 'tps', 'latency'}
        Errors of ratios are differences, those of the others relative to the measurement.
    values : list of float
        One a repeat.
    model : float
        What the model says.
    target : float
        Allowed error.
    largest_cv : float
        Above this coefficient of variation of the repeats nothing is judged.
    model_error : float
        Standard error of the model's own answer, where it is a mean of several runs.

    Returns
    -------
    error : float
        Of the model against the mean.
    allowed : float
        The larger of target and two standard errors of the difference.
    verdict : str
        ``within``, ``outside``, ``too noisy``, ``one repeat`` or ``no answer``.
    """
    mean = float(np.mean(values)) if values else math.nan
    if not values or math.isnan(mean) or math.isnan(model):
        return math.nan, math.nan, "no answer"
    scale = 1.0 if kind == "ratio" else mean
    error = (model - mean) / scale if scale else math.nan
    if len(values) < 2:
        return error, target, "one repeat"
    deviation = float(np.std(values, ddof=1))
    both = math.hypot(deviation / math.sqrt(len(values)), model_error)
    allowed = max(target, 2 * both / scale)
    # a ratio near zero has no meaningful relative spread: its own target is the measure
    noisy = deviation / mean > largest_cv if mean > 0 else False
    if noisy and not (kind == "ratio" and deviation <= target):
        return error, allowed, "too noisy"
    return error, allowed, "within" if abs(error) <= allowed else "outside"


def _target(targets: Targets, kind: str, verb: str) -> float:
    return float(getattr(targets, f"{kind}_{verb}", math.nan))


def speed_table(validation: Validation) -> pd.DataFrame:
    """Return the points that were measured again, beside the calibration.

    Parameters
    ----------
    validation : Validation
        With a calibration in its folder.

    Returns
    -------
    DataFrame
        ``kind``, ``tokens``, ``batch``, ``calibration_s`` and ``later_s`` (medians), and
        ``ratio`` of the second to the first; no lines where nothing was measured again.
    """
    import pandas as pd

    names = ["kind", "tokens", "batch"]
    path = validation.folder / "rechecks.parquet"
    if not path.exists():
        return pd.DataFrame(columns=[*names, "calibration_s", "later_s", "ratio"])
    points = pd.read_parquet(validation.folder / "calibration-points.parquet")
    first = points.groupby(names)["measured_s"].median().rename("calibration_s")
    again = pd.read_parquet(path).groupby(names)["seconds"].median().rename("later_s")
    table = pd.concat([first, again], axis=1, join="inner").reset_index()
    return table.assign(ratio=table["later_s"] / table["calibration_s"])


def speed_ratios(validation: Validation) -> dict[str, float]:
    """Return how much longer what decides TTFT and TPOT takes than at the calibration.

    Parameters
    ----------
    validation : Validation
        With a calibration in its folder.

    Returns
    -------
    dict of str to float
        ``ttft_p50_s``: median over new prompts, ``tpot_p50_s``: over decode steps; NaN where
        nothing was measured again.
    """
    table = speed_table(validation)
    kinds = {"ttft_p50_s": "prefill", "tpot_p50_s": "decode"}
    return {
        column: float(table.loc[table["kind"] == kind, "ratio"].median())
        for column, kind in kinds.items()
    }


def comparison(validation: Validation) -> pd.DataFrame:
    """Return one line a policy and quantity.

    Parameters
    ----------
    validation : Validation
        With replays in its folder.

    Returns
    -------
    DataFrame
        ``policy``, ``quantity``, ``repeats``, ``measured`` (mean), ``cv``, then for ``simulated``
        and ``predicted`` the answer, its error, what is allowed and the verdict; ``bound`` for
        tokens/s; ``speed_ratio`` of latencies, see :func:`speed_ratios`, and
        ``simulated_error_at_speed``: the error if the model were slower or faster by half of
        that, as the engines were on average.  Replays in which something failed are left out.
    """
    import pandas as pd

    predictions = json.loads((validation.folder / "predictions.json").read_text())["policies"]
    targets = validation.spec.targets
    lines = []
    speeds = speed_ratios(validation)
    results = [r for r in validation.results() if r.summary["outcome"]["valid"]]
    for policy in dict.fromkeys(r.policy for r in results):
        outcomes = [r.summary["outcome"] for r in results if r.policy == policy]
        answers = predictions[policy]
        for column, (kind, *_) in QUANTITIES.items():
            values = [_number(outcome.get(column)) for outcome in outcomes]
            values = [value for value in values if not math.isnan(value)]
            mean = float(np.mean(values)) if values else math.nan
            cv = float(np.std(values, ddof=1)) / mean if len(values) > 1 and mean else math.nan
            line: dict[str, Any] = {
                "policy": policy,
                "quantity": column,
                "repeats": len(values),
                "measured": mean,
                "cv": cv,
            }
            for verb, name in (("simulate", "simulated"), ("predict", "predicted")):
                model = _number(answers[verb].get(column))
                target = _target(targets, kind, name)
                drawn = (
                    answers.get("simulations", {}).get(column, []) if name == "simulated" else []
                )
                own = (
                    float(np.nanstd(drawn, ddof=1)) / math.sqrt(len(drawn))
                    if len(drawn) > 1
                    else 0.0
                )
                error, allowed, word = verdict(kind, values, model, target, targets.largest_cv, own)
                line |= {
                    name: model,
                    f"{name}_error": error,
                    f"{name}_allowed": allowed,
                    f"{name}_verdict": "no target" if math.isnan(target) else word,
                }
            bound = _number(answers["bound"].get(column)) if column == "total_tps" else math.nan
            line["bound"] = bound
            line["speed_ratio"] = speeds.get(column, math.nan)
            midway = math.sqrt(line["speed_ratio"])
            line["simulated_error_at_speed"] = (
                (1 + line["simulated_error"]) * midway - 1 if kind == "latency" else math.nan
            )
            lines.append(line)
    return pd.DataFrame(lines)


def cpu_table(validation: Validation) -> pd.DataFrame:
    """Return cores taken by each process inside the windows: mean over replays.

    ``others`` is everything else on the machine.

    Parameters
    ----------
    validation : Validation
        With replays in its folder.

    Returns
    -------
    DataFrame
        ``process``, ``cores``, and ``share`` of the cores that the engines may use.
    """
    import pandas as pd

    rows = [
        {"process": name, "cores": seconds / result.summary["window_s"]}
        for result in validation.results()
        for name, seconds in result.summary["cpu_s"].items()
    ]
    if not rows:
        return pd.DataFrame(columns=["process", "cores", "share"])
    table = pd.DataFrame(rows).groupby("process", sort=False)["cores"].mean().reset_index()
    pinned = set(validation.spec.engines.cores[: validation.spec.engines.instances])
    total = len(pinned) or validation.facts.get("cores") or 1
    return table.assign(share=table["cores"] / total)


def _number(value: Any) -> float:
    return math.nan if value is None or isinstance(value, str | bool) else float(value)
