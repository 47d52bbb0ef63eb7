"""What a search for a capacity found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.analytic.cluster_capacity import Criterion
    from smetric_model.outcome import Outcome

__all__ = ["Capacity"]


@dataclass(frozen=True, eq=False)
class Capacity:
    """Capacity of a scenario's cluster, with how well it is known.

    Attributes
    ----------
    verb : str
        Who answered.
    criterion : {"peak_goodput", "attainment"}
        Most tokens/s within SLO over all rates, or the largest rate at which the share
        ``slo.attainment`` of the servable requests is within SLO.
    rate_rps : float or None
        Where it is reached, the largest rate tried that is good enough; None where no rate is
        [requests/s of the cluster].
    lower_rps, upper_rps : float
        ``attainment``: the bracket, the last rate with the wanted share and the next one tried,
        without it.  ``peak_goodput``: the run of rates tried whose goodput cannot be told from the
        best one's (paired over seeds, 95 %; with one seed the neighbours of the best).  In closed
        form both are ``rate_rps`` [requests/s].
    noise_rps : float
        Standard error of ``rate_rps`` over seeds (``attainment``): that of the share, over the
        slope of the share; NaN with one seed, 0 in closed form [requests/s].
    total_within_slo_tps, within_slo_ratio : float
        Mean over seeds at that rate [tokens/s, ratio]; without a rate 0, and the share at the
        lowest rate tried.
    noise_within_slo_tps : float
        Standard error of the former over seeds; NaN with one seed, 0 in closed form [tokens/s].
    resource : str
        What binds there (``binding_resource``); in closed form what saturates above it.
    seeds : tuple of int
        The same at all rates (common random numbers).
    rows : DataFrame
        Every answer that the search took: ``rate_rps`` (asked for), then the columns of the
        schema, and ``ttft_missed_ratio``, ``tpot_missed_ratio`` (of servable requests) where the
        verb has a table of requests.  In closed form the row at ``rate_rps``.
    outcomes : tuple of Outcome
        At ``rate_rps``, one a seed, without tables.
    """

    verb: str
    criterion: Criterion
    rate_rps: float | None
    lower_rps: float
    upper_rps: float
    noise_rps: float
    total_within_slo_tps: float
    within_slo_ratio: float
    noise_within_slo_tps: float
    resource: str
    seeds: tuple[int, ...]
    rows: pd.DataFrame
    outcomes: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; ``rows`` and ``outcomes`` as lists of dicts.

        Returns
        -------
        dict
        """
        return {
            "verb": self.verb,
            "criterion": self.criterion,
            "rate_rps": self.rate_rps,
            "lower_rps": self.lower_rps,
            "upper_rps": self.upper_rps,
            "noise_rps": self.noise_rps,
            "total_within_slo_tps": self.total_within_slo_tps,
            "within_slo_ratio": self.within_slo_ratio,
            "noise_within_slo_tps": self.noise_within_slo_tps,
            "resource": self.resource,
            "seeds": list(self.seeds),
            "rows": self.rows.to_dict("records"),
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
        }
