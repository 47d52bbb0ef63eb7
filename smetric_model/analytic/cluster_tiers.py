r"""Two KV tiers under a router: what each request finds where it lands.

**Local tier** (one instance, LRU).  A turn leaves a copy of its prompt on the instance that served
it.  The copy lies there until the session's next turn *on that instance*, or a characteristic
time τ (Che, 2002) after its last use.  With ``q_d`` the probability that the session was here last
``d`` turns ago, ``u_d`` the private tokens (beyond the shared prefix) that the turn then shares
with this one, ``g_d`` how long they have been idle and ``p`` all private tokens of a prompt, an
instance that gets ``z`` times the mean rate holds

.. math::

   z \frac{λ}{N} \Big( \sum_d q_d E[u_d \min(g_d, τ)] + τ \big(E[p] - \sum_d q_d E[u_d]\big) \Big)
   + \sum_f S_f (1 - e^{-z λ_f τ / N}) + \text{pinned} = \text{pool}.

The second term is KV that nobody comes back for: finished sessions, rewritten histories, and what
sessions that moved have left behind.  The third are shared prefixes, held once, present where they
were touched within τ.  ``q_d`` follows from the probability ``a`` that a turn is served where the
previous one was, others going anywhere else alike:

.. math:: q_1 = a, \qquad q_d = (1 - a)\, (1 - b)^{d-2}\, b, \quad b = (1 - a)/(N - 1).

**Spread.**  An instance holds few copies, so that ``z`` varies between instances: Gamma with mean
1 and variance (1 + cv²)/m for m copies of coefficient of variation cv.

**Tail first.**  The copy that has been idle longest is evicted from its end, a token for every
token that the instance stores.  It begins to shrink at τ - w/2 and is gone at τ + w/2, w being the
time in which the instance stores as many tokens.

**Cold start.**  Tiers are empty at the start of the warm-up: at time t no copy is older than t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaincinv

from smetric_model.analytic import _hit_kernels, _tier_kernels
from smetric_model.analytic.session_reuse import TURNS_BACK
from smetric_model.analytic.stay_rule import HOLDERS, Pace, StayRule
from smetric_model.analytic.tier_tables import TierTables
from smetric_model.routing.ties import TieBreaking, holders_needed

__all__ = ["LocalHits", "LocalTier", "turns_back_weights"]

FloatArray = NDArray[np.float64]

_SPREAD = 5  # instances told apart by how much they get
_FEWEST = 1e-9
_STEADY = 2e-3  # change of the share that stays at which it has come to rest
_BACK = np.array(TURNS_BACK, dtype=float)
#: an entry of TURNS_BACK stands for the turns up to the middle between it and the next
_TURN_EDGES = np.concatenate(([1.0], np.floor(0.5 * (_BACK[1:-1] + _BACK[2:])), [2 * _BACK[-1]]))
_ALONE = (np.ones(1), np.ones(1))
_NO_LEADS = np.zeros(0)


def turns_back_weights(stay: float, instances: int) -> FloatArray:
    """Return the law of how many turns back a session was last where it is now.

    Parameters
    ----------
    stay : float
        Probability that a turn is served where the previous one was.
    instances : int
        N.

    Returns
    -------
    ndarray, shape (len(TURNS_BACK),)
        ``q_d``, summed over the turns that each of
        :data:`~smetric_model.analytic.session_reuse.TURNS_BACK` stands for.
    """
    result = np.empty(_BACK.size)
    _tier_kernels.turns_back_law(float(stay), float(instances), _TURN_EDGES, result)
    return result


@lru_cache(maxsize=256)
def _gamma_nodes(shape: float) -> tuple[FloatArray, FloatArray]:
    """Equally likely values of a Gamma variable of mean 1: means of equal parts of its law.

    And the share of the requests that such instances get: a busier one gets more.
    """
    edges = (np.arange(_SPREAD) + 0.5) / _SPREAD
    nodes = np.asarray(gammaincinv(shape, edges) / shape, dtype=float)
    nodes /= nodes.mean()
    return nodes, np.asarray(nodes / nodes.sum(), dtype=float)


@lru_cache(maxsize=256)
def held_by_all(instances: int) -> FloatArray:
    """Return P(a prefix counts as held by all | an instance holds it with chance 0, 1/64, … 1).

    Routers ask for a share of the instances, one of which is the home.

    Parameters
    ----------
    instances : int
        N.
    """
    needed = holders_needed(instances, TieBreaking.shared_by_ratio)
    chance = np.linspace(0.0, 1.0, 65)
    return np.asarray(bdtrc(max(needed - 2, -1), max(instances - 1, 1), chance))


@lru_cache(maxsize=64)
def _one_in_so_many(instances: int) -> FloatArray:
    """P(the home is chosen of 1 … N holders alike), numbers in geometric series."""
    return np.asarray(1.0 / np.geomspace(1.0, float(max(instances, 2)), HOLDERS))


class _Spread(NamedTuple):
    """Instances of different load: z, share of the requests, and characteristic time [s]."""

    nodes: FloatArray
    shares: FloatArray
    ages: FloatArray


@dataclass(frozen=True, eq=False)
class LocalHits:
    """What requests find in the memory of the instance that serves them; arrays of shape (n,).

    Attributes
    ----------
    stay : ndarray
        Probability that the request is served where the previous turn was.
    whole : ndarray
        Probability that it is and finds all of its context.
    found_tokens : ndarray, shape (3, n)
        Hit of such a one; mean hit of others that stay, and of those that do not stay (first turns
        included): ``whole_tokens``, ``part_tokens`` and ``landed_tokens`` [tokens].
    refused_each : ndarray
        Probability that the home of each request lost too much of its context for the router.
    tokens : ndarray
        Mean hit of each request [tokens].
    mean_stay : float
        Of follow-ups.
    refused : float
        Share of the follow-ups whose home lost too much of their context for the router.
    tied : float
        Share of the follow-ups that go to another copy as long as the home's.
    adrift : float
        Share of the follow-ups of whose context no more than a shared prefix is left that not all
        instances hold: any of its holders serves them.  Part of ``refused``.
    retention_s : float
        Characteristic time of an instance of average load [s].
    held_tokens : float
        KV cached and not in use, on an average instance [tokens].
    spread : _Spread
        Instances of different load.
    stored_tokens : float
        Tokens that a request adds to the tier, as assumed [tokens].
    inflow_tokens : float
        The same as it follows from the hits [tokens].
    """

    stay: FloatArray
    whole: FloatArray
    found_tokens: FloatArray
    refused_each: FloatArray
    tokens: FloatArray
    mean_stay: float
    refused: float
    tied: float
    adrift: float
    retention_s: float
    held_tokens: float
    spread: _Spread
    stored_tokens: float
    inflow_tokens: float

    @property
    def whole_tokens(self) -> FloatArray:
        """Hit of a request that stays and finds all of its context [tokens]."""
        return np.asarray(self.found_tokens[0])

    @property
    def part_tokens(self) -> FloatArray:
        """Mean hit of one that stays and finds less [tokens]."""
        return np.asarray(self.found_tokens[1])

    @property
    def landed_tokens(self) -> FloatArray:
        """Mean hit of one that lands elsewhere [tokens]."""
        return np.asarray(self.found_tokens[2])


class LocalTier(TierTables):
    """Local tiers of a cluster's instances, for one workload."""

    def hits(
        self,
        rule: StayRule,
        rate_rps: float,
        instances: int,
        pinned_tokens: float,
        window_s: tuple[float, float],
        pace: Pace,
        start: LocalHits | None = None,
        most: int = 3,
    ) -> LocalHits:
        """Return what requests find where they land.

        Parameters
        ----------
        rule : StayRule
            How the router treats follow-ups.
        rate_rps : float
            Of the cluster [requests/s].
        instances : int
            N.
        pinned_tokens : float
            Mean KV of running requests of an instance [tokens].
        window_s : tuple of float
            Beginning and end of the window, from the moment when the tiers were empty [s].
        pace : Pace
            How long requests run: so long is a shared prefix in use, and so much later than think
            times say do a session's next turns come.
        start : LocalHits, optional
            Answer to a similar question, to start from.
        most : int
            Evaluations after which it is taken as it is.

        Returns
        -------
        LocalHits
        """
        own_rps = rate_rps / instances
        mean_stay = rule.stay if instances > 1 else 1.0
        # as if all that is left at home were found there
        stored = max(self.mean_private - mean_stay * self._kept_table(rule)[1], 1.0)
        result = start
        for turn in range(most):
            if result is not None:
                mean_stay, stored = result.mean_stay, result.inflow_tokens
            spread, held = self._spread(rule, own_rps, instances, pinned_tokens, pace, mean_stay)
            given = (rule, spread, instances, own_rps, stored, window_s, pace, mean_stay)
            table, sums = self._look_up(*given, alone=False)
            stays, refused, tied, adrift, tokens = sums
            homes = max(self.homes, 1)
            result = LocalHits(
                stay=table[0],
                whole=table[1],
                found_tokens=table[2:5],
                refused_each=table[5],
                tokens=table[6],
                mean_stay=stays / homes if self.homes else 1.0,
                refused=refused / homes,
                tied=tied / homes,
                adrift=adrift / homes,
                retention_s=float(spread.ages[spread.ages.size // 2]),
                held_tokens=min(held, max(self.demand.pool_tokens - pinned_tokens, 0.0)),
                spread=spread,
                stored_tokens=stored,
                inflow_tokens=max(
                    self.mean_private - tokens / self.prompt.size + self.mean_shared, 1.0
                ),
            )
            settled = abs(result.mean_stay - mean_stay) < _STEADY
            # what is stored follows from an answer: the first one has none
            if (settled and (turn > 0 or start is not None)) or not self.homes:
                break
        assert result is not None
        return result

    def _spread(
        self,
        rule: StayRule,
        own_rps: float,
        instances: int,
        pinned_tokens: float,
        pace: Pace,
        mean_stay: float,
    ) -> tuple[_Spread, float]:
        """Instances of different load, and what the mean one caches and does not use [tokens]."""
        pool = float(self.demand.pool_tokens)
        free = max(pool - pinned_tokens, 0.0)
        copies = max(free / max(self.mean_private, 1.0), 0.5)
        nodes, shares = _gamma_nodes(round(copies / (mean_stay + self.private_cv2), 2) or 0.01)
        if instances == 1:
            nodes, shares = _ALONE
        kept, kept_tokens, _ = self._kept_table(rule)
        ages = np.empty(nodes.size)
        held = _tier_kernels.tier(
            self.ages,
            *self.contents,
            self.think_within,
            kept,
            kept_tokens,
            self.part_ratio,
            self.part_size,
            _BACK,
            _TURN_EDGES,
            nodes,
            ages,
            mean_stay,
            1.0 if instances == 1 else self._mean_stay_of_kept(rule),
            float(instances),
            own_rps,
            float(pinned_tokens),
            pool,
            self.mean_private,
            self._running_s(pace),
            mean_stay * self.follow_up_ratio,
        )
        return _Spread(nodes, shares, ages), held

    def visit_s(self, age_s: float, again: float) -> float:
        """Return how long a turn keeps a shared prefix in place, its run aside [s].

        Until the session's next turn, with the probability ``again`` here, if that is sooner.

        Parameters
        ----------
        age_s : float
            Characteristic time of the instance [s].
        again : float
            Share of the turns that have another one here.
        """
        return float(_tier_kernels.visit_s(age_s, again, self.ages, self.think_within))

    def _running_s(self, pace: Pace) -> float:
        """Mean time that a request runs [s]."""
        return float(pace.first_token_s + pace.per_output_token_s * self.mean_output)

    def stays_alone(
        self,
        rule: StayRule,
        hits: LocalHits,
        instances: int,
        own_rps: float,
        window_s: tuple[float, float],
        pace: Pace,
    ) -> FloatArray:
        """Return where each request goes, for tiers of a fixed point; of other requests, even.

        Parameters
        ----------
        rule, instances, window_s, pace
            As of :meth:`hits`.
        hits : LocalHits
            The answer.
        own_rps : float
            Of an average instance [requests/s].

        Returns
        -------
        ndarray, shape (4, n)
            P(it stays), P(it goes to another copy as long), P(it leaves for the latest copy
            elsewhere), that only where the router seeks hits, P(its home lost its context).
        """
        given = (rule, hits.spread, instances, own_rps, hits.stored_tokens, window_s, pace)
        return self._look_up(*given, hits.mean_stay, alone=True)[0]

    def _look_up(
        self,
        rule: StayRule,
        spread: _Spread,
        instances: int,
        own_rps: float,
        stored_tokens: float,
        window_s: tuple[float, float],
        pace: Pace,
        mean_stay: float,
        alone: bool,
    ) -> tuple[FloatArray, tuple[float, float, float, float, float]]:
        """Look up what each request finds, averaged over instances (``_hit_kernels.found``)."""
        if rule.seeks_hits:
            # the last turn that was not here: as long ago as the session has stayed since
            back = np.diff(1 - mean_stay ** (_TURN_EDGES - 1.0))
        else:
            # of those that leave, few come to where the session has been before
            back = turns_back_weights(mean_stay, instances)[1:] / max(1 - mean_stay, _FEWEST)
        result = np.empty((4 if alone else 7, self.prompt.size))
        sums = _hit_kernels.found(
            self._order,
            self._blocks,
            self._groups,
            self._older_begin,
            self._older,
            self._alike,
            self._group_begin,
            self._group_part,
            self._group_share,
            self._group_shared,
            self.part_ratio,
            self.ages,
            self.think_within,
            *spread,
            _NO_LEADS if rule.stay_of_leads is None else self.leads(rule),
            rule.stay_table(),
            held_by_all(instances),
            _one_in_so_many(instances) if rule.home_wins is None else rule.home_wins,
            _BACK,
            _TURN_EDGES,
            back,
            (float(pace.first_token_s), float(pace.per_output_token_s)),
            (float(window_s[0]), float(window_s[1])),
            (
                own_rps,
                float(instances),
                self._running_s(pace),
                mean_stay * self.follow_up_ratio,
                own_rps * stored_tokens,
            ),
            (
                float(rule.older_wins),
                float(rule.stay_without),
                -1.0 if rule.least_hit_ratio is None else float(rule.least_hit_ratio),
                float(rule.subtract_shared),
                self.block if rule.tie_tokens is None else float(rule.tie_tokens),
            ),
            (rule.seeks_hits, rule.needs_own, alone),
            result,
        )
        return result, sums

    def shared_in_use(self, own_rps: float, running_s: float) -> float:
        """Return the shared prefixes that an instance's running requests use, held once [tokens].

        Parameters
        ----------
        own_rps : float
            Of the instance [requests/s].
        running_s : float
            How long a request runs [s].
        """
        return float(self.part_size @ -np.expm1(-own_rps * self.part_ratio * running_s))
