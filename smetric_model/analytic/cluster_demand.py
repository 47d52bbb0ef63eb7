"""What a workload asks of a cluster as a whole, worked out once and used at every rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _mix_kernels, _session_kernels
from smetric_model.analytic.cluster_tiers import LocalHits, LocalTier
from smetric_model.analytic.demand import Demand
from smetric_model.analytic.efficiencies import Efficiencies
from smetric_model.analytic.request_weights import RequestWeights
from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import FollowUpHits
from smetric_model.analytic.stay_rule import Pace, StayRule
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import SpecError

if TYPE_CHECKING:
    from smetric_model.analytic.prefix_holders import Prefixes
    from smetric_model.scenario import Scenario

__all__ = ["ClusterDemand", "cluster_demand", "with_efficiencies", "with_sessions"]

FloatArray = NDArray[np.float64]

_CHAINED = 12_288  # requests along whose sessions returns are followed
_FOLLOW_UPS = 96  # follow-ups that stand for all in the mean field
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class ClusterDemand:
    """A workload as a cluster sees it in its window.

    Attributes
    ----------
    demand : Demand
        The workload.
    rows : ndarray of int
        Requests that count: those of the window where the trace is replayed as recorded, else all.
    rate_rps : float
        Their rate in the trace, servable ones only; ``nan`` without a common clock [requests/s].
    window_s : tuple of float
        Beginning and end of the window from the start of the run, where tiers are empty [s].
    """

    demand: Demand
    rows: NDArray[np.int64]
    rate_rps: float
    window_s: tuple[float, float]

    def with_window(self, window_s: tuple[float, float]) -> ClusterDemand:
        """Return the same requests, looked at in another window of the run.

        Parameters
        ----------
        window_s : tuple of float
            Beginning and end, from the moment when the tiers were empty [s].
        """
        other = replace(self, window_s=window_s)
        other.__dict__["local"] = self.local  # its tables know no window
        return other

    @cached_property
    def local(self) -> LocalTier:
        """Local tiers, for these requests."""
        return LocalTier(self.demand, self.demand.session_reuse, self.rows)

    @cached_property
    def lots(self) -> FloatArray:
        """Evenly spread draws: neighbours get far values."""
        return np.asarray((np.arange(4096) * _GOLDEN) % 1.0, dtype=float)

    @cached_property
    def output_ranks(self) -> NDArray[np.int64]:
        """Ranks of the sample's outputs, equal ones alike, once for each kind of hit."""
        ranks = np.unique(self.output_tokens, return_inverse=True)[1]
        return np.tile(np.asarray(ranks, dtype=np.int64).reshape(-1), 3)

    @cached_property
    def by_output(self) -> NDArray[np.int64]:
        """Order of :attr:`output_ranks`."""
        return np.argsort(self.output_ranks, kind="stable")

    @cached_property
    def by_session(self) -> NDArray[np.intp]:
        """Order of :attr:`everyone` by session, then time."""
        return np.lexsort((self.everyone.rows, self.session_of_everyone))

    @cached_property
    def session_of_everyone(self) -> NDArray[np.int64]:
        """Session of each of :attr:`everyone`."""
        return np.asarray(self.demand.session_reuse.session[self.everyone.rows])

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Which of :attr:`everyone` are follow-ups of the window."""
        reuse, rows = self.demand.session_reuse, self.everyone.rows
        inside = np.zeros(reuse.session.size, dtype=bool)
        inside[self.rows] = True
        return np.asarray(inside[rows] & (reuse.turn[rows] > 0))

    @cached_property
    def idle_of_everyone(self) -> FloatArray:
        """Time since the previous turn of :attr:`everyone` ended; 0 where there is none [s]."""
        idle = self.everyone.idle[0]
        return np.asarray(np.where(np.isfinite(idle), idle, 0.0))

    @cached_property
    def prefixes(self) -> Prefixes:
        """Prefixes that sessions share."""
        from smetric_model.analytic.prefix_holders import Prefixes

        return Prefixes.of(self)

    @cached_property
    def prefix_of_everyone(self) -> NDArray[np.int64]:
        """Prefix of each of :attr:`everyone`; the number of prefixes where there is none."""
        return np.asarray(self.prefixes.of_request[self.everyone.rows])

    @cached_property
    def session_labels(self) -> NDArray[np.int64]:
        """Sessions of the local tier's sample, numbered from 0."""
        session = self.demand.session_reuse.session[self.local.rows]
        return np.asarray(np.unique(session, return_inverse=True)[1], dtype=np.int64).reshape(-1)

    @cached_property
    def mean_prompt(self) -> float:
        """Mean prompt of all requests that count [tokens]."""
        return float(self.demand.prompt_tokens[self.rows].mean())

    @cached_property
    def mean_output(self) -> float:
        """Mean output of all requests that count [tokens]."""
        return float(self.demand.output_tokens[self.rows].mean())

    @cached_property
    def reusable(self) -> FloatArray:
        """Ideal reuse of the local tier's sample [tokens]."""
        return np.asarray(self.demand.reusable_tokens[self.local.rows])

    @cached_property
    def output_tokens(self) -> FloatArray:
        """Outputs of the local tier's sample [tokens]."""
        return np.asarray(self.demand.output_tokens[self.local.rows])

    @cached_property
    def context_tokens(self) -> FloatArray:
        """Prompt and output of the local tier's sample [tokens]."""
        return np.asarray(self.local.prompt + self.output_tokens)

    @cached_property
    def context_weights(self) -> RequestWeights:
        """How unequal :attr:`context_tokens` are."""
        return RequestWeights.of(self.context_tokens, self.session_labels)

    @cached_property
    def _pieces(self) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Reusable pieces of the sample: tokens, gaps, and place in the sample.

        What is older than the run counts by the share of the window in which it would have been
        seen.
        """
        profile = self.demand.profile
        place = np.full(self.demand.prompt_tokens.size, -1, np.int64)
        place[self.local.rows] = np.arange(self.local.rows.size)
        mine = place[profile.request] >= 0
        gap = profile.gap_s[mine]
        start, end = self.window_s
        seen = np.clip((end - gap) / max(end - start, 1e-9), 0.0, 1.0)
        return profile.tokens[mine] * seen, gap, place[profile.request[mine]]

    def within(self, reach_s: float) -> FloatArray:
        """Return the mean tokens of each request of the sample that a store still holds.

        Parameters
        ----------
        reach_s : float
            Its characteristic time; below 0 it holds nothing [s].

        Returns
        -------
        ndarray
            Tokens; not to be written to.
        """
        if self._latest.get("reach_s") != reach_s:
            held = np.empty(self.local.rows.size)
            _mix_kernels.held_within(*self._pieces, float(reach_s), self.local.longest, held)
            self._latest.update(reach_s=reach_s, held=held)
        return np.asarray(self._latest["held"])

    @cached_property
    def _latest(self) -> dict[str, Any]:
        """The latest answer of :meth:`within`."""
        return {}

    @cached_property
    def follow_up_ratio(self) -> float:
        """Share of the requests whose session has an earlier turn in the run."""
        return float(self.local.has_home.mean())

    @cached_property
    def follow_ups(self) -> FollowUpHits:
        """Follow-ups whose home has their context, as the router sees them: some for all."""
        local = self.local
        rows = np.flatnonzero(local.has_home & (local.own[0] > local.shared))
        if not rows.size:
            rows = np.flatnonzero(local.has_home)
        step = max(rows.size // _FOLLOW_UPS, 1)
        order = rows[np.argsort(local.own[0, rows] / local.prompt[rows], kind="stable")]
        at = order[step // 2 :: step]
        return FollowUpHits(
            local.prompt[at],
            np.minimum(local.own[0, at], local.prompt[at]),
            np.minimum(local.expected[at], local.prompt[at]),
            np.minimum(local.shared[at], local.own[0, at]),
        )

    @cached_property
    def private_at_home(self) -> FloatArray:
        """Sorted tokens of follow-ups' homes beyond the shared prefix, the context all there."""
        local = self.local
        return np.sort((local.own[0] - local.shared)[local.has_home])

    @cached_property
    def think_time(self) -> ThinkTime:
        """Law of the think times."""
        gaps = self.demand.session_reuse.think_s[self.rows]
        gaps = gaps[np.isfinite(gaps)]
        if not gaps.size or not gaps.max() > 0:
            return ThinkTime.exponential(1.0)
        return ThinkTime.fit(gaps)

    @cached_property
    def think_class_weights(self) -> FloatArray:
        """Share of each class of think times that each request of the sample makes up.

        Shape (classes, n); 0 for those without an earlier turn.
        """
        local = self.local
        belongs = self.think_time.memberships(local.idle[0, local.has_home])
        weights = np.zeros((belongs.shape[1], local.prompt.size))
        weights[:, local.has_home] = (belongs / np.maximum(belongs.sum(axis=0), 1e-300)).T
        return weights

    @cached_property
    def turns(self) -> TurnLaw:
        """Turns of a session; only its share of follow-ups matters to the mean field."""
        return TurnLaw.from_follow_up_ratio(min(self.follow_up_ratio, 1 - 1e-6))

    @cached_property
    def everyone(self) -> LocalTier:
        """Local tiers for the follow-ups of the window and all that came before in their runs."""
        return LocalTier(self.demand, self.demand.session_reuse, self._so_far, sampled=False)

    @cached_property
    def _so_far(self) -> NDArray[np.int64]:
        """Requests of the window, and before it the turns of their sessions that a run sees."""
        reuse = self.demand.session_reuse
        last = np.full(int(reuse.session.max()) + 1, -1)
        np.maximum.at(last, reuse.session[self.rows], self.rows)
        rows = np.flatnonzero(np.arange(reuse.session.size) <= last[reuse.session])
        if rows.size <= _CHAINED:
            return rows
        # whole sessions, long and short ones in proportion
        turns = np.bincount(reuse.session[rows], minlength=last.size)
        sessions = np.argsort(turns, kind="stable")[np.count_nonzero(turns == 0) :]
        every = rows.size / _CHAINED
        steps = np.arange(every / 2, sessions.size, every)
        kept = np.zeros(last.size, dtype=bool)
        kept[sessions[steps.astype(int)]] = True
        return rows[kept[reuse.session[rows]]]

    def return_ratio(
        self,
        rule: StayRule,
        hits: LocalHits,
        rate_rps: float,
        instances: int,
        pace: Pace,
    ) -> float:
        """Return the share of follow-ups served where their session's first turn in the run was.

        Every turn has its own probability to stay: sessions that pause long or rewrite their
        history lose their home again and again, others never.

        Parameters
        ----------
        rule, hits, rate_rps, instances, pace
            Of the local tier, at its fixed point.
        """
        if instances == 1:
            return 1.0
        counted = self.counted
        if not counted.any():
            return float("nan")
        stay, tied, sought, _ = self.everyone.stays_alone(
            rule, hits, instances, rate_rps / instances, self.window_s, pace
        )
        sought = sought if rule.seeks_hits else np.zeros(stay.size)
        at_first = np.empty(stay.size)
        _session_kernels.returns(
            self.by_session,
            self.session_of_everyone,
            stay,
            tied,
            sought,
            float(instances),
            at_first,
        )
        return float(at_first[counted].mean())


