r"""What a local KV tier needs to know of its workload, worked out once and used at every rate.

Requests that count are sampled, laid out so that the compiled kernels of
:mod:`~smetric_model.analytic._hit_kernels` can work on many side by side, and their contents
tabulated: with ``u_d`` the private tokens that a turn shares with the one ``d`` turns back and
``g_d`` how long those have been idle, ``E[u_d min(g_d, τ)]`` at some ages τ.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _hit_kernels as kernels
from smetric_model.analytic.demand import Demand
from smetric_model.analytic.session_reuse import TURNS_BACK, SessionReuse
from smetric_model.analytic.stay_rule import LEADS, Lead, StayRule, lead_of

__all__ = ["TierTables"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SAMPLE = 4_096  # requests behind the tiers' means
_AGES = 72  # characteristic times at which contents are tabulated
_FEWEST = 1e-9


class TierTables:
    """A workload as a local tier sees it; arrays of shape (n,).

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

    Attributes
    ----------
    rows : ndarray of int
        Which requests of the demand.
    prompt, longest, shared, expected : ndarray
        Prompt, longest hit (a token is left to compute), shared prefix, what a router expects to
        be cached [tokens].
    has_home, first : ndarray of bool
        Whether an earlier turn of the session is in the trace; whether a router sees turn 0.
    own, private, idle : ndarray, shape (len(TURNS_BACK), n)
        What is shared with earlier turns, in all and beyond the shared prefix [tokens]; how long
        that has been idle [s].
    follow_up_ratio : float
        Share of the requests with a home.
    mean_output, mean_private, mean_shared : float
        Of the requests [tokens].
    ages : ndarray, shape (a,)
        Ages at which contents are tabulated [s].
    """

    def __init__(
        self,
        demand: Demand,
        reuse: SessionReuse,
        rows: IntArray,
        sampled: bool = True,
    ):
        self.demand = demand
        self.rows = at = _sample(demand, rows) if sampled else rows
        self.prompt = demand.prompt_tokens[at]
        self.block = float(demand.instance.block_tokens)
        self.cache_block = float(max(demand.trace.block_tokens or 1, demand.instance.block_tokens))
        self.longest = np.maximum(np.ceil(self.prompt / self.block) - 1, 0) * self.block
        self.has_home = np.isfinite(reuse.idle_s[0, at])
        self.homes = int(np.count_nonzero(self.has_home))
        self.first = reuse.first_turn[at]
        self.shared = reuse.shared_tokens[at]
        self.expected = reuse.expected_tokens[at]
        self.own = np.ascontiguousarray(reuse.own_tokens[:, at])
        self.idle = np.ascontiguousarray(reuse.idle_s[:, at])
        self.private = np.maximum(self.own - self.shared, 0.0)
        self.mean_output = float(demand.output_tokens[at].mean())
        self.mean_shared = float(self.shared.mean())
        self._find_parts(reuse, rows)
        self._lay_out(reuse.between_tokens[:, at])
        self._tabulate()

    def _find_parts(self, reuse: SessionReuse, rows: IntArray) -> None:
        """Parts of the shared prefixes: how often each is touched, and who has which.

        Requests with the same prefix form a group.  A prefix is a path in a tree, so that its
        deepest part and its length tell which.
        """
        parts = reuse.part_size_tokens.size
        among = np.zeros(reuse.session.size, dtype=bool)
        among[rows] = True
        touched = np.bincount(reuse.part[among[reuse.part_request]], minlength=parts)
        self.part_ratio = touched / max(rows.size, 1)
        self.part_size = reuse.part_size_tokens
        place = np.full(reuse.session.size, -1, np.int64)
        place[self.rows] = np.arange(self.rows.size)
        owner = place[reuse.part_request]
        mine = np.flatnonzero(owner >= 0)
        mine = mine[np.argsort(owner[mine], kind="stable")]  # the deepest part comes first
        owner = owner[mine]
        begins = np.searchsorted(owner, np.arange(self.rows.size + 1))
        has = begins[1:] > begins[:-1]
        deepest = np.full(self.rows.size, -1.0)
        deepest[has] = reuse.part[mine[begins[:-1][has]]]
        _, member, group = np.unique(
            deepest + 1j * self.shared, return_index=True, return_inverse=True
        )
        self._group = np.asarray(group, dtype=np.int64).reshape(-1)
        counts = (begins[1:] - begins[:-1])[member]
        self._group_begin = np.append(0, np.cumsum(counts))
        entry = np.repeat(begins[member] - self._group_begin[:-1], counts)
        entry = mine[entry + np.arange(entry.size)]
        self._group_part = reuse.part[entry]
        self._group_shared = self.shared[member]
        whole = np.repeat(np.maximum(self._group_shared, _FEWEST), counts)
        self._group_share = reuse.part_tokens[entry] / whole

    def _lay_out(self, between: FloatArray) -> None:
        """Put what kernels look at into blocks of as many requests as they work on together.

        Follow-ups come first, those with many earlier turns before others.
        """
        lanes, n = kernels.LANES, self.prompt.size
        deep = np.count_nonzero(self.own[1:] > 0, axis=0)
        self._order = order = np.lexsort((-deep, ~self.has_home))
        blocks = -(-n // lanes)

        def padded(values: FloatArray) -> FloatArray:
            return np.pad(values[..., order], [(0, 0)] * (values.ndim - 1) + [(0, -n % lanes)])

        figures = {
            kernels.IDLE: np.where(self.has_home, self.idle[0], 0.0),
            kernels.PRIVATE: self.private[0],
            kernels.PER_PRIVATE: 1.0 / np.maximum(self.private[0], 1e-6),
            kernels.PREFIX: np.minimum(self.own[0], self.shared),
            kernels.LONGEST: self.longest,
            kernels.EXPECTED: self.expected,
            kernels.SHARED: self.shared,
            kernels.HOME: self.has_home.astype(float),
        }
        table = padded(np.stack([figures[row] for row in range(kernels.FIGURES)]))
        self._blocks = table.reshape(kernels.FIGURES, blocks, lanes).transpose(1, 0, 2).ravel()
        self._groups = np.pad(self._group[order], (0, -n % lanes)).astype(np.uint32)
        # what older copies there are, as many turns back as any request of a block has
        older = padded(np.stack((self.private, self.idle, between), axis=1))
        older = older.reshape(len(TURNS_BACK), 3, blocks, lanes)
        rows = padded(deep).reshape(blocks, lanes).max(axis=1)
        self._older_begin = np.append(0, np.cumsum(rows * (3 * lanes)))
        self._older = np.concatenate(
            [older[1 : 1 + count, :, block].ravel() for block, count in enumerate(rows)]
        )
        # of these, copies as long as the latest
        long = (self.own[1:] >= self.own[0] - self.cache_block) & (self.own[1:] > 0)
        place, row = np.nonzero(long[:, order].T)
        self._alike = (
            np.searchsorted(place, np.arange(blocks + 1) * lanes),
            place,
            row + 1,
            self.idle[row + 1, order[place]],
            between[row + 1, order[place]],
        )

    def _tabulate(self) -> None:
        """Ages, and means at them that every question needs."""
        finite = self.idle[np.isfinite(self.idle) & (self.private > 0)]
        longest = float(finite.max()) if finite.size else 1.0
        self.ages = np.concatenate(([0.0], np.geomspace(0.05, max(longest, 1.0), _AGES)))
        self.follow_up_ratio = float(self.has_home.mean())
        #: mean of min(think time, age)
        self.think_within = self.ages.copy()
        if self.homes:
            table, ratio = self._table_of(0, self.has_home.astype(float))
            self.think_within = table / ratio
        private = np.maximum(self.prompt - self.shared, 0.0)
        self.mean_private = float(private.mean())
        self.private_cv2 = float(private.var()) / max(self.mean_private, _FEWEST) ** 2
        self._kept_tables: dict[
            tuple[float | None, bool, bool], tuple[FloatArray, float, FloatArray]
        ] = {}
        self._leads: dict[tuple[Lead, float], FloatArray] = {}
        self._kept_leads: dict[object, FloatArray] = {}

    @cached_property
    def contents(self) -> tuple[FloatArray, FloatArray]:
        """E[u_d min(g_d, τ)] at the ages, and E[u_d], for each of TURNS_BACK.

        Shapes (len(TURNS_BACK), a) and (len(TURNS_BACK),) [tokens · s], [tokens].
        """
        tables = [self._table_of(row, self.private[row]) for row in range(len(TURNS_BACK))]
        return np.array([table for table, _ in tables]), np.array([mean for _, mean in tables])

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

    # --- by rule ------------------------------------------------------------------------------

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
        return np.interp(self.leads(rule), np.arange(float(LEADS)), rule.stay_of_leads)

    def passes_prefix(self, rule: StayRule) -> NDArray[np.bool_]:
        """Return whether the shared prefix alone passes the router's guard, of each request.

        Parameters
        ----------
        rule : StayRule
            How the router treats follow-ups.
        """
        least = 0.0 if rule.least_hit_ratio is None else rule.least_hit_ratio
        return np.asarray((self.shared > 0) & (self.shared > least * self.expected))

    def _kept_table(self, rule: StayRule) -> tuple[FloatArray, float, FloatArray]:
        """Return the first of the tables, of the follow-ups that the router may leave at home.

        Also their mean tokens, and the share of these that each is.
        """
        key = (rule.least_hit_ratio, rule.subtract_shared, rule.needs_own)
        if key not in self._kept_tables:
            enough = self.has_home
            if rule.least_hit_ratio is not None:
                enough = enough & (self.own[0] > rule.least_hit_ratio * self.expected)
            if rule.needs_own:
                enough = enough & (self.own[0] > 0)
            kept = self.private[0] * enough
            table, mean = self._table_of(0, kept)
            self._kept_tables[key] = table, mean, kept / max(float(kept.sum()), _FEWEST)
        return self._kept_tables[key]

    def _mean_stay_of_kept(self, rule: StayRule) -> float:
        """How often the tokens stay that the router may leave at home."""
        if rule.stay_of_leads is None:
            return rule.stay
        kept = (rule.least_hit_ratio, rule.subtract_shared, rule.needs_own)
        key = (*kept, rule.lead, rule.longest_lead)
        if key not in self._kept_leads:
            cells, weight = self.leads(rule), self._kept_table(rule)[2]
            low = np.minimum(cells.astype(np.int64), LEADS - 2)
            upto = weight * (cells - low)
            shares = np.bincount(low, weight - upto, LEADS) + np.bincount(low + 1, upto, LEADS)
            self._kept_leads = {key: np.asarray(shares, dtype=float)}
        return float(self._kept_leads[key] @ rule.stay_of_leads)


def _sample(demand: Demand, rows: IntArray) -> IntArray:
    """Pick requests that stand for all: middles of equal strata by uncached and prompt tokens."""
    if rows.size <= _SAMPLE:
        return rows
    new = demand.prompt_tokens[rows] - demand.reusable_tokens[rows]
    order = rows[np.lexsort((demand.prompt_tokens[rows], new))]
    strata = (np.arange(_SAMPLE) + 0.5) * (order.size / _SAMPLE)
    return np.sort(order[strata.astype(int)])
