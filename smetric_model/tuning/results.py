"""What ``tune`` says: plain, frozen results."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from smetric_model.tuning.search import GridPoint
from smetric_model.tuning.situation import Situation

__all__ = ["Needs", "Tuning"]


@dataclass(frozen=True)
class Needs:
    """The inverse questions, each with everything else as in the scenario.

    Attributes
    ----------
    loss : float
        The share that may be lost.
    largest_rate_rps : float or None
        Largest rate at which no more than this share of the tokens misses the SLO [requests/s];
        None: no rate; ``inf``: none was found that does.
    fewest_instances : int or None
        Fewest instances, likewise at the scenario's rate, two pools in the scenario's proportion;
        None: no number.
    least_global_bytes_per_node : float or None
        Smallest global tier that loses no more than this share of the tokens within SLO of one
        without limit [bytes per node]; None where no tier of a usable size is enough.
    least_nic_bytes_per_s : float or None
        Slowest interface that loses no more than this share of the tokens within SLO of one
        without limit [bytes/s]; 0 where any is enough (nothing moves between nodes).
    """

    loss: float
    largest_rate_rps: float | None
    fewest_instances: int | None
    least_global_bytes_per_node: float | None
    least_nic_bytes_per_s: float | None


@dataclass(frozen=True)
class Tuning:
    """Thresholds for a scenario, and why.

    Attributes
    ----------
    scenario_id, name : str
        Of the scenario.
    rate_rps : float
        At which it was tuned, servable requests of the cluster [requests/s].
    overload, hit_ratio : float
        The advice: the middle of the plateau, within ``choice_ratio`` of the best prediction
        (:func:`~smetric_model.tuning.search.middle`).
    matters : bool
        Whether the pairs tried differ by more than ``plateau_ratio`` in tokens within SLO.
    social_overload, social_hit_ratio : float
        OVERLOAD* and HIT_RATIO* of the cluster, in closed form.
    private_overload, private_hit_ratio : float
        Of the request that decides.
    hit_weight : float
        Bailian's weight that lets go at the same home load as ``overload``; NaN where nothing is
        hit.
    situation : Situation
        What the closed form weighs, at the social optimum.
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
        What the scenario asks for and the figures leave out.
    """

    scenario_id: str
    name: str
    rate_rps: float
    overload: float
    hit_ratio: float
    matters: bool
    social_overload: float
    social_hit_ratio: float
    private_overload: float
    private_hit_ratio: float
    hit_weight: float
    situation: Situation
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

    def to_dict(self) -> dict[str, Any]:
        """Everything as nested dicts of plain values; ``inf`` as the text ``"inf"``.

        Returns
        -------
        dict
        """
        result = asdict(self)
        cost = self.situation.cost
        service = self.situation.service
        result["situation"]["cost"] |= {"private_s": cost.private_s, "social_s": cost.social_s}
        result["situation"]["service"] |= {
            "sojourn_s": service.sojourn_s,
            "persistence": service.persistence,
            "own_saving_s": service.own_saving_s,
        }
        result["situation"]["saving_s"] = self.situation.saving_s
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
