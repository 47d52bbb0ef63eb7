"""Where Figures 11 to 25 get their numbers: result table, profiles, and what the paper reports."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import common
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.reproduction import load_parameters, read_results
from smetric_model.reproduction.profiles import read_profiles

PRESETS = {
    "short": "bailian-trace-1-short",
    "medium": "bailian-trace-1-medium",
    "long": "bailian-trace-1-long",
}
COLOCATED = ("smetric", "bailian", "lmetric", "load-balance")
BASELINES = COLOCATED[1:]
DISAGGREGATED = ("smetric", "bailian", "lmetric", "dynamo")


class Source:
    """The result table of one preset, and the profiles that go with it.

    Parameters
    ----------
    figure : str
        Who asks, for messages.
    preset : str
        ``short``, ``medium`` or ``long``.
    results, profiles : Path, optional
        Default: the shipped ones.
    """

    def __init__(
        self, figure: str, preset: str, results: Path | None = None, profiles: Path | None = None
    ) -> None:
        self.figure = figure
        self.preset = PRESETS[preset]
        self.parameters = load_parameters()
        self._where = results or data_dir() / "reproduction" / "results.parquet"
        table = _results(results)
        self.table = table[(table["verb"] == "simulate") & (table["preset"] == self.preset)]
        self._profiles_path = profiles
        self._profiles: pd.DataFrame | None = None

    def rows(
        self,
        setup: str,
        policies: Iterable[str],
        tier: str | None = "full",
        load: float | None = None,
    ) -> pd.DataFrame:
        """Return rows of the load sweeps, all seeds; a policy without any is an error."""
        table = self.table[(self.table["study"] == "sweep") & (self.table["setup"] == setup)]
        if tier is not None:
            table = table[table["tier"] == tier]
        if load is not None:
            table = table[(table["load"] - load).abs() < 1e-6]
        asked = f"set-up {setup}, " + (f"tier {tier}, " if tier else "")
        asked += f"load {load:g}x, " if load is not None else ""
        return self._needed(table, policies, asked)

    def router_rows(self, key: str) -> pd.DataFrame:
        """Return SMetric's rows over the values of one of the router's keys."""
        table = self.at_operating(self.table)
        table = table[(table["study"] == "router") & (table["assumption"] == key)]
        table = table[(table["setup"] == "colocated-30b") & (table["tier"] == "full")]
        base = self.rows("colocated-30b", ["smetric"], load=self.operating)
        needed = self._needed(table, ["smetric"], f"study router, {key}, ")
        return pd.concat([needed, base])

    def _needed(self, table: pd.DataFrame, policies: Iterable[str], asked: str) -> pd.DataFrame:
        lacking = [policy for policy in policies if not (table["policy"] == policy).any()]
        if lacking:
            raise SpecError(
                f"{self.figure}: {self._where} has no rows of {asked}preset {self.preset}, policy"
                f" {', '.join(lacking)}: run smetric-model reproduce"
            )
        return table[table["policy"].isin(list(policies))]

    def at_operating(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows at the operating load."""
        return table[(table["load"] - self.operating).abs() < 1e-6]

    @property
    def operating(self) -> float:
        """Load at which figures are drawn that name none."""
        return self.parameters.operating

    def profile(self, setup: str, quantity: str, policies: Iterable[str]) -> pd.DataFrame:
        """Return profiles of a set-up at the operating load with the full tier, one seed."""
        if self._profiles is None:
            self._profiles = _profiles(self._profiles_path)
        table = self._profiles
        table = table[
            (table["setup"] == setup)
            & (table["preset"] == self.preset)
            & (table["quantity"] == quantity)
        ]
        lacking = [policy for policy in policies if not (table["policy"] == policy).any()]
        if lacking:
            raise SpecError(
                f"{self.figure}: no profiles of {quantity}, set-up {setup}, preset {self.preset},"
                f" policy {', '.join(lacking)}: run python tools/make_profiles.py"
            )
        return table


def claim_range(name: str) -> tuple[float, float]:
    """Return what the paper states: least and most, equal where it is one number.

    Missing numbers, which draw nothing, where no table of claims is shipped.
    """
    if _claims() is None:
        return math.nan, math.nan
    value = _claims()[name]
    numbers = [float(text) for text in re.findall(r"(?:^-)?[0-9.]+", value)]
    if not numbers:
        raise SpecError(f"claim {name}: {value!r} is no number")
    return min(numbers), max(numbers)


def claim(name: str) -> float:
    """Return a number that the paper states; the middle where it is a range."""
    return sum(claim_range(name)) / 2


@cache
def _results(path: Path | None) -> pd.DataFrame:
    return read_results(path)


@cache
def _profiles(path: Path | None) -> pd.DataFrame:
    return read_profiles(path)


@cache
def _claims() -> dict[str, str] | None:
    try:
        from smetric_model.reproduction import load_claims

        return {one.id: one.text for one in load_claims()}
    except ImportError:
        return None


def render(
    figure: str,
    make: Callable[[Source], Figure],
    preset: str,
    out: Path,
    results: Path | None = None,
    profiles: Path | None = None,
) -> None:
    """Draw a figure of one preset into a file.

    Raises
    ------
    SpecError
        If rows are missing; says which.
    """
    made = make(Source(figure, preset, results, profiles))
    made.supxlabel(
        f"Figure {figure.removeprefix('figure')}, workload {PRESETS[preset]}",
        fontsize=8, color=common.PAPER, x=0.995, ha="right",
    )  # fmt: skip
    common.save(made, out)
    plt.close(made)


def draw(
    figure: str,
    description: str | None,
    make: Callable[[Source], Figure],
    arguments: list[str] | None = None,
) -> None:
    """Command line of a figure's script."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="result table [the shipped one]")
    parser.add_argument("--profiles", type=Path, help="profiles [the shipped ones]")
    parser.add_argument(
        "--preset", choices=list(PRESETS), default="medium", help="prompt lengths [medium]"
    )
    parser.add_argument("--out", type=Path, help=f"[out/figures/{figure}-PRESET.png]")
    options = parser.parse_args(arguments)
    out = options.out or Path("out/figures") / f"{figure}-{options.preset}.png"
    try:
        render(figure, make, options.preset, out, options.results, options.profiles)
    except (SpecError, OSError) as error:
        sys.exit(str(error))