def cluster_demand(scenario: Scenario, demand: Demand) -> ClusterDemand:
    """Return a workload as the scenario's cluster sees it; kept with the demand.

    Parameters
    ----------
    scenario : Scenario
        Its ``workload`` section: window, warm-up, rate, start.
    demand : Demand
        The workload.

    Returns
    -------
    ClusterDemand
    """
    work = scenario.workload
    start, end = work.warmup_s, work.warmup_s + work.window_s
    # whole sessions are thinned or superposed, so that the trace keeps its times at any rate
    recorded = (
        work.start == "cold"
        and demand.trace.session_clock == "shared"
        and work.session_start == "trace"
    ) or work.preset is not None
    key = ("cluster", start, end, recorded)
    if key not in demand.kept:
        rows = np.arange(demand.prompt_tokens.size)
        rate = demand.trace_rate_rps * (1 - demand.unservable_ratio)
        if recorded:
            arrival = demand.trace.column("arrival_s").astype(float)
            if work.preset is None:
                arrival = arrival - arrival.min()
            inside = np.flatnonzero((arrival >= start) & (arrival < end))
            if not inside.size:
                raise SpecError(
                    f"{demand.source}: no request arrives in the window, {start:g} to {end:g} s"
                )
            rows, rate = inside, inside.size / work.window_s
        demand.kept[key] = ClusterDemand(demand, rows, rate, (start, end))
    result: ClusterDemand = demand.kept[key]
    return result


def with_sessions(demand: Demand) -> Demand:
    """Return the demand with sessions inferred from prefixes, where the trace names none."""
    if "sessions" not in demand.kept:
        trace = demand.trace
        inferred = None
        if trace.sessions is None and trace.tree is not None:
            from smetric_model.workload.sessions import infer_sessions

            inferred = replace(demand, trace=infer_sessions(trace).trace)
        demand.kept["sessions"] = inferred
    found: Demand | None = demand.kept["sessions"]
    return demand if found is None else found


def with_efficiencies(demand: Demand, efficiencies: Efficiencies) -> Demand:
    """Return the demand on engines with other efficiencies than the fitted ones.

    Parameters
    ----------
    demand : Demand
        The workload.
    efficiencies : Efficiencies
        In place of those of its (GPU, engine) pair.

    Returns
    -------
    Demand
        A copy; what closed forms kept with the other one is not in it.
    """
    other = replace(demand)
    other.kept["engine"] = (step_model(demand.instance, efficiencies), efficiencies)
    return other
