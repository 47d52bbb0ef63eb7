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
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import bdtrc, gammaincinv

from smetric_model.analytic import _session_kernels
from smetric_model.analytic.demand import Demand
from smetric_model.analytic.session_reuse import TURNS_BACK, SessionReuse
from smetric_model.routing.ties import TieBreaking, holders_needed

__all__ = ["LocalHits", "LocalTier", "Pace", "StayRule", "turns_back_weights"]

FloatArray = NDArray[np.float64]

_SAMPLE = 4_096  # requests behind the tiers' means
_SPREAD = 5  # instances told apart by how much they get
_AGES = 72  # characteristic times at which contents are tabulated
_FEWEST = 1e-9
LEADS = 129  # leads told apart
HOLDERS = 12  # numbers of instances told apart among those that hold a prefix
_STEADY = 2e-3  # change of the share that stays at which it has come to rest
_BACK = np.array(TURNS_BACK, dtype=float)
#: an entry of TURNS_BACK stands for the turns up to the middle between it and the next
_TURN_EDGES = np.concatenate(([1.0], np.floor(0.5 * (_BACK[1:-1] + _BACK[2:])), [2 * _BACK[-1]]))


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
    result = np.zeros(_BACK.size)
    result[0] = stay
    if instances == 1 or stay >= 1:
        result[0] = 1.0
        return result
    again = (1 - stay) / (instances - 1)
    left = (1 - again) ** (_TURN_EDGES - 1.0)
    result[1:] = (1 - stay) * -np.diff(left)
    return result


@lru_cache(maxsize=256)
def _gamma_nodes(shape: float) -> FloatArray:
    """Equally likely values of a Gamma variable of mean 1: means of equal parts of its law."""
    edges = (np.arange(_SPREAD) + 0.5) / _SPREAD
    nodes = np.asarray(gammaincinv(shape, edges)) / shape
    return np.asarray(nodes / nodes.mean())


@lru_cache(maxsize=256)
def _held_by_all(instances: int) -> FloatArray:
    """P(a prefix counts as held by all | an instance holds it with chance 0, 1/64, … 1).

    Routers ask for a share of the instances, one of which is the home.
    """
    needed = holders_needed(instances, TieBreaking.shared_by_ratio)
    chance = np.linspace(0.0, 1.0, 65)
    return np.asarray(bdtrc(max(needed - 2, -1), max(instances - 1, 1), chance))


#: how a policy compares the home's hit with the prefix that others hold: private hit ÷ prompt, what
#: others would compute ÷ what the home would, private hit in tokens
Lead = Literal["share", "ratio", "tokens"]


def lead_of(kind: Lead, prompt: FloatArray, own: FloatArray, shared: FloatArray) -> FloatArray:
    """Return what a home's hit is worth against the shared prefix elsewhere.

    Parameters
    ----------
    kind : {"share", "ratio", "tokens"}
        Private hit ÷ prompt; what others would compute ÷ what the home would; private hit.
    prompt, own, shared : ndarray, shape (n,)
        Prompt, hit at home, shared prefix [tokens].
    """
    private = np.maximum(own - shared, 0.0)
    if kind == "share":
        return np.asarray(private / prompt)
    if kind == "ratio":
        return np.asarray(np.log1p(private / np.maximum(prompt - own, 1.0)))
    return private


@lru_cache(maxsize=64)
def _holders(instances: int) -> FloatArray:
    """Numbers of instances told apart among those that hold a prefix."""
    return np.geomspace(1.0, float(max(instances, 2)), HOLDERS)


class Pace(NamedTuple):
    """How long a request takes.

    Attributes
    ----------
    first_token_s : float
        Mean time to first token [s].
    per_output_token_s : float
        Mean time of every further token [s].
    """

    first_token_s: float
    per_output_token_s: float


