"""Regrets and directions of ``tune``, from what was simulated once (``thresholds-grids.csv``).

``thresholds.py`` makes the files and prints the report; nothing is simulated or predicted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from smetric_model.tuning import Tuning

OVERLOADS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, math.inf)
HIT_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)
CONSTANT = (2.0, 0.5)
SEEDS = (2_000, 2_001, 2_002)
#: candidates from this number on: nothing was chosen by them
FRESH = 40
HERE = Path(__file__).resolve().parent
GRIDS, TUNED = HERE / "thresholds-grids.csv", HERE / "thresholds-tuned.csv"
#: OVERLOADs on either side of where optima lie: sessions leave sooner, or later
SOONER, LATER = (1.5, 2.0), (3.0, 4.0, math.inf)

Pair = tuple[float, float]
Array = NDArray[np.float64]
#: tokens/s within SLO by seed, at each pair of thresholds
Grid = dict[Pair, Array]


class Regret(NamedTuple):
    """What a pair loses.

    Attributes
    ----------
    regret, standard_error : float
        Share of the best pair's tokens within SLO, by paired seeds.
    held_out : float
        The same against the pair that is best in the *other* seeds, in the seed left out, averaged
        over seeds: the best of 35 noisy means is flattered by its noise, this is not.
    """

    regret: float
    standard_error: float
    held_out: float


def grids(
    path: Path = GRIDS, prefix: str = "tps_", said: str = "predicted_tps"
) -> tuple[dict[tuple[int, str], Grid], dict[tuple[int, str], Any]]:
    """Read what was simulated, and what ``predict`` says at the same pairs.

    Parameters
    ----------
    path : Path
        The file.
    prefix, said : str
        Columns: of each seed, and of the prediction.

    Returns
    -------
    simulated, predicted : dict
        By case and variant, then by (OVERLOAD, HIT_RATIO).
    """
    table = pd.read_csv(path)
    simulated: dict[tuple[int, str], Grid] = {}
    predicted: dict[tuple[int, str], Any] = {}
    columns = [name for name in table.columns if name.startswith(prefix)]
    for (number, variant), rows in table.groupby(["number", "variant"], sort=True):
        key = int(number), str(variant)
        pairs = list(zip(rows["overload"], rows["hit_ratio"], strict=True))
        simulated[key] = dict(zip(pairs, rows[columns].to_numpy(), strict=True))
        predicted[key] = dict(zip(pairs, rows[said], strict=True))
    return simulated, predicted


def best_of(grid: Mapping[Pair, Array]) -> Pair:
    """Return the pair with the most tokens within SLO."""
    return max(grid, key=lambda pair: float(np.mean(grid[pair])))


def regret_of(grid: Mapping[Pair, Array], pair: Pair) -> Regret:
    """Return what a pair loses in a simulated grid.

    Parameters
    ----------
    grid : mapping
        Tokens/s within SLO by seed.
    pair : tuple of float
        OVERLOAD and HIT_RATIO.

    Returns
    -------
    Regret
    """
    best = grid[best_of(grid)]
    lost = (best - grid[pair]) / best.mean()
    error = float(lost.std(ddof=1)) / math.sqrt(lost.size)
    held_out = []
    for left_out in range(best.size):
        others = {p: np.delete(v, left_out) for p, v in grid.items()}
        rival = grid[best_of(others)][left_out]
        held_out.append(1.0 - grid[pair][left_out] / rival)
    return Regret(float(lost.mean()), error, float(np.mean(held_out)))


def nearest(overload: float, hit_ratio: float) -> Pair:
    """Return the pair of the grid that is nearest to thresholds of the closed form."""

    def place(value: float) -> float:
        return math.log(min(max(value, 0.5), 8.0))

    return (
        min(OVERLOADS, key=lambda g: abs(place(g) - place(overload))),
        min(HIT_RATIOS, key=lambda h: abs(h - hit_ratio)),
    )


def leaning(
    grid: Mapping[Pair, Array],
    sooner: tuple[float, ...] = SOONER,
    later: tuple[float, ...] = LATER,
) -> Array:
    """Return by how much letting sessions leave later beats letting them leave sooner, by seed.

    A plateau has no place for an optimum, but it leans: mean tokens within SLO at ``later`` less
    that at ``sooner``, HIT_RATIO as usual, ÷ the largest.

    Parameters
    ----------
    grid : mapping
        Tokens/s within SLO, by seed or not.
    sooner, later : tuple of float
        OVERLOADs on either side.

    Returns
    -------
    ndarray
    """
    line = {over: np.atleast_1d(grid[over, CONSTANT[1]]) for over in OVERLOADS}
    top = np.max(list(line.values()), axis=0)
    gained, lost = (np.mean([line[o] for o in some], axis=0) for some in (later, sooner))
    return np.asarray((gained - lost) / top)


def turn(
    lower: Mapping[Pair, Array],
    higher: Mapping[Pair, Array],
    measure: Callable[[Mapping[Pair, Array]], Array] = leaning,
) -> tuple[float, float]:
    """Return by how much a variant leans further towards leaving late than another, and its error.

    Parameters
    ----------
    lower, higher : mapping
        Grids, or lines, of the variants at the same seeds; OVERLOAD* should be larger in the
        second.
    measure : callable, default :func:`leaning`
        Of a grid, by seed.

    Returns
    -------
    turn, standard_error : float
    """
    change = measure(higher) - measure(lower)
    error = float(change.std(ddof=1)) / math.sqrt(change.size) if change.size > 1 else 0.0
    return float(change.mean()), error


def report(points: list[Any]) -> str:
    """Return regrets and directions.

    Parameters
    ----------
    points : list of Point
        The candidates.
    """
    simulated, predicted = grids()
    tuned = pd.read_csv(TUNED).set_index(["number", "variant"])
    by_number = {point.number: point for point in points}
    out = []
    for title, fresh in (("Cases", False), ("Fresh cases", True)):
        numbers = [n for n, v in simulated if v == "base" and (n >= FRESH) == fresh]
        if numbers:
            out += [
                f"## {title}",
                "",
                *_regrets(numbers, simulated, predicted, tuned, by_number),
                "",
            ]
    out += ["## Directions", "", *_directions(simulated, predicted, tuned)]
    return "\n".join(out)


def _short_name(llm: str) -> str:
    """Total parameters, as in the name."""
    return next(part for part in llm.split("-") if part[:-1].isdigit() and part.endswith("B"))


def _regrets(
    numbers: list[int],
    simulated: Mapping[tuple[int, str], Grid],
    predicted: Mapping[tuple[int, str], Any],
    tuned: pd.DataFrame,
    points: Mapping[int, Any],
) -> list[str]:
    out = [
        "| case | model, instances, load | tier ÷ local | prompts × | Gbps | best and worst differ"
        " by | best pair | `tune` | closed form alone | regret: `tune` | closed form alone |"
        " (2, .5) |",
        "|" + "---|" * 12,
    ]
    names = ("`tune`", "advice", "closed form alone", "(2, .5)", "(3, .5)", "(4, .5)", "(1, .5)")
    names += ("(inf, 0)",)
    found: dict[str, list[Regret]] = {name: [] for name in names}
    for n in numbers:
        grid, point = simulated[n, "base"], points[n]
        picks = {"(2, .5)": CONSTANT, "(3, .5)": (3.0, 0.5), "(4, .5)": (4.0, 0.5)}
        picks |= {"(1, .5)": (1.0, 0.5), "(inf, 0)": (math.inf, 0.0)}
        if (n, "base") in tuned.index:
            said = tuned.loc[(n, "base")]
            picks["`tune`"] = (float(said["overload"]), float(said["hit_ratio"]))
            # the usual pair where it is on the predicted plateau (Tuning.advised)
            line = predicted[n, "base"]
            stays = line[CONSTANT] >= (1 - Tuning.plateau_ratio) * max(line.values())
            picks["advice"] = CONSTANT if stays else picks["`tune`"]
            picks["closed form alone"] = nearest(said["social_overload"], said["social_hit_ratio"])
        regrets = {name: regret_of(grid, pair) for name, pair in picks.items()}
        for name, regret in regrets.items():
            found[name].append(regret)
        best = best_of(grid)
        worst = min(float(v.mean()) for v in grid.values())
        shown = {name: f"{p[0]:g}, {p[1]:g}" for name, p in picks.items()}
        cells = {name: f"{r.regret:.3f}" for name, r in regrets.items()}
        if "`tune`" in regrets:
            cells["`tune`"] += f" ± {regrets['`tune`'].standard_error:.3f}"
        out.append(
            f"| {n} | {_short_name(point.llm)},"
            f" {point.instances}, {point.load:.2f} | {point.tier_ratio:.2f} |"
            f" {point.context_factor:.2f} | {point.nic_bytes_per_s * 8e-9:.0f} |"
            f" {1 - worst / grid[best].mean():.0%} | {best[0]:g}, {best[1]:g} |"
            f" {shown.get('`tune`', '–')} | {shown.get('closed form alone', '–')} |"
            f" {cells.get('`tune`', '–')} | {cells.get('closed form alone', '–')} |"
            f" {cells['(2, .5)']} |"
        )
    out.append("")
    for name, values in found.items():
        if values:
            size = [v.regret for v in values]
            within = sum(v.regret <= 0.02 + v.standard_error for v in values)
            held_out = [v.held_out for v in values]
            out.append(
                f"- {name}: regret median {np.median(size):.4f}, mean {np.mean(size):.4f}, largest"
                f" {max(size):.3f}; within .02 and noise {within} of {len(size)}; against the pair"
                f" that is best in the other seeds median {np.median(held_out):+.4f}, mean"
                f" {np.mean(held_out):+.4f}"
            )
    return out


def _directions(
    simulated: Mapping[tuple[int, str], Grid],
    predicted: Mapping[tuple[int, str], Any],
    tuned: pd.DataFrame,
) -> list[str]:
    """Whether OVERLOAD* rises with history length and falls with link speed."""
    out = [
        "| pairs | simulation tells | OVERLOAD* higher | lower | prediction agrees where it tells |"
        " closed form higher, lower, within 1 % |",
        "|" + "---|" * 6,
    ]
    for lower, higher, text in (
        ("short", "base", "longer histories, same share of the capacity"),
        ("short, same rate", "base", "longer histories, same rate"),
        ("fast", "base", "slower links"),
    ):
        told = up = down = agree = asked = 0
        moves = [0, 0, 0]
        for n in sorted({n for n, v in simulated if v == lower}):
            size, error = turn(simulated[n, lower], simulated[n, higher])
            tells = abs(size) > 2 * error and size != 0
            told, up, down = told + tells, up + (tells and size > 0), down + (tells and size < 0)
            if tells and not any(
                math.isnan(v) for key in (lower, higher) for v in predicted[n, key].values()
            ):
                asked += 1
                agree += turn(predicted[n, lower], predicted[n, higher])[0] * size > 0
            if (n, lower) in tuned.index and (n, higher) in tuned.index:
                balances = [float(tuned.loc[(n, key), "balance"]) for key in (lower, higher)]
                step = math.log(max(balances[1], 1e-6) / max(balances[0], 1e-6))
                moves[0 if step > 0.01 else 1 if step < -0.01 else 2] += 1
        out.append(
            f"| {text} | {told} | {up} | {down} | {agree} of {asked} |"
            f" {moves[0]}, {moves[1]}, {moves[2]} |"
        )
    return out
