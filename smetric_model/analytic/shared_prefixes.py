r"""Where shared prefixes lie, and where a policy that weighs hits places first turns therefore.

A prefix (system prompt, tools) lies on the instances that served its framework lately.  It comes
to another one when a request of the framework is placed there, a *spill*: a first turn whose
holders are all too loaded for their hit, or a session that moves.  It leaves a holder when nothing
has touched it for the retention time τ.

Sessions on one holder keep it as customers keep an M/G/∞ queue busy: each stays from its first
touch to τ after its last, V on average.  The busy period of such a queue with the parameter ρ lasts
:math:`V (e^{\rho} - 1)/\rho` on average, whatever the law of the stays, and while it is busy it
has :math:`\rho / (1 - e^{-\rho})` customers.  The framework's M sessions are on its m holders,
hence ρ, and a holder is lost at the rate δ:

.. math:: \frac{M}{m} = \frac{\rho}{1 - e^{-\rho}}, \qquad
    \delta(m) = \frac{\rho}{V (e^{\rho} - 1)} .

The number of holders m is a birth-death chain with births at the rate of spills and deaths at
``m δ(m)``; its mean closes the placement.  A policy that places by load alone spills the share
``1 - m/N`` of its placements; then each instance is an M/G/∞ queue by itself and holds the prefix
with probability ``1 - exp(-M/N)``, as it must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _chain_kernels, _holder_kernels
from smetric_model.analytic import _prefix_kernels as kernels
from smetric_model.analytic.routed_cluster import FollowUpHits, Frameworks, RoutedCluster
from smetric_model.routing.thresholds import FollowUp

__all__ = ["Crowding", "PrefixHolders", "holders_law", "holders_of"]

FloatArray = NDArray[np.float64]
_SAMPLE = 12  # requests that stand for all
_GROUPS = 4  # frameworks told apart while the loads are solved


@dataclass(frozen=True, eq=False)
class PrefixHolders:
    """Instances that hold each framework's prefix; arrays of shape (frameworks,).

    Attributes
    ----------
    instances : int
        N.
    holders_mean : ndarray
        Mean number of instances that hold the prefix.
    collision_ratio : ndarray
        P(two first turns close in time are placed on the same instance).
    later_collision_ratio : ndarray
        The same of two follow-ups that leave their home.
    loss_rate_per_s : ndarray
        Rate at which a holder loses the prefix [1/s].
    """

    instances: int
    holders_mean: FloatArray
    collision_ratio: FloatArray
    later_collision_ratio: FloatArray
    loss_rate_per_s: FloatArray

    def serving_instances(self, window_s: float = 0.0) -> FloatArray:
        r"""Return the effective number of instances that serve each framework's first turns.

        1 / P(two first turns within a window meet on one instance): m for m that serve alike.
        Over a long window holders come and go,

        .. math:: \frac1M = \frac1N + \Bigl(c - \frac1N\Bigr)
            \frac{2}{T^2} \int_0^T (T-u)\, e^{-\delta u}\, du .

        Parameters
        ----------
        window_s : float
            Window T [s]; 0: at a time.

        Returns
        -------
        ndarray, shape (frameworks,)
        """
        return self._effective(self.collision_ratio, window_s)

    def receiving_instances(self, window_s: float = 0.0) -> FloatArray:
        """Return the effective number of instances that moving follow-ups of each choose from.

        Parameters
        ----------
        window_s : float
            See :meth:`serving_instances`.

        Returns
        -------
        ndarray, shape (frameworks,)
        """
        return self._effective(self.later_collision_ratio, window_s)

    def inflow_variance(self, popularity: FloatArray, response_s: float) -> float:
        """Return the variance of an instance's share of first turns, in units of its mean.

        Each framework's first turns fall on its holders alone; what lasts for less than an instance
        takes to feel it counts for less.  Prefixes of different frameworks spread to whoever has
        little to do, and so make up for each other: the variance of independent sets is divided by
        the square root of the effective number of frameworks (empirical, see the docs).

        Parameters
        ----------
        popularity : ndarray, shape (frameworks,)
            Share of the sessions that use each.
        response_s : float
            Time in which an instance's sessions follow its first turns [s].
        """
        extra = np.maximum(self.instances * self.collision_ratio - 1, 0.0)
        lasting = extra / (1 + self.loss_rate_per_s * response_s)
        return float(popularity**2 @ lasting) * float(np.sqrt(popularity @ popularity))

    def _effective(self, collision: FloatArray, window_s: float) -> FloatArray:
        x = self.loss_rate_per_s * window_s
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.where(x > 1e-6, 2 * (np.expm1(-x) + x) / (x * x), 1 - x / 3)
        everywhere = 1 / self.instances
        return np.asarray(1 / (everywhere + (collision - everywhere) * kept))


def holders_law(
    births: FloatArray, stays_per_s: float, stays_mean: float, observed_s: float = np.inf
) -> tuple[FloatArray, FloatArray]:
    """Return the stationary law of the number of holders, and the rate at which one is lost.

    Parameters
    ----------
    births : ndarray, shape (N + 1,)
        Rate at which the prefix comes to another instance while 0, 1, …, N hold it [1/s].
    stays_per_s : float
        Sessions of the framework that come to an instance, in the whole cluster [1/s].
    stays_mean : float
        Mean number of sessions that keep the prefix anywhere.
    observed_s : float
        Time since nobody held it [s]; ``inf``: the steady state.

    Returns
    -------
    law : ndarray, shape (N + 1,)
        P(0, 1, …, N hold it).
    loss_rate : ndarray, shape (N + 1,)
        Of one holder, when so many hold it [1/s].
    """
    count = np.arange(births.size, dtype=float)
    present = stays_mean / np.maximum(count, 1.0)
    rho = _holder_kernels.stays_present_each(present)
    loss = stays_per_s / stays_mean * np.where(rho > 1e-9, rho / np.expm1(np.maximum(rho, 1e-9)), 1)
    if np.isfinite(observed_s):
        return kernels.birth_death_at(births, count * loss, observed_s, 40), loss
    steps = np.log(np.maximum(births[:-1], 1e-290)) - np.log(
        np.maximum(count[1:] * loss[1:], 1e-290)
    )
    log = np.concatenate(([0.0], np.cumsum(steps)))
    law = np.exp(log - log.max())
    return law / law.sum(), loss


class Placement(NamedTuple):
    """Placement by prefix at one law of loads; arrays over loads.

    ``first``, ``evicted``, ``moving``: free flows received at each load ÷ their rates; ``stay``:
    P(a follow-up stays | home load).
    """

    first: FloatArray
    evicted: FloatArray
    moving: FloatArray
    stay: FloatArray


def _spread(values: FloatArray, count: int = _SAMPLE) -> NDArray[np.int64]:
    """Positions of ``count`` entries that stand for all, by size."""
    order = np.argsort(values, kind="stable")
    at = ((np.arange(count) + 0.5) / count * order.size).astype(int)
    return np.asarray(order[np.unique(at)])


class Crowding:
    """Placement by a score that counts shared prefixes.

    Parameters
    ----------
    cluster : RoutedCluster
        With frameworks and follow-ups, under a policy that compares instances.
    levels : int
        Loads told apart.
    """

    def __init__(self, cluster: RoutedCluster, levels: int):
        form = cluster.policy.threshold_form
        assert form is not None
        assert cluster.frameworks is not None
        assert cluster.follow_ups is not None
        self.cluster, self.form, self.levels = cluster, form, levels
        self.loads = np.arange(levels, dtype=float)
        known = cluster.frameworks
        order = np.argsort(-known.popularity, kind="stable")
        order = order[known.popularity[order] > 0]
        # groups of about equal popularity, the most popular first
        before = np.cumsum(known.popularity[order]) - 0.5 * known.popularity[order]
        self.group_of = np.full(known.popularity.size, -1)
        groups = np.minimum((before * _GROUPS).astype(int), _GROUPS - 1)
        _, self.group_of[order] = np.unique(groups, return_inverse=True)
        self.size = int(self.group_of.max()) + 1
        inside = [self.group_of == g for g in range(self.size)]
        self.share = np.array([known.popularity[i].sum() for i in inside])
        self.each = np.array([known.popularity[i].mean() for i in inside])
        self.prefix = np.array(
            [np.average(known.prefix_tokens[i], weights=known.popularity[i]) for i in inside]
        )
        hits = cluster.follow_ups
        own = known.first_prompt_tokens[_spread(known.first_prompt_tokens)]
        self.first = [self._limits(prefix + own, prefix) for prefix in self.prefix]
        whole = np.asarray(hits.prompt_tokens)[_spread(hits.prompt_tokens)]
        self.later = [
            self._limits(np.maximum(whole, prefix + 1.0), prefix) for prefix in self.prefix
        ]
        least = np.asarray(hits.shared_prefix_tokens)
        kept = hits.only(np.asarray(hits.home_hit_tokens > least)) or hits
        rows = _spread(1 - kept.home_hit_tokens / kept.prompt_tokens)
        self.kept = FollowUpHits(kept.prompt_tokens[rows], kept.home_hit_tokens[rows])
        self.empty = self._limits(self.kept.prompt_tokens, self.kept.home_hit_tokens)
        self.holding = [
            self._limits(
                self.kept.prompt_tokens,
                self.kept.home_hit_tokens,
                np.minimum(prefix, self.kept.home_hit_tokens),
            )
            for prefix in self.prefix
        ]

    def _limits(
        self, prompt: FloatArray, hit: FloatArray | float, other_hit: FloatArray | float = 0.0
    ) -> tuple[FloatArray, FloatArray, str]:
        """Limits at no scale (n, levels), their growth with the load scale (n,), the scale."""
        unit = self.cluster.load_unit_tokens
        prompt = np.asarray(prompt, dtype=float)[:, None]
        hit = np.broadcast_to(np.asarray(hit, dtype=float), prompt.shape[:1])[:, None]
        other_hit = np.broadcast_to(np.asarray(other_hit, float), prompt.shape[:1])[:, None]

        def limit(loads: FloatArray, **scale: float) -> FloatArray:
            seen = FollowUp(
                prompt_tokens=prompt,
                home_hit_tokens=hit,
                other_hit_tokens=other_hit,
                other_load=loads * unit,
                **scale,
            )
            return np.asarray(self.form.home_load_limit(seen) / unit, dtype=np.float64)

        table = limit(self.loads)
        if not np.any(np.isnan(table)):
            return np.minimum(table, 10.0 * self.levels), np.zeros(prompt.shape[0]), "none"
        for name, scale in (
            ("mean", {"mean_load": 1.0}),
            ("max", {"max_load": 1.0}),
            ("minmax", {"max_load": 1.0, "min_load": 0.0}),
        ):
            growth = limit(np.zeros(1), **scale)[:, 0] * unit
            if not np.any(np.isnan(growth)):
                zero = np.broadcast_to(self.loads, (prompt.shape[0], self.levels))
                return zero.copy(), np.minimum(growth, 10.0 * self.levels), name
        raise AssertionError("a form that compares instances depends on loads alone")

    def _at(self, table: tuple[FloatArray, FloatArray, str], at_least: FloatArray) -> FloatArray:
        """Limits at the loads' scale."""
        base, growth, name = table
        if name == "none":
            return base
        scale = float(at_least[1:].sum())  # the mean load
        if name != "mean":
            n = self.cluster.instances
            scale = float((1 - (1 - at_least[1:]) ** n).sum())
            if name == "minmax":
                scale -= float((at_least[1:] ** n).sum())
        return np.asarray(base + growth[:, None] * scale)

    def place(
        self, law: FloatArray, at_least: FloatArray, seen: FloatArray, holders: FloatArray
    ) -> Placement:
        """Place by prefix.

        Parameters
        ----------
        law, at_least, seen : ndarray, shape (levels,)
            Law of the loads, its tail, and the law seen by follow-ups at home.
        holders : ndarray, shape (groups,)
            Instances that hold a prefix of each group.

        Returns
        -------
        Placement
        """
        n = float(self.cluster.instances)
        first, later, stay, moving = np.zeros((4, self.levels))
        empty = self._at(self.empty, at_least)
        for g in range(self.size):
            m = float(np.clip(holders[g], 1.0, n))
            spill = 0.0
            for into, table in ((first, self.first[g]), (later, self.later[g])):
                limits = self._at(table, at_least)
                to_holder, to_other, spill = kernels.place_by_prefix(limits, at_least, m, n)
                flow = to_holder * _chain_kernels.least_loaded_share(at_least, law, m)
                if m < n:
                    flow = flow + to_other * _chain_kernels.least_loaded_share(at_least, law, n - m)
                into += self.share[g] * _normal(flow, law)
            holding = self._at(self.holding[g], at_least)
            stay += self.share[g] * kernels.stay_beside_holders(holding, empty, at_least, m, n)
            # those who leave go where somebody is idle enough, holders first
            flow = _leave_at(holding, seen) * _chain_kernels.least_loaded_share(
                at_least, law, max(m - 1.0, 1e-6)
            )
            if m < n:
                away = _leave_at(empty, seen) * _chain_kernels.least_loaded_share(
                    at_least, law, n - m
                )
                flow = (1 - spill) * _normal(flow, law) + spill * _normal(away, law)
            moving += self.share[g] * _normal(flow, law)
        return Placement(first, later, moving, stay)

    def next_holders(self, at_least: FloatArray, leave: float, sojourn_s: float) -> FloatArray:
        """Return the mean number of instances that hold a prefix of each group.

        Parameters
        ----------
        at_least : ndarray, shape (levels,)
            P(load >= l).
        leave : float
            Share of the follow-ups that leave their home, evicted ones included.
        sojourn_s : float
            Mean time of a request at its instance [s].
        """
        means = np.empty(self.size)
        for g in range(self.size):
            spills = self.spills(g, at_least)
            law, _ = _holders(self.cluster, float(self.each[g]), spills, leave, sojourn_s)
            means[g] = law @ np.arange(law.size)
        return means

    def spills(self, group: int, at_least: FloatArray) -> FloatArray:
        """Shares of a group's placements beside its holders, by number of holders.

        Parameters
        ----------
        group : int
            Group of frameworks.
        at_least : ndarray, shape (levels,)
            P(load >= l).

        Returns
        -------
        ndarray, shape (2, N + 1)
            Of first turns, and of follow-ups that leave their home.
        """
        n = self.cluster.instances
        # falls fast in the number of holders: a few numbers, the rest by its logarithm
        nodes = np.unique(np.minimum(2.0 ** np.arange(0, int(np.log2(n)) + 1), n - 1.0))
        shares = [
            kernels.spill_ratios(self._at(table, at_least), at_least, nodes, float(n))
            for table in (self.first[group], self.later[group])
        ]
        count = np.arange(n + 1, dtype=float)
        spill = np.array(
            [np.exp(np.interp(count, nodes, np.log(np.maximum(row, 1e-200)))) for row in shares]
        )
        spill[:, 0], spill[:, -1] = 1.0, 0.0
        return spill


