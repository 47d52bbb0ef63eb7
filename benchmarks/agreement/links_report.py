"""Whether OVERLOAD* falls with link speed, from what was simulated once.

``thresholds_links.py`` makes the files and prints the report; nothing is simulated or predicted
here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import thresholds_report as study
from thresholds_report import Array, Pair

HERE = Path(__file__).resolve().parent
NAME = "thresholds-links"
LINES, TUNED = HERE / f"{NAME}-lines.csv", HERE / f"{NAME}-tuned.csv"
SEEDS = tuple(range(3_000, 3_006))
FAST, SLOW = "fast", "slow"
#: OVERLOADs within this share of the best count as best
BEST = 0.01


class Turn(NamedTuple):
    """By how much the slow variant of a pair leans further towards leaving late.

    Attributes
    ----------
    size, standard_error : float
        Over seeds.
    predicted : float
        The same of ``predict``; NaN where one variant has no steady state somewhere.
    """

    size: float
    standard_error: float
    predicted: float

    @property
    def tells(self) -> bool:
        """Whether it differs from 0 by more than two standard errors."""
        return abs(self.size) > 2 * self.standard_error and self.size != 0


def late_best(grid: Mapping[Pair, Array]) -> Array:
    """Return how late the best OVERLOADs lie, by seed: 1 less the mean of 1/OVERLOAD.

    Parameters
    ----------
    grid : mapping
        Tokens/s within SLO, by seed or not.

    Returns
    -------
    ndarray
        0 where only OVERLOAD 1 is within 1 % of the best, 1 where only inf is.
    """
    overloads = sorted(over for over, _ in grid)
    table = np.array([np.atleast_1d(grid[over, study.CONSTANT[1]]) for over in overloads])
    best = table >= (1.0 - BEST) * table.max(axis=0)
    inverse = 1.0 / np.array(overloads)
    return np.asarray(1.0 - inverse @ best / best.sum(axis=0))


#: what is looked at: column prefix, column of the prediction, whether less is better, measure
MEASURES: dict[str, tuple[str, str, bool, Callable[..., Array]]] = {
    "tokens within SLO": ("tps_", "predicted_tps", False, study.leaning),
    "1 ÷ mean end-to-end time": ("e2e_", "predicted_e2e_s", True, study.leaning),
    "tokens within SLO, far": (
        "tps_",
        "predicted_tps",
        False,
        functools.partial(study.leaning, sooner=(1.0, 1.25), later=(2.0, *study.LATER)),
    ),
    "place of the best": ("tps_", "predicted_tps", False, late_best),
}


def turns(measure: str) -> dict[int, Turn]:
    """Return the turns of all pairs.

    Parameters
    ----------
    measure : str
        One of ``MEASURES``.
    """
    prefix, said, less, function = MEASURES[measure]
    simulated, predicted = study.grids(LINES, prefix, said)

    def values(lines: Mapping[Pair, Any]) -> dict[Pair, Any]:
        return {pair: 1.0 / v if less else v for pair, v in lines.items()}

    found = {}
    for number in sorted({n for n, _ in simulated}):
        fast, slow = (values(simulated[number, name]) for name in (FAST, SLOW))
        size, error = study.turn(fast, slow, function)
        fast, slow = (values(predicted[number, name]) for name in (FAST, SLOW))
        guess, _ = study.turn(fast, slow, function)
        found[number] = Turn(size, error, guess)
    return found


def tuned() -> pd.DataFrame:
    """Return what ``tune`` said, by number and variant."""
    return pd.read_csv(TUNED).set_index(["number", "variant"]).sort_index()


def report(points: list[Any]) -> str:
    """Return the directions.

    Parameters
    ----------
    points : list of Point
        The slow variants.
    """
    by_number = {point.number: point for point in points}
    said = tuned()
    main = turns("tokens within SLO")
    groups: dict[str, list[int]] = {"all": list(main)}
    for text, recompute in (("recomputes where faster", True), ("always fetches", False)):
        groups[text] = [n for n in main if by_number[n].recompute_if_faster == recompute]
    out = ["## Pairs", "", *_pairs(main, by_number, said), "", "## Directions", ""]
    out += [
        "| looked at | pairs | tell | OVERLOAD* higher on the slower link | lower |"
        " higher, telling or not | `predict` agrees where it tells |",
        "|" + "---|" * 7,
    ]
    for measure in MEASURES:
        found = turns(measure)
        for text, numbers in groups.items():
            some = [found[n] for n in numbers]
            told = [t for t in some if t.tells]
            asked = [t for t in told if not math.isnan(t.predicted)]
            out.append(
                f"| {measure}, {text} | {len(some)} | {len(told)} |"
                f" {sum(t.size > 0 for t in told)} | {sum(t.size < 0 for t in told)} |"
                f" {sum(t.size > 0 for t in some)} |"
                f" {sum(t.size * t.predicted > 0 for t in asked)} of {len(asked)} |"
            )
    out += ["", "| `tune` | higher on the slower link | lower | within 1 % |", "|" + "---|" * 4]
    for column in ("balance", "social_overload", "private_overload", "overload"):
        for text, numbers in groups.items():
            higher, lower, same = moves(said, numbers, column)
            out.append(f"| {column}, {text} | {higher} | {lower} | {same} |")
    out += ["", "## Lost, of the best OVERLOAD of the line (median, mean, largest, %)", ""]
    out += ["| OVERLOAD | slow | fast |", "|" + "---|" * 3]
    by_variant = {name: regrets(name) for name in (SLOW, FAST)}
    for choice in by_variant[SLOW]:
        cells = [100 * np.array(by_variant[name][choice]) for name in (SLOW, FAST)]
        out.append(
            f"| {choice} | "
            + " | ".join(f"{np.median(c):.1f}, {np.mean(c):.1f}, {max(c):.1f}" for c in cells)
            + " |"
        )
    return "\n".join(out)


def regrets(name: str) -> dict[str, list[float]]:
    """Return what choices of OVERLOAD lose on a variant, of the best of the line, by pair.

    Parameters
    ----------
    name : str
        The variant.
    """
    simulated, _ = study.grids(LINES)
    said = tuned()
    found: dict[str, list[float]] = {}
    for number in sorted({n for n, _ in simulated}):
        row = said.loc[(number, name)]
        hit_ratio = study.CONSTANT[1]
        choices = {
            "`tune`": float(row["overload"]),
            "closed form alone": study.nearest(float(row["social_overload"]), hit_ratio)[0],
        }
        choices |= {f"{overload:g}": overload for overload in study.OVERLOADS}
        for choice, overload in choices.items():
            lost = study.regret_of(simulated[number, name], (overload, hit_ratio)).regret
            found.setdefault(choice, []).append(lost)
    return found


def moves(said: pd.DataFrame, numbers: list[int], column: str) -> tuple[int, int, int]:
    """Return how many thresholds are higher on the slower link, lower, and within 1 %.

    Parameters
    ----------
    said : DataFrame
        Of :func:`tuned`.
    numbers : list of int
        Of the pairs.
    column : str
        Which threshold.
    """
    counts = [0, 0, 0]
    for n in numbers:
        fast, slow = (float(said.loc[(n, name), column]) for name in (FAST, SLOW))
        step = 0.0 if fast == slow else math.log(max(slow, 1e-6) / max(fast, 1e-6))
        counts[0 if step > 0.01 else 1 if step < -0.01 else 2] += 1
    return counts[0], counts[1], counts[2]


def _pairs(main: Mapping[int, Turn], points: Mapping[int, Any], said: pd.DataFrame) -> list[str]:
    out = [
        "| pair | model, instances, load | tier ÷ local | prompts × | Gbps | recomputes |"
        " slow less fast | predicted | tells | balance fast, slow | `tune` fast, slow |",
        "|" + "---|" * 11,
    ]
    for n, found in main.items():
        point = points[n]
        fast, slow = (said.loc[(n, name)] for name in (FAST, SLOW))
        out.append(
            f"| {n} | {study._short_name(point.llm)}, {point.instances}, {point.load:.2f} |"
            f" {point.tier_ratio:.1f} | {point.context_factor:.2f} |"
            f" {point.nic_bytes_per_s * 8e-9:.0f} | {'yes' if point.recompute_if_faster else 'no'}"
            f" | {found.size:+.3f} ± {found.standard_error:.3f} | {found.predicted:+.3f} |"
            f" {'yes' if found.tells else 'no'} | {fast['balance']:.2g}, {slow['balance']:.2g} |"
            f" {fast['overload']:g}, {slow['overload']:g} |"
        )
    return out
