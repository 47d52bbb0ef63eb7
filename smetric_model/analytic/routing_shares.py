"""What the fixed point of the routing mean field says of follow-ups and of shared prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np

from smetric_model.analytic.returns import return_to_first_ratio
from smetric_model.analytic.routing_closure import Closure, State
from smetric_model.analytic.shared_prefixes import PrefixHolders, holders_of

__all__ = ["follow_up_shares", "lasting_variation", "notes_of", "prefixes_of"]


def lasting_variation(
    closure: Closure, state: State, prefixes: PrefixHolders
) -> tuple[float, float]:
    r"""Lasting variation of an instance's rate and load where first turns crowd.

    An instance with ``1 + ω`` times the mean share of first turns keeps more sessions, carries more
    load, and so stays less attractive: in steady state, primes being slopes in the load,

    .. math:: \delta\lambda \Bigl(1 - (1-q)a - \frac{\lambda(1-q)a' + F'}{\mu'}\Bigr)
        = \lambda q\,\omega, \qquad \delta l = \delta\lambda / \mu' ,

    with ``a`` the probability to stay and F the free flow it receives.  The bracket over the time
    between turns is the rate at which its sessions follow.
    """
    field, loads = state.field, np.arange(closure.levels)
    deviation = (loads - field.mean) * field.law / field.variance
    service = state.noise.service_slope
    staying = (1 - closure.evicted) * state.stay
    free_rate = closure.first_rate + closure.follow_rate * (closure.evicted + state.leave)
    away = closure.rate * closure.follow_ratio * float(deviation @ staying)
    away += free_rate * float(deviation @ state.joined)
    kept = closure.follow_ratio * float(field.seen @ staying)
    pull = max(1 - kept - away / service, 1e-6)
    cluster = closure.cluster
    assert cluster.frameworks is not None
    cycle_s = cluster.think_time.mean_s + field.mean / closure.rate
    inflow = prefixes.inflow_variance(cluster.frameworks.popularity, cycle_s / pull)
    rate = inflow * (closure.first_rate / (closure.rate * pull)) ** 2
    return rate, rate * (closure.rate / (service * field.mean)) ** 2


def prefixes_of(closure: Closure, state: State, shares: dict[str, float]) -> PrefixHolders | None:
    """Where shared prefixes lie; None for a cluster without frameworks."""
    cluster, field = closure.cluster, state.field
    if cluster.frameworks is None:
        return None
    moved = 1 - shares["return_to_previous_ratio"]
    return holders_of(
        cluster,
        cluster.frameworks,
        moved if np.isfinite(moved) else 0.0,
        field.mean / closure.rate,
        closure.crowding,
        field.at_least,
    )


def follow_up_shares(closure: Closure, state: State) -> dict[str, float]:
    """Where follow-ups go, by cause."""
    cluster, rule, n = closure.cluster, closure.rule, closure.n
    names = ("overload", "evicted", "other")
    if closure.follow_rate == 0:
        nothing = float("nan")
        return {f"migrated_{name}_ratio": nothing for name in names} | {
            "return_to_first_ratio": nothing,
            "return_to_previous_ratio": nothing,
        }
    moved = dict.fromkeys(names, 0.0)
    if n > 1 and rule.kind in ("never", "blind"):
        moved["other"] = 1 - 1 / n
    elif n > 1 and rule.kind == "mean" and rule.first_turn == "hash":
        # π_i = h (1-h)^i: the i-th choice of the session's hash serves
        at_home = 1 - state.leave
        again = at_home / (2 - at_home)
        back = at_home * (1 - at_home)  # from another choice to the first
        moved["overload"], moved["other"] = 1 - again - back, back
        return {f"migrated_{name}_ratio": value for name, value in moved.items()} | {
            "return_to_first_ratio": again,
            "return_to_previous_ratio": again,
        }
    elif n > 1:
        moved["evicted"] = closure.evicted * (1 - closure.lost_home_ratio(state))
        moved["overload"] = state.leave
    moved = {name: max(value, 0.0) for name, value in moved.items()}
    stay = 1 - sum(moved.values())
    return {f"migrated_{name}_ratio": value for name, value in moved.items()} | {
        "return_to_previous_ratio": stay,
        "return_to_first_ratio": return_to_first_ratio(stay, n, cluster.turns),
    }


def notes_of(closure: Closure, state: State) -> tuple[str, ...]:
    """Why figures may be worse than usual."""
    notes = []
    cluster = closure.cluster
    if 1 < cluster.instances < 8:
        notes.append("fewer than 8 instances: each sees the others as independent, they are not")
    overload: Any = getattr(cluster.policy, "overload", None)
    if overload is not None and overload < 1.25 and closure.rule.kind == "mean":
        notes.append("OVERLOAD below 1.25: migration is about 7 % low at 1")
    if closure.rate > 0.9 * float(state.completion[-1]):
        notes.append("above 0.9 of saturation")
    if getattr(cluster.policy, "tie_break", "least-loaded") == "first":
        notes.append("ties by index are not modelled")
    return tuple(notes)