def _normal(flow: FloatArray, law: FloatArray) -> FloatArray:
    total = float(law @ flow)
    return flow / total if total > 1e-250 else np.ones(flow.size)


def _leave_at(limits: FloatArray, seen: FloatArray) -> FloatArray:
    """P(a follow-up leaves its home | the other instance's load), smoothed over one load."""
    above = np.append(np.cumsum(seen[::-1])[::-1], 0.0)  # P(home load >= l)
    place = np.clip(limits + 0.5, 0.0, seen.size - 1e-9)
    low = place.astype(int)
    share = place - low
    return np.asarray(((1 - share) * above[low] + share * above[low + 1]).mean(axis=0))


def _holders(
    cluster: RoutedCluster,
    popularity: float,
    spills: FloatArray,
    leave: float,
    sojourn_s: float,
) -> tuple[FloatArray, FloatArray]:
    """Law of the holders of one prefix and loss rate of each, by number of holders."""
    known = cluster.frameworks
    assert known is not None
    rate = cluster.arrival_rate_rps * popularity
    follow = cluster.turns.follow_up_ratio
    moving = follow * min(max(leave, 0.0), 1.0)
    births = rate * ((1 - follow) * spills[0] + moving * spills[1])
    births[0] = rate
    tau = known.retention_s
    stay_s = sojourn_s + (follow - moving) * cluster.think_time.mean_within_s(tau)
    last_s = (1 - follow + moving) * min(tau, 1e12)
    mean = rate * (stay_s + last_s)
    return holders_law(births, rate * (1 - follow + moving), mean, known.observed_s)


