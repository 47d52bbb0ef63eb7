"""What ``tune`` says: plain, frozen results."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from smetric_model.tuning.search import GridPoint
from smetric_model.tuning.situation import Situation

__all__ = ["USUAL", "Needs", "SloShares", "Tuning"]

#: the pair that is usual: OVERLOAD, HIT_RATIO
USUAL = (2.0, 0.5)


@dataclass(frozen=True)
class SloShares:
    """What a cluster loses with the least of something.

    Attributes
    ----------
    instances : int
        Of the cluster.
    without_limit_ratio, least_ratio : float
        Tokens within SLO ÷ tokens offered, with as much as could be used and with the least; 0
        without a steady state.
    """

    instances: int
    without_limit_ratio: float
    least_ratio: float

    @property
    def lost_ratio(self) -> float:
        """Share of the tokens within SLO that the least loses."""
        if self.without_limit_ratio <= 0:
            return 0.0
        return max(1.0 - self.least_ratio / self.without_limit_ratio, 0.0)


@dataclass(frozen=True)
class Needs:
    """The inverse questions, each with everything else as in the scenario.

    Attributes
    ----------
    loss : float
        The share that may be lost.
    largest_rate_rps : float or None
        Largest rate at which no more than this share of the tokens misses the SLO, unservable
        requests included [requests/s]; None: no rate; ``inf``: none was found that does.
    fewest_instances : int or None
        Fewest instances, likewise at the scenario's rate, two pools in the scenario's proportion;
        None: no number.
    least_global_bytes_per_node : float or None
        Smallest global tier that loses no more than this share of the tokens within SLO of one
        without limit [bytes per node]; None where no tier of a usable size is enough.
    least_nic_bytes_per_s : float or None
        Slowest interface that loses no more than this share of the tokens within SLO of one
        without limit [bytes/s]; 0 where the slowest one tried is enough.
    instances : int
        Of the scenario, with which the tier and the interface were sought.
    nodes : int
        Of the scenario.
    nic_traffic_bytes_per_s : float
        Mean KV that a node fetches from other nodes for its instances, and writes to them, for
        the global tier, each direction [bytes/s].
    slowest_nic_bytes_per_s : float
        Slowest interface tried [bytes/s].
    without_tier, with_slowest_nic : tuple of SloShares
        What is lost without a global tier, and with that interface, where these are enough: with
        the scenario's instances, and with the fewest if these are less.
    """

    loss: float
    largest_rate_rps: float | None
    fewest_instances: int | None
    least_global_bytes_per_node: float | None
    least_nic_bytes_per_s: float | None
    instances: int
    nodes: int
    nic_traffic_bytes_per_s: float
    slowest_nic_bytes_per_s: float
    without_tier: tuple[SloShares, ...] = ()
    with_slowest_nic: tuple[SloShares, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """Thresholds for a scenario, and why.

    Attributes
    ----------
    scenario_id, name : str
        Of the scenario.
    rate_rps : float
        At which it was tuned, requests of the cluster, unservable ones included [requests/s].
    unservable_ratio : float
        Share of them that cannot be served: left out of tokens, loads and shares.
    overload, hit_ratio : float
        The middle of the plateau, within ``choice_ratio`` of the best prediction
        (:func:`~smetric_model.tuning.search.middle`).  The advice is :attr:`advised`.
    matters : bool
        Whether the pairs tried differ by more than ``plateau_ratio`` in tokens within SLO.
    social_overload, social_hit_ratio : float
        OVERLOAD* and HIT_RATIO* of the cluster, in closed form.
    private_overload, private_hit_ratio : float
        Of the request that decides.
    hit_weight : float
        Bailian's weight that lets go at the same home load as ``overload``, the middle; NaN where
        nothing is hit.
    situation : Situation
        What the closed form weighs, at the social optimum.
    at_advice : Situation
        The cluster at the advised pair; as ``situation`` where that has no steady state.
    grid : tuple of GridPoint
        Predictions at all pairs.
    plateau : tuple of GridPoint
        Those within ``plateau_ratio`` of the best, best first.
    plateau_ratio, choice_ratio : float
        See there.
    needs : Needs or None
        Answers to the inverse questions, if asked.
    advice : tuple of str
        In words.
    notes : tuple of str
        What the scenario asks for and the figures leave out, unservable requests among it.
    """

    scenario_id: str
    name: str
    rate_rps: float
    unservable_ratio: float
    overload: float
    hit_ratio: float
    matters: bool
    social_overload: float
    social_hit_ratio: float
    private_overload: float
    private_hit_ratio: float
    hit_weight: float
    situation: Situation
    at_advice: Situation
    grid: tuple[GridPoint, ...] = field(repr=False)
    plateau: tuple[GridPoint, ...] = field(repr=False)
    plateau_ratio: float = 0.02
    choice_ratio: float = 0.01
    needs: Needs | None = None
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> GridPoint:
        """Pair with most predicted tokens within SLO."""
        return max(self.grid, key=lambda p: p.total_within_slo_tps)

    @property
    def spread_ratio(self) -> float:
        """Share of the best prediction that the worst pair loses."""
        most = self.best.total_within_slo_tps
        least = min(point.total_within_slo_tps for point in self.grid)
        return 1.0 - least / most if most > 0 else 0.0

    def lost_ratio(self, overload: float, hit_ratio: float) -> float | None:
        """Return the share of the best prediction that a pair loses; None if it was not tried.

        Parameters
        ----------
        overload, hit_ratio : float
            The pair.
        """
        most = self.best.total_within_slo_tps
        for point in self.grid:
            if (point.overload, point.hit_ratio) == (overload, hit_ratio) and most > 0:
                return 1.0 - point.total_within_slo_tps / most
        return None

    @property
    def keeps_usual(self) -> bool:
        """Whether the usual pair, (2, .5), lies on the plateau, so that nothing else is advised."""
        lost = self.lost_ratio(*USUAL)
        return lost is not None and lost <= self.plateau_ratio

    @property
    def advised(self) -> tuple[float, float]:
        """OVERLOAD and HIT_RATIO advised: the usual ones if on the plateau, else its middle."""
        return USUAL if self.keeps_usual else (self.overload, self.hit_ratio)

    def to_dict(self) -> dict[str, Any]:
        """Everything as nested dicts of plain values; ``inf`` as the text ``"inf"``.

        Returns
        -------
        dict
        """
        result = asdict(self)
        for name, looked in (("situation", self.situation), ("at_advice", self.at_advice)):
            cost, service = looked.cost, looked.service
            result[name]["cost"] |= {"private_s": cost.private_s, "social_s": cost.social_s}
            result[name]["service"] |= {
                "sojourn_s": service.sojourn_s,
                "persistence": service.persistence,
                "own_saving_s": service.own_saving_s,
            }
            result[name]["saving_s"] = looked.saving_s
        result["advised_overload"], result["advised_hit_ratio"] = self.advised
        result["usual_lost_ratio"] = self.lost_ratio(*USUAL)
        result["spread_ratio"] = self.spread_ratio
        plain: dict[str, Any] = _plain(result)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"  # a threshold that never lets go is a value, not a gap
    return value