@dataclass(frozen=True)
class StayRule:
    """How a router treats follow-ups, as far as the tiers need to know.

    Attributes
    ----------
    stay : float
        Probability that a follow-up whose home has its context stays there.
    least_hit_ratio : float or None
        A follow-up leaves if no more than this share of its expected hit is left at home; None:
        the router does not look.
    subtract_shared : bool
        Whether the shared prefix is taken off both sides of that comparison.
    needs_own : bool
        Whether a home that holds no more than the shared prefix counts as none.
    stay_without : float
        Probability that a follow-up whose home has lost its context is served there all the same.
    seeks_hits : bool
        Whether a request that leaves goes where it finds most of its prompt: to the latest copy
        elsewhere, else to an instance that holds the shared prefix.  Otherwise it falls as it may.
    stay_of_leads : ndarray, shape (LEADS,), optional
        Where those with much of their prompt at home stay more than others: the probability to stay
        at leads (:func:`lead_of`) from 0 to ``longest_lead``; ``stay`` is the mean.
    stay_above_leads : ndarray, shape (LEADS,), optional
        The same of those with such a lead or a larger one.
    lead : {"share", "ratio", "tokens"}
        What the leads are.
    longest_lead : float
        Largest lead told apart, in that unit.
    older_wins : float
        Probability that a copy as long as the home's takes a follow-up that would stay.
    home_wins : ndarray, optional
        Probability that the home is the least loaded of 1 … N instances, in geometric series; one
        in so many by default.
    """

    stay: float
    least_hit_ratio: float | None = None
    subtract_shared: bool = False
    needs_own: bool = False
    stay_without: float = 0.0
    seeks_hits: bool = False
    stay_of_leads: FloatArray | None = None
    stay_above_leads: FloatArray | None = None
    lead: Lead = "tokens"
    longest_lead: float = 1.0
    older_wins: float = 0.5
    home_wins: FloatArray | None = None

    def stay_table(self) -> FloatArray:
        """Return P(stay) at the leads, and the logarithm of that of turns that find as much.

        An older copy as long as a request's was left by such a turn: those that found less have
        less in common with this one, too.

        Returns
        -------
        ndarray, shape (2, LEADS)
        """
        if self.stay_of_leads is None or self.stay_above_leads is None:
            row = np.full(LEADS, self.stay)
            return np.stack((row, np.log(np.maximum(row, 1e-12))))
        above = np.log(np.maximum(self.stay_above_leads, 1e-12))
        return np.stack((self.stay_of_leads, above))


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
    whole_tokens, part_tokens, landed_tokens : ndarray
        Hit of such a one; mean hit of others that stay, and of those that do not stay (first turns
        included) [tokens].
    refused_each : ndarray
        Probability that the home of each request lost too much of its context for the router.
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
        Tokens that a request adds to the tier [tokens].
    """

    stay: FloatArray
    whole: FloatArray
    whole_tokens: FloatArray
    part_tokens: FloatArray
    landed_tokens: FloatArray
    refused_each: FloatArray
    mean_stay: float
    refused: float
    tied: float
    adrift: float
    retention_s: float
    held_tokens: float
    spread: _Spread
    stored_tokens: float

    @property
    def tokens(self) -> FloatArray:
        """Mean local hit of each request [tokens]."""
        return np.asarray(
            self.whole * self.whole_tokens
            + (self.stay - self.whole) * self.part_tokens
            + (1 - self.stay) * self.landed_tokens
        )


class LocalTier:
    """Local tiers of a cluster's instances, for one workload.

    What does not depend on the cluster is worked out once.

    Parameters
    ----------
    demand : Demand
        Its requests and pool.
    reuse : SessionReuse
        What they could reuse.
    rows : ndarray of int
        Requests that count (those of the window, where it is known).
    sampled : bool
        Whether a sample stands for them where they are many.
    """

    def __init__(
        self,
        demand: Demand,
        reuse: SessionReuse,
        rows: NDArray[np.int64],
        sampled: bool = True,
    ):
        self.demand = demand
        self.rows = _sample(demand, rows) if sampled else rows
        at = self.rows
        self.prompt = demand.prompt_tokens[at]
        self.block = float(demand.instance.block_tokens)
        self.cache_block = float(max(demand.trace.block_tokens or 1, demand.instance.block_tokens))
        self.longest = np.maximum(np.ceil(self.prompt / self.block) - 1, 0) * self.block
        self.has_home = np.isfinite(reuse.idle_s[0, at])
        self.first = reuse.first_turn[at]
        self.shared = reuse.shared_tokens[at]
        self._find_parts(reuse, rows)
        self.expected = reuse.expected_tokens[at]
        self.own = np.ascontiguousarray(reuse.own_tokens[:, at])
        self.idle = np.ascontiguousarray(reuse.idle_s[:, at])
        self.between = np.ascontiguousarray(reuse.between_tokens[:, at])
        as_long = (self.own >= self.own[0] - self.cache_block) & (self.own > 0)
        self._alike = len(TURNS_BACK) - np.argmax(as_long[::-1], axis=0)
        self.mean_output = float(demand.output_tokens[at].mean())
        self.private = np.maximum(self.own - self.shared, 0.0)
        #: per request and turn back: private and own tokens, idle time, output tokens in between
        self._turns = np.ascontiguousarray(
            np.stack((self.private, self.own, self.idle, self.between)).transpose(2, 1, 0)
        )
        self.private_prompt = np.maximum(self.prompt - self.shared, 0.0)
        self._tabulate()

    def _find_parts(self, reuse: SessionReuse, rows: NDArray[np.int64]) -> None:
        """Parts of the shared prefixes: how often each is touched, and who has which."""
        parts = reuse.part_size_tokens.size
        among = np.zeros(reuse.session.size, dtype=bool)
        among[rows] = True
        touched = np.bincount(reuse.part[among[reuse.part_request]], minlength=parts)
        self.part_ratio = touched / max(rows.size, 1)
        self.part_size = reuse.part_size_tokens
        place = np.full(reuse.session.size, -1, np.int64)
        place[self.rows] = np.arange(self.rows.size)
        mine = place[reuse.part_request] >= 0
        self._parts = csr_matrix(
            (
                reuse.part_tokens[mine],
                (place[reuse.part_request[mine]], reuse.part[mine]),
            ),
            shape=(self.rows.size, max(parts, 1)),
        )

    def _tabulate(self) -> None:
        """E[u_d min(g_d, τ)] at some ages, and E[u_d], for each of TURNS_BACK."""
        finite = self.idle[np.isfinite(self.idle) & (self.private > 0)]
        longest = float(finite.max()) if finite.size else 1.0
        self.ages = np.concatenate(([0.0], np.geomspace(0.05, max(longest, 1.0), _AGES)))
        tables = [self._table_of(row, self.private[row]) for row in range(len(TURNS_BACK))]
        self.content = np.array([table for table, _ in tables])
        self.follow_up_ratio = float(self.has_home.mean())
        pauses = np.sort(self.idle[0, self.has_home])
        self.think_within = self.ages.copy()
        if pauses.size:
            self.think_within = np.array(
                [float(np.minimum(pauses, age).mean()) for age in self.ages]
            )
        self.reused = np.array([mean for _, mean in tables])
        self.mean_private = float(self.private_prompt.mean())
        mean = max(self.mean_private, _FEWEST)
        self.private_cv2 = float(self.private_prompt.var()) / mean**2
        self._kept_tables: dict[
            tuple[float | None, bool, bool], tuple[FloatArray, float, FloatArray]
        ] = {}
        self._leads: dict[tuple[Lead, float], FloatArray] = {}

    def _table_of(self, row: int, tokens: FloatArray) -> tuple[FloatArray, float]:
        """E[tokens · min(idle, τ)] at the ages, and E[tokens], for one of TURNS_BACK."""
        there = np.flatnonzero(tokens > 0)
        idle, tokens = self.idle[row, there], tokens[there] / self.prompt.size
        order = np.argsort(idle)
        idle, tokens = idle[order], tokens[order]
        upto = np.append(0.0, np.cumsum(tokens))
        seconds = np.append(0.0, np.cumsum(tokens * np.minimum(idle, self.ages[-1])))
        kept = np.searchsorted(idle, self.ages, side="right")
        table = seconds[kept] + (upto[-1] - upto[kept]) * self.ages
        return table, float(upto[-1])

    def leads(self, rule: StayRule) -> FloatArray:
        """Return what each request's home hit is worth, in cells of :meth:`StayRule.stay_table`.

        Parameters
        ----------
        rule : StayRule
            How the router treats follow-ups.
        """
        key = (rule.lead, rule.longest_lead)
        if key not in self._leads:
            own = np.minimum(self.own[0], self.prompt)
            lead = lead_of(rule.lead, self.prompt, own, np.minimum(self.shared, own))
            cells = lead * ((LEADS - 1) / rule.longest_lead)
            self._leads = {key: np.clip(cells, 0.0, LEADS - 1.0)}
        return self._leads[key]

    def stays(self, rule: StayRule) -> FloatArray:
        """Return how often each request stays if its home has its context.

        Parameters
        ----------
        rule : StayRule
            How the router treats follow-ups.
        """
        if rule.stay_of_leads is None:
            return np.full(self.prompt.size, rule.stay)
        cells = self.leads(rule)
        low = np.minimum(cells.astype(np.int64), LEADS - 2)
        table = rule.stay_of_leads
        return np.asarray(table[low] + (cells - low) * (table[low + 1] - table[low]))

    def _kept_table(self, rule: StayRule) -> tuple[FloatArray, float, FloatArray]:
        """Return the first of the tables, of the follow-ups that the router may leave at home.

        Also their mean tokens, and the share of these that each is.
        """
        key = (rule.least_hit_ratio, rule.subtract_shared, rule.needs_own)
        if key not in self._kept_tables:
            everywhere = np.zeros(self.prompt.size)
            enough = self._keeps(rule, self.own[0], everywhere, self.shared)
            kept = self.private[0] * enough
            table, mean = self._table_of(0, kept)
            self._kept_tables[key] = table, mean, kept / max(float(kept.sum()), _FEWEST)
        return self._kept_tables[key]

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
        own_rate = rate_rps / instances
        follow = self.has_home
        mean_stay = rule.stay if instances > 1 else 1.0
        # as if all that is left at home were found there
        stored = max(self.mean_private - mean_stay * self._kept_table(rule)[1], 1.0)
        result = start
        for turn in range(most):
            if result is not None:
                mean_stay, stored = result.mean_stay, self._inflow(result)
            result = self._hits(
                rule, own_rate, instances, pinned_tokens, window_s, pace, mean_stay, stored
            )
            settled = abs(result.mean_stay - mean_stay) < _STEADY
            # what is stored follows from an answer: the first one has none
            if (settled and (turn > 0 or start is not None)) or not follow.any():
                break
        assert result is not None
        return result

    def _inflow(self, hits: LocalHits) -> float:
        """Tokens that a request adds to the tier [tokens]."""
        return max(self.mean_private - float((hits.tokens - self.shared).mean()), 1.0)

    def _hits(
        self,
        rule: StayRule,
        own_rate: float,
        instances: int,
        pinned: float,
        window_s: tuple[float, float],
        pace: Pace,
        mean_stay: float,
        stored: float,
    ) -> LocalHits:
        weights = turns_back_weights(mean_stay, instances)
        running_s = pace.first_token_s + pace.per_output_token_s * self.mean_output
        rest = weights * (np.arange(weights.size) > 0)
        first, reused, of_kept = self._kept_table(rule)
        stay = 1.0
        if instances > 1:
            stay = rule.stay if rule.stay_of_leads is None else float(self.stays(rule) @ of_kept)
        content = stay * first + rest @ self._content((np.array(TURNS_BACK) - 1.0) * running_s)
        dead = max(self.mean_private - stay * reused - float(rest @ self.reused), 0.0)
        table = content + dead * self.ages
        again = mean_stay * self.follow_up_ratio
        free = max(self.demand.pool_tokens - pinned, 0.0)
        copies = max(free / max(self.mean_private, 1.0), 0.5)
        nodes = _gamma_nodes(round(copies / (mean_stay + self.private_cv2), 2) or 0.01)
        if instances == 1:
            nodes = np.ones(1)
        ages = np.array(
            [
                self._retention(float(z), own_rate, table, dead, pinned, running_s, again)
                for z in nodes
            ]
        )
        weight = nodes / nodes.sum()  # a busier instance gets more of the requests

        spread = _Spread(nodes, weight, ages)
        parts = self.found(rule, spread, instances, own_rate, stored, window_s, pace, mean_stay)
        stays, whole, part, landed, refused, tied, adrift = parts
        homes = np.flatnonzero(self.has_home)
        middle = float(ages[ages.size // 2])
        held = own_rate * float(np.interp(middle, self.ages, table))
        held += float(self._shared_held(own_rate, np.array([middle]), running_s, again)[0])
        return LocalHits(
            stay=stays,
            whole=whole,
            whole_tokens=np.minimum(
                self.private[0] + np.minimum(self.own[0], self.shared), self.longest
            ),
            part_tokens=np.minimum(part / np.maximum(stays - whole, _FEWEST), self.longest),
            landed_tokens=np.minimum(landed / np.maximum(1 - stays, _FEWEST), self.longest),
            refused_each=refused,
            mean_stay=float(stays[homes].mean()) if homes.size else 1.0,
            refused=float(refused[homes].mean()) if homes.size else 0.0,
            tied=float(tied[homes].mean()) if homes.size else 0.0,
            adrift=float(adrift[homes].mean()) if homes.size else 0.0,
            retention_s=middle,
            held_tokens=min(held, free),
            spread=spread,
            stored_tokens=stored,
        )

    def found(
        self,
        rule: StayRule,
        spread: _Spread,
        instances: int,
        own_rate: float,
        stored: float,
        window_s: tuple[float, float],
        pace: Pace,
        mean_stay: float,
        stays_alone: bool = False,
    ) -> FloatArray:
        """Return what each request finds, averaged over instances of different load.

        Parameters
        ----------
        rule, instances, window_s, pace
            As of :meth:`hits`.
        spread : _Spread
            Instances of different load.
        own_rate : float
            Of an average instance [requests/s].
        stored : float
            Tokens that a request adds to the tier [tokens].
        mean_stay : float
            Share of the follow-ups that stay.
        stays_alone : bool
            Whether only how often requests stay, or go to a copy as long, is asked for.

        Returns
        -------
        ndarray, shape (7, n)
            P(stays), P(stays and finds all), tokens of those that stay and find less, of those that
            land elsewhere (both not divided by the probability), P(refused), P(goes to another
            copy as long), P(refused, and goes to a holder of the shared prefix).
        """
        weights = turns_back_weights(mean_stay, instances)
        running_s = pace.first_token_s + pace.per_output_token_s * self.mean_output
        # the last turn that was not here: as long ago as the session has stayed since
        runs = np.diff(1 - mean_stay ** (_TURN_EDGES - 1.0))
        back = runs
        if not rule.seeks_hits:
            # of those that leave, few come to where the session has been before
            back = weights[1:] / max(1 - mean_stay, _FEWEST)
        kept_s = np.array([_within(float(age) + running_s, window_s) for age in spread.ages])
        again = mean_stay * self.follow_up_ratio
        seen = running_s + self._visit_s(np.maximum(kept_s - running_s, 0.0), again)
        rates = own_rate * self.part_ratio
        hot = -np.expm1(-rates[:, None] * (spread.nodes * seen))
        landing = -np.expm1(-rates[:, None] * (instances * seen)) if rule.seeks_hits else hot
        result = np.zeros((7, self.prompt.size))
        _session_kernels.found(
            self._turns,
            self._alike,
            self.expected,
            self.shared,
            self.has_home,
            self.longest,
            (self._parts.data, self._parts.indices, self._parts.indptr),
            hot,
            landing,
            spread.nodes,
            spread.shares,
            spread.ages,
            own_rate * stored,
            window_s,
            pace.first_token_s,
            pace.per_output_token_s,
            _BACK,
            back,
            _TURN_EDGES,
            _held_by_all(instances),
            self.leads(rule),
            rule.stay_table(),
            1.0 / _holders(instances) if rule.home_wins is None else rule.home_wins,
            (
                rule.older_wins,
                rule.stay_without,
                -1.0 if rule.least_hit_ratio is None else rule.least_hit_ratio,
                float(rule.subtract_shared),
                float(rule.needs_own),
                float(rule.needs_own),
                self.cache_block,
                self.block,
                float(instances),
            ),
            stays_alone,
            result,
        )
        return result

    def _keeps(
        self, rule: StayRule, home: FloatArray, present: FloatArray, own_shared: FloatArray
    ) -> NDArray[np.bool_]:
        """Whether the home holds enough of each request's context for the router."""
        enough = np.ones(home.size, dtype=bool)
        if rule.least_hit_ratio is not None:
            expected = self.expected
            seen = home
            if rule.subtract_shared:
                common = np.where(present >= 0.9, self.shared, 0.0)
                seen, expected = seen - common, np.maximum(expected - common, 0.0)
            enough &= seen > rule.least_hit_ratio * expected
        if rule.needs_own:
            enough &= home > np.where(present >= 0.9, own_shared, 0.0)
        return np.asarray(enough & self.has_home)

    def _content(self, between: FloatArray) -> FloatArray:
        """E[u_d min(g_d, τ)] at the tabulated ages, g_d = think times + service in between."""
        later = self.ages[None, :] - between[:, None]
        rows = [
            np.interp(later[row], self.ages, self.content[row]) for row in range(len(TURNS_BACK))
        ]
        return np.where(
            later > 0,
            np.array(rows) + self.reused[:, None] * between[:, None],
            self.reused[:, None] * self.ages[None, :],
        )

    def _visit_s(self, ages: FloatArray, again: float) -> FloatArray:
        """Time for which a turn keeps a shared prefix in place at most until the next, on average.

        Turns of a session come one after the other: as long as its next turn, with the probability
        ``again`` here, is sooner than the prefix is forgotten, it adds no more than a think time.
        """
        think = np.interp(ages, self.ages, self.think_within)
        return again * think + (1.0 - again) * ages

    def _shared_held(
        self, own_rate: float, ages: FloatArray, running_s: float, again: float
    ) -> FloatArray:
        """Shared prefixes that an instance holds and that no running request uses [tokens]."""
        rate = own_rate * self.part_ratio
        unused = self.part_size * np.exp(-rate * running_s)
        visits = self._visit_s(ages, again)
        return np.asarray(-np.expm1(-visits[:, None] * rate) @ unused)

    def shared_in_use(self, own_rate: float, running_s: float) -> float:
        """Return the shared prefixes that an instance's running requests use, held once [tokens].

        Parameters
        ----------
        own_rate : float
            Of the instance [requests/s].
        running_s : float
            How long a request runs [s].
        """
        return float(self.part_size @ -np.expm1(-own_rate * self.part_ratio * running_s))

    def _retention(
        self,
        z: float,
        own_rate: float,
        table: FloatArray,
        dead: float,
        pinned: float,
        running_s: float,
        again: float,
    ) -> float:
        """Characteristic time of an instance that gets ``z`` times the mean rate [s]."""
        room = self.demand.pool_tokens - z * pinned
        if room <= 0:
            return 0.0
        shared = self._shared_held(z * own_rate, self.ages[::8], running_s, again)
        held = z * own_rate * table + np.interp(self.ages, self.ages[::8], shared)
        if held[-1] <= room:
            slope = z * own_rate * dead
            return float(self.ages[-1] + (room - held[-1]) / slope) if slope > 0 else float("inf")
        return float(np.interp(room, held, self.ages))


def _within(age: float, window_s: tuple[float, float]) -> float:
    """Age that KV can have reached by the middle of the window [s]."""
    return min(age, 0.5 * (window_s[0] + window_s[1]))


def _seen(gap_s: FloatArray, window_s: tuple[float, float]) -> FloatArray:
    """Share of the window in which something so old has been seen."""
    start, end = window_s
    with np.errstate(invalid="ignore"):
        share = (end - gap_s) / max(end - start, _FEWEST)
    return np.clip(share, 0.0, 1.0)


def _sample(demand: Demand, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pick requests that stand for all: middles of equal strata by uncached and prompt tokens."""
    if rows.size <= _SAMPLE:
        return rows
    new = demand.prompt_tokens[rows] - demand.reusable_tokens[rows]
    order = rows[np.lexsort((demand.prompt_tokens[rows], new))]
    strata = (np.arange(_SAMPLE) + 0.5) * (order.size / _SAMPLE)
    return np.sort(order[strata.astype(int)])