def holders_of(
    cluster: RoutedCluster,
    frameworks: Frameworks,
    leave: float,
    sojourn_s: float,
    crowding: Crowding | None,
    at_least: FloatArray,
) -> PrefixHolders:
    """Return where each framework's prefix lies.

    Parameters
    ----------
    cluster : RoutedCluster
        The cluster.
    frameworks : Frameworks
        Its frameworks.
    leave : float
        Share of the follow-ups that leave their home, for any reason.
    sojourn_s : float
        Mean time of a request at its instance [s].
    crowding : Crowding, optional
        Placement by prefix; without it requests are placed whatever they find.
    at_least : ndarray
        P(load >= l) of one instance.
    """
    n = cluster.instances
    count = np.arange(n + 1, dtype=float)
    blind = np.stack((1 - count / n, 1 - count / n))
    by_group = (
        [blind]
        if crowding is None
        else [crowding.spills(group, at_least) for group in range(crowding.size)]
    )
    mean, meet, later, lost = np.zeros((4, frameworks.popularity.size))
    for k, popularity in enumerate(frameworks.popularity):
        if popularity == 0:
            meet[k] = later[k] = 1.0
            continue
        spills = by_group[0 if crowding is None else int(crowding.group_of[k])]
        law, loss = _holders(cluster, float(popularity), spills, leave, sojourn_s)
        mean[k], lost[k] = law @ count, law @ loss
        at_mean = [float(np.interp(mean[k], count, row)) for row in spills]
        if crowding is None:
            meet[k] = later[k] = 1 / n
            continue
        held = float(law @ (1 / np.maximum(count, 1.0)))
        free = float(law @ (1 / np.maximum(n - count, 1.0)))
        meet[k], later[k] = ((1 - x) ** 2 * held + x**2 * free for x in at_mean)
    return PrefixHolders(n, mean, np.maximum(meet, 1 / n), np.maximum(later, 1 / n), lost)
