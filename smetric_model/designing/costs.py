r"""Whose bill it is: cost per million tokens by class, and the designs that no other beats.

The bill of :mod:`~smetric_model.designing.prices` is handed out whole:

* GPUs and nodes by the GPU time of each class
  (:mod:`~smetric_model.designing.engine_time`), idle time in proportion;
* NICs by the bytes that each class has moved;
* the global tier's memory to reused prompt tokens, for which alone it is there.

A part that no class uses (NICs of one node, a tier from which nothing is fetched) goes by GPU time;
a class without tokens bears nothing.
With :math:`s_k` the share of class k and :math:`r_k` its tokens per second,

.. math:: c_k = 10^6\,\frac{s_k\,C}{3600\,r_k}, \qquad \sum_k c_k r_k \cdot 3600 / 10^6 = C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from smetric_model.designing.engine_time import CLASSES
from smetric_model.designing.prices import Bill

__all__ = ["TokenCosts", "pareto_front", "token_costs"]

_HOUR_S = 3600.0
_MILLION = 1e6


@dataclass(frozen=True)
class TokenCosts:
    """What tokens cost, by class.

    Attributes
    ----------
    computed_prompt, reused_prompt, output : float
        Cost of a million tokens of the class; NaN where there are none [unit of the bill].
    total : float
        Of a million tokens of any class: the whole bill over all tokens.
    within_slo : float
        The whole bill over the tokens within SLO.
    shares : dict of str to float
        Share of the bill that each class bears.
    """

    computed_prompt: float
    reused_prompt: float
    output: float
    total: float
    within_slo: float
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


def token_costs(bill: Bill, row: Mapping[str, Any]) -> TokenCosts:
    """Hand out a bill to classes of tokens.

    Parameters
    ----------
    bill : Bill
        Of the cluster, per hour.
    row : mapping
        As of :func:`~smetric_model.designing.closed_form.size_design`.

    Returns
    -------
    TokenCosts
    """
    tokens = {name: float(row[f"{name}_tps"]) for name in CLASSES}
    gpu = {name: float(row[f"gpu_{name}_ratio"]) for name in CLASSES}
    link = {name: float(row[f"link_{name}_ratio"]) for name in CLASSES}
    fetched = float(row["global_ratio"] or 0.0) > 0
    memory = {name: float(fetched and name == "reused_prompt") for name in CLASSES}

    def among(*choices: dict[str, float]) -> dict[str, float]:
        """Shares by the first choice that says anything of classes that have tokens."""
        for shares in choices:
            kept = {name: shares[name] for name in CLASSES if tokens[name] > 0}
            whole = sum(kept.values())
            if whole > 0:
                return {name: kept.get(name, 0.0) / whole for name in CLASSES}
        return dict.fromkeys(CLASSES, 0.0)

    parts = (
        (bill.gpus + bill.nodes, among(gpu, tokens)),
        (bill.nics, among(link, gpu, tokens)),
        (bill.host_memory, among(memory, gpu, tokens)),
    )
    cost = {name: sum(part * shares[name] for part, shares in parts) for name in CLASSES}
    total = bill.total

    def per_million(cost_per_hour: float, tokens_per_s: float) -> float:
        if tokens_per_s <= 0:
            return math.nan
        return _MILLION * cost_per_hour / (_HOUR_S * tokens_per_s)

    return TokenCosts(
        **{name: per_million(cost[name], tokens[name]) for name in CLASSES},
        total=per_million(total, sum(tokens.values())),
        within_slo=per_million(total, float(row["total_within_slo_tps"])),
        shares={name: cost[name] / total if total > 0 else 0.0 for name in CLASSES},
    )


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Say which points no other beats, less being better in every coordinate.

    Parameters
    ----------
    points : sequence of tuple of float
        One tuple a point; a point with a NaN is on no front.

    Returns
    -------
    list of bool
        A point is beaten by one that is nowhere worse and somewhere better; equal points do not
        beat each other.
    """
    front = []
    for here in points:
        beaten = any(math.isnan(value) for value in here) or any(
            all(a <= b for a, b in zip(other, here, strict=True))
            and any(a < b for a, b in zip(other, here, strict=True))
            for other in points
        )
        front.append(not beaten)
    return front
