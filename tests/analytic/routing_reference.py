"""The map of the routing mean field, written plainly: what the compiled one is held against."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from scipy import linalg, special

from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.routing_closure import Closure
from smetric_model.analytic.stick_rules import evicted_ratio
from smetric_model.routing.thresholds import FollowUp


def sink(law, of):
    """Share of a flow to the least loaded of ``of`` that each load receives, per instance."""
    at_least = np.cumsum(law[::-1])[::-1]
    power = np.minimum(at_least, 1.0) ** of
    return (power - np.append(power[1:], 0.0)) / np.maximum(law, 1e-300)


def birth_death(births, completion):
    log = np.append(0.0, np.cumsum(np.log(np.maximum(births[:-1], 1e-290) / completion)))
    law = np.exp(log - log.max())
    return law / law.sum()


def seen_by(hits, other_load, **scale):
    """The follow-ups whose homes hold something of their own, against another instance."""

    def column(value):
        return np.asarray(value, dtype=float)[:, None]

    return FollowUp(
        prompt_tokens=column(hits.prompt_tokens),
        home_hit_tokens=column(hits.home_hit_tokens),
        est_hit_tokens=column(hits.est_hit_tokens),
        other_hit_tokens=column(hits.shared_prefix_tokens),
        shared_prefix_tokens=column(hits.shared_prefix_tokens),
        other_load=other_load,
        **scale,
    )


def stays(cluster: RoutedCluster, law, seen, total_variance):
    """P(stay | home load), and P(leave | least load of the others) where loads are compared."""
    form, n = cluster.policy.threshold_form, cluster.instances
    levels, loads, hits = law.size, np.arange(law.size), cluster.follow_ups
    if cluster.policy.name == "load-balance":
        return np.zeros(levels), None
    if form.compares_with == "nothing":
        return np.ones(levels), None
    mean = law @ loads
    variance = law @ (loads - mean) ** 2
    pull = np.clip(total_variance / variance, 1.0, n)
    total = n * mean + pull * (loads - mean)
    spread = max(n * total_variance - pull**2 * variance, 1e-6)
    if form.compares_with == "mean":
        at = np.arange(0.0, 40 * n) / n
        allowed = np.asarray(
            form.home_load_limit(FollowUp(prompt_tokens=1.0, home_hit_tokens=1.0, mean_load=at))
        )
        needed = np.array([np.argmax(allowed >= load * (1 - 1e-12)) for load in loads])
        others, missing = total - loads, needed - loads
        if spread > 1.0001 * others[0]:
            missing, others = np.maximum(missing, 1e-9), np.maximum(others, 1e-9)
            size = others**2 / np.maximum(spread - others, 1e-9)
            chance = np.where(
                spread > 1.0001 * others,
                special.betainc(missing, size, 1 - others / spread),
                special.gammainc(missing, others),
            )
        else:
            chance = special.ndtr((others - missing + 0.5) / np.sqrt(spread))
        return np.where(needed <= loads, 1.0, chance), None
    least = sink(law, n - 1) * law
    least = least / least.sum()
    unit = cluster.load_unit_tokens
    limit = np.asarray(form.home_load_limit(seen_by(hits, loads[None, :] * unit))) / unit
    if not np.isnan(limit).any():
        part = np.mean(limit[:, :, None] * (1 + 1e-12) + 1e-9 >= loads, axis=0)
    else:  # a lead in mean loads, the mean normal and never below what the two leave possible
        leads = np.asarray(form.home_load_limit(seen_by(hits, 0.0, mean_load=1.0)))
        gap = loads[None, :] - loads[:, None]
        floor = (loads[None, :] + (n - 1) * loads[:, None]) / n
        sd = np.sqrt(spread)
        part = np.zeros((levels, levels))
        for lead in leads.ravel():
            needed = gap / lead
            chance = np.where(
                needed <= floor, 1.0, special.ndtr((total[None, :] - n * needed) / sd)
            )
            part += np.where(gap <= 0, 1.0, chance) / leads.size
    return least @ part, 1 - part @ seen


def evaluate(cluster: RoutedCluster, law, slope: float) -> SimpleNamespace:
    """Apply the map once, the free flow to the least loaded iterated rather than solved for."""
    closure = Closure(cluster)
    n, rate, follow, first = closure.n, closure.rate, closure.follow_rate, closure.first_rate
    form, base, loads = cluster.policy.threshold_form, closure.base, np.arange(law.size)
    mean = law @ loads
    variance = law @ (loads - mean) ** 2
    arrivals = np.maximum(follow + slope * (loads - mean), 0.05 * follow)
    arrivals *= follow / (law @ arrivals)
    seen = law * arrivals / follow

    # the cluster's total: a product form of this mean, no wider than linear noise
    service = (law[1:] * (loads[1:] - mean)) @ base / variance
    weights = np.append(0.0, np.cumsum(np.log(rate / base)))
    factors = np.append(np.geomspace(0.02, 1.0, 40), [1.05, 1.1])
    tilted = weights + np.log(factors[factors * rate < 0.9995 * base[-1]])[:, None] * loads
    tilted = np.exp(tilted - tilted.max(axis=1, keepdims=True))
    tilted /= tilted.sum(axis=1, keepdims=True)
    means = tilted @ loads
    ratio = np.interp(mean, means, (tilted @ loads**2 - means**2) / means)
    total_variance = min(ratio * mean, rate / service if service > 0 else np.inf)

    stay, leave_at = stays(cluster, law, seen, total_variance)
    hash_asked = form.first_turn == "hash"
    never = cluster.policy.name == "load-balance"
    evicted = 0.0 if hash_asked or never else evicted_ratio(cluster)
    leave = (1 - evicted) * (1 - seen @ stay)
    sticking = np.zeros(law.size) if never else (1 - evicted) * stay
    fixed, moving = first + follow * evicted, follow * leave
    joined, others = sink(law, n), sink(law, n - 1)
    if leave_at is not None:
        others = leave_at * others / (law @ (leave_at * others))
    joined = (fixed * joined + moving * others) / (fixed + moving)
    if never:
        joined = sink(law, n)
    elif hash_asked:
        joined = np.ones(law.size)
    births = arrivals * sticking + (fixed + moving) * joined
    if form.compares_with == "mean" and hash_asked:
        leave = 1 - law @ stay
        joined = stay / (law @ stay)
        births = rate * joined
    completion = base if never else base / (1 + cluster.move_work_ratio * follow / rate * leave)

    new_law = birth_death(births, completion)
    if not (never or hash_asked):
        left = np.full(law.size, moving)
        if leave_at is not None:
            left = follow * (1 - evicted) * leave_at
        new_law = law
        for _ in range(20_000):
            free = fixed * sink(new_law, n) + left * sink(new_law, n - 1)
            again = birth_death(arrivals * sticking + free, completion)
            new_law, before = 0.98 * new_law + 0.02 * again, new_law
            if np.abs(new_law - before).max() < 1e-15:
                break

    # thinking sessions by class, then the load
    gamma, alpha, keeps = cluster.think_time.rates_per_s, cluster.think_time.weights, closure.keeps
    slope_of = (loads - mean) * law / variance
    service = slope_of[1:] @ completion
    kept = seen @ sticking
    drift = np.diag(np.append(-gamma, 0.0))
    drift[:-1, -1] = alpha * (follow / rate) * service
    drift[-1, :-1] = kept * keeps * gamma
    drift[-1, -1] = slope_of @ (follow * sticking + births - arrivals * sticking) - service
    drift[-1, -1] -= 1e-9 * rate
    noise = np.diag(np.append(2 * follow * alpha, 2 * rate))
    noise[:-1, -1] = noise[-1, :-1] = -follow * alpha * (1 + kept * keeps)
    covariance = linalg.solve_continuous_lyapunov(drift, -noise)
    limit = follow / mean
    new_slope = np.clip(
        (gamma * keeps) @ covariance[:-1, -1] / covariance[-1, -1], -20 * limit, limit
    )
    if never or hash_asked:
        new_slope = 0.0
    return SimpleNamespace(
        total_variance=total_variance, stay=stay, leave=leave, joined=joined, births=births,
        completion=completion, new_law=new_law, drift=drift, covariance=covariance,
        new_slope=new_slope,
    )  # fmt: skip
