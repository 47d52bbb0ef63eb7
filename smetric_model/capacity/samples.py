"""Answers to one scenario at many rates, each rate with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.errors import SpecError, UnstableError
from smetric_model.outcome import Outcome, outcomes_frame, unstable_outcome

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario

__all__ = ["Answer", "Samples", "standard_error"]

Answer = Callable[["Scenario"], Outcome]
FloatArray = NDArray[np.float64]

_MISSED = ("ttft_missed_ratio", "tpot_missed_ratio")


class Samples:
    """Outcomes by rate; each is asked for once.

    Parameters
    ----------
    scenario : Scenario
        Its rate and seed are replaced.
    answer : callable
        Of a scenario; :class:`~smetric_model.errors.UnstableError` counts as nothing within SLO.
    seeds : tuple of int
        Asked for at every rate: common random numbers, so that rates differ by less than seeds.
    tell : callable
        Told what is being worked out.
    """

    def __init__(
        self,
        scenario: Scenario,
        answer: Answer,
        seeds: tuple[int, ...],
        tell: Callable[[str], None],
    ):
        self.scenario, self.seeds = scenario, seeds
        self._answer, self._tell = answer, tell
        self._outcomes: dict[float, tuple[Outcome, ...]] = {}
        self._missed: dict[float, list[tuple[float, float]]] = {}

    @property
    def rates(self) -> list[float]:
        """Rates asked for until now, rising [requests/s]."""
        return sorted(self._outcomes)

    def at(self, rate_rps: float) -> tuple[Outcome, ...]:
        """Outcomes at a rate, one a seed, without tables.

        Parameters
        ----------
        rate_rps : float
            Requests per second of the cluster [requests/s].

        Returns
        -------
        tuple of Outcome

        Raises
        ------
        SpecError
            If no servable request arrives in the window.
        """
        if rate_rps not in self._outcomes:
            found, missed = [], []
            for number, seed in enumerate(self.seeds):
                self._tell(f"{rate_rps:.4g} requests/s, seed {number + 1} of {len(self.seeds)}")
                asked = self.scenario.replace(**{"workload.rate_rps": rate_rps, "seed": seed})
                try:
                    outcome = self._answer(asked)
                except UnstableError as error:
                    outcome = unstable_outcome(asked, "", error)
                else:
                    if math.isnan(outcome.number("within_slo_ratio")):
                        raise SpecError(
                            f"capacity: at {rate_rps:.4g} requests/s no servable request arrives"
                            f" in workload.window_s = {asked.workload.window_s:g}: a longer one"
                            " is needed"
                        )
                missed.append(_missed(outcome, asked))
                found.append(Outcome(dict(outcome)))  # its tables are large
            self._outcomes[rate_rps] = tuple(found)
            self._missed[rate_rps] = missed
        return self._outcomes[rate_rps]

    def values(self, rate_rps: float, column: str) -> FloatArray:
        """Values of a column at a rate, one a seed; 0 where there is no steady state.

        Parameters
        ----------
        rate_rps : float
            [requests/s].
        column : str
            Of the schema.

        Returns
        -------
        ndarray of float64, shape (seeds,)
        """
        return np.nan_to_num([outcome.number(column) for outcome in self.at(rate_rps)])

    def mean(self, rate_rps: float, column: str) -> float:
        """Mean over seeds; see :meth:`values`."""
        return float(self.values(rate_rps, column).mean())

    def frame(self) -> pd.DataFrame:
        """Return all that was asked for, a row a rate and seed, rates rising."""
        rates = self.rates
        frame = outcomes_frame(outcome for rate in rates for outcome in self._outcomes[rate])
        frame.insert(0, "rate_rps", np.repeat(rates, len(self.seeds)))
        missed = np.array([pair for rate in rates for pair in self._missed[rate]]).reshape(-1, 2)
        if not np.isnan(missed).all():
            for column, values in zip(_MISSED, missed.T, strict=True):
                frame[column] = values
        return frame


def _missed(outcome: Outcome, scenario: Scenario) -> tuple[float, float]:
    """Shares of the servable requests that miss the SLO of TTFT and of TPOT."""
    table = outcome.requests
    if table is None:
        return math.nan, math.nan
    table = table[table["status"] != "unservable"]
    if table.empty:
        return math.nan, math.nan
    allowed = scenario.slo.ttft_s(table["prompt_tokens"].to_numpy(np.float64))
    # not served, its times are missing and met nothing
    ttft = ~(table["ttft_s"].to_numpy() <= allowed)
    single = (table["output_tokens"] == 1).to_numpy() & (table["status"] == "served").to_numpy()
    tpot = ~((table["tpot_s"].to_numpy() <= scenario.slo.tpot_s) | single)
    return float(ttft.mean()), float(tpot.mean())


def standard_error(values: FloatArray) -> float:
    """Return the standard error of a mean.

    Parameters
    ----------
    values : ndarray of float64, shape (n,)
        Independent draws.

    Returns
    -------
    float
        Sample standard deviation ÷ √n; NaN for one value.
    """
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
