r"""A colocated cluster under its router's policy, in closed form: the fixed point.

Four models feed each other at one rate:

* the **tiers** (:mod:`~smetric_model.analytic.cluster_tiers`) say what a request finds where it
  lands, given how often sessions stay, how much KV running requests pin and how long they run;
* the **links** (:mod:`~smetric_model.analytic.cluster_links`) say what is fetched, how long that
  takes, and what is computed again;
* the **mean field** (:mod:`~smetric_model.analytic.stickiness`) says how often sessions stay and
  how arrivals depend on the load, given how fast an instance completes;
* the **instance** (:mod:`~smetric_model.analytic.batching`) says how fast it completes, what it
  pins and how long requests run, given its hits and its arrivals.

They are evaluated in turn until nothing moves.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.arrivals import Arrivals
from smetric_model.analytic.batching import ColocatedInstance, LoadedInstance
from smetric_model.analytic.cluster_demand import ClusterDemand, cluster_demand
from smetric_model.analytic.cluster_field import STEPS_OF_ROUNDS, RoutingField
from smetric_model.analytic.cluster_links import Fetches, Links
from smetric_model.analytic.cluster_mix import RequestsOfEngines
from smetric_model.analytic.cluster_rounds import Guess, Secant, change_between
from smetric_model.analytic.cluster_tiers import LocalHits
from smetric_model.analytic.demand import Demand, cluster_of
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.analytic.mixed_requests import Mixed
from smetric_model.analytic.routed_arrivals import arrivals_of
from smetric_model.analytic.routed_stays import stay_rule, tier_rule
from smetric_model.analytic.scenario_policy import policy_of
from smetric_model.analytic.stay_rule import Pace, StayRule
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.stickiness import Stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import ConvergenceError, UnstableError

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["ClusterState", "ColocatedCluster"]

FloatArray = NDArray[np.float64]

_ROUNDS = 12
_SETTLED = 0.02  # relative change of the latencies at which the rounds end
_UNSETTLED = 0.1  # change at which an answer says that it had not come to rest
_HELD = 0.98  # share of an instance's saturation at which the rounds go on if it is exceeded
_LONG_AGO_S = 1e9
_LONGEST_S = 3600.0  # of a request in a round that is overloaded
_PICKS = 2  # rounds that pick kinds of request; later ones keep them, so that they come to rest,
_OTHERS = 0.02  # unless so much more of the follow-ups stay


@dataclass(frozen=True, eq=False)
class ClusterState:
    """A cluster at one rate.

    Attributes
    ----------
    rate_rps : float
        Servable requests of the cluster [requests/s].
    hits : LocalHits
        Local tier.
    reach_s : float
        Age up to which the global tier holds KV [s].
    fetches : Fetches
        Links.
    mixed : Mixed
        Requests as the engines get them.
    loaded : LoadedInstance
        An instance under its share.
    routed : Stickiness
        The mean field.
    pinned_tokens : float
        Mean KV of running requests of an instance [tokens].
    computing : float
        Share of time in which an instance computes.
    local_ratio, global_ratio : float
        ÷ prompt tokens.
    total_tokens : ndarray
        Mean reused tokens of each request of the sample [tokens].
    stay_rule : StayRule
        How the tiers saw the policy.
    pace : Pace
        How long requests take.
    rounds : int
        Evaluations until the fixed point.
    notes : tuple of str
        Why figures may be worse than usual.
    """

    rate_rps: float
    hits: LocalHits
    reach_s: float
    fetches: Fetches
    mixed: Mixed
    loaded: LoadedInstance
    routed: Stickiness
    pinned_tokens: float
    computing: float
    local_ratio: float
    global_ratio: float
    total_tokens: FloatArray
    stay_rule: StayRule
    pace: Pace
    rounds: int
    notes: tuple[str, ...]


class ColocatedCluster:
    """Closed form of a colocated cluster under its scenario's policy.

    Parameters
    ----------
    scenario : Scenario
        The question; ``workload.rate_rps`` is not looked at.
    demand : Demand
        Its workload.
    """

    def __init__(self, scenario: Scenario, demand: Demand):
        self.scenario = scenario
        self.demand = demand
        self.work: ClusterDemand = cluster_demand(scenario, demand)
        self.cluster = cluster_of(scenario)
        #: instances that the router chooses from
        self.instances = self.cluster.prefill_instances or self.cluster.instances
        if "engine" not in demand.kept:  # read from files: once a workload
            fitted = get_efficiencies(demand.instance.gpu.name, demand.instance.engine)
            demand.kept["engine"] = (step_model(demand.instance, fitted), fitted)
        self.model, self.fitted = demand.kept["engine"]
        block = int(demand.trace.block_tokens or demand.instance.block_tokens)
        asked = ("policy", block, scenario.router, scenario.slo)
        if asked not in demand.kept:
            demand.kept[asked] = policy_of(scenario, demand.instance, self.model, block)
        self.policy = demand.kept[asked]
        self.links = Links(
            self.cluster,
            demand.instance,
            demand.kv_bytes_per_token,
            self.fitted,
            self.instances,
        )
        self.engines = RequestsOfEngines(
            scenario, self.work, self.links, self.model, self.fitted, self.cluster.nodes
        )
        self.has_global = scenario.global_tier.bytes_per_node > 0
        #: time since the local tiers were emptied, where that is not the start of the run [s]
        self.local_age_s: float | None = None

    def emptied(self, local_s: float = float("inf"), global_s: float = float("inf")) -> Self:
        """Return the cluster so long after its tiers were emptied, sessions going on as before.

        An LRU tier that was emptied a time ``t`` ago holds what was touched since, as one with
        characteristic time ``t`` does; from its own characteristic time on it is as it was.  The
        rest is quasi-static: loads and latencies are those of a steady state with these tiers.

        Parameters
        ----------
        local_s, global_s : float, default inf
            Time since the instances' caches, and the global tier, were emptied; ``inf``: so long
            ago that it makes no difference (unlike in the scenario, whose run starts cold) [s].

        Returns
        -------
        ColocatedCluster
            For :meth:`at`.
        """
        other = copy(self)
        long_ago = min(local_s, _LONG_AGO_S)
        other.local_age_s = long_ago
        other.work = self.work.with_window((_LONG_AGO_S, _LONG_AGO_S))
        other.engines = copy(self.engines)
        other.engines.work, other.engines.global_age_s = other.work, global_s
        return other

    def _begin(self) -> None:
        """Forget what rounds keep besides their guess."""
        self.field = RoutingField(self.scenario, self.policy, self.work, self.instances)
        self._shared_in_use = 0.0
        self.engines.picked = None
        self._scale = 1.0

    def _first_guess(self, rate_rps: float) -> Guess:
        n = self.instances
        stay = 1 / n if self.policy.threshold_form is None else 0.95
        if self.scenario.router.policy == "load-balance":
            stay = 1 / n
        return Guess(
            tier_rule(self.scenario.router, n, stay),
            Pace(1.0, 0.02),
            0.1 * self.demand.pool_tokens,
            0.5,
        )

    # --- one round ----------------------------------------------------------------------------

    def _mix(self, rate_rps: float, guess: Guess, hits: LocalHits) -> tuple[Mixed, Fetches, float]:
        """Pick requests as the engines get them, and the age up to which the global tier holds."""
        return self.engines.mix(rate_rps, guess.computing, hits)

    def _instance(self, mixed: Mixed) -> ColocatedInstance:
        demand = self.demand
        return ColocatedInstance(
            self.model,
            self.engines.engine_mix(mixed),
            *self._pool(mixed, demand.fixed_state_tokens),
        )

    def _pool(self, mixed: Mixed, fixed: float) -> tuple[float, int, int, float]:
        """KV pool and limits of an instance, shared prefixes in use taken off both sides."""
        demand = self.demand
        shared = self._shared_in_use
        once = min(self.work.local.mean_shared, 0.9 * float(mixed.prompt.min()))
        return (
            demand.pool_tokens - shared,
            demand.instance.token_budget,
            demand.instance.max_running_requests,
            fixed - (once if shared > 0 else 0.0),
        )

    def _think_time(self) -> ThinkTime:
        """Completion of a turn on its instance to arrival of the next."""
        return self.work.think_time

    # --- fixed point --------------------------------------------------------------------------

    def at(self, rate_rps: float) -> ClusterState:
        """Return the cluster at a rate.

        Parameters
        ----------
        rate_rps : float
            Servable requests of the cluster [requests/s].

        Returns
        -------
        ClusterState

        Raises
        ------
        UnstableError
            If there is no steady state; ``resource`` is ``compute``, ``kv``, ``nic_in`` or
            ``pcie``.
        ConvergenceError
            If the mean field was not found at this rate nor a little below it.
        """
        n = self.instances
        own = rate_rps / n
        guess = self._first_guess(rate_rps)
        routed: Stickiness | None = None
        notes: list[str] = []
        self._begin()
        window_s = self.work.window_s
        if self.local_age_s is not None:
            window_s = (self.local_age_s, self.local_age_s)
        stable = True
        secant = Secant(self.demand.pool_tokens)
        loaded: LoadedInstance | None = None
        hits: LocalHits | None = None
        rounds, picked_at = 0, 0.0
        for rounds in range(1, _ROUNDS + 1):
            before = hits
            hits = self.work.local.hits(
                guess.rule,
                rate_rps,
                n,
                guess.pinned,
                window_s,
                guess.pace,
                hits,
                most=1,
            )
            if rounds <= _PICKS or abs(hits.mean_stay - picked_at) > _OTHERS:
                self.engines.picked, picked_at = None, hits.mean_stay
            mixed, fetches, reach = self._mix(rate_rps, guess, hits)
            instance = self._instance(mixed)
            stable = own < _HELD * instance.stability_rps or (
                rounds > 2 and own < 0.999 * instance.stability_rps
            )
            bearable = min(own, _HELD * instance.stability_rps) if not stable else own
            try:
                routed = self.field.route(
                    bearable * n, instance, hits, self._think_time(), routed, rounds <= _PICKS
                )
            except ConvergenceError as error:
                if routed is None:
                    routed = self.field.route_below(
                        bearable * n, instance, hits, self._think_time(), rounds <= _PICKS
                    )
                notes.append(str(error))
                if routed is None and stable:
                    raise
            except UnstableError:
                stable = False
            if routed is None:
                break
            arrivals = self._arrivals(routed, instance, mixed.is_free)
            loaded = instance.at_rate(
                bearable,
                np.asarray(self.scenario.slo.ttft_s(mixed.prompt), dtype=float),
                self.scenario.slo.tpot_s,
                arrivals,
            )
            self._scale = loaded.law.arrival_scale
            new = self._next(loaded, routed, hits, bearable)
            change = change_between(guess, new)
            if before is not None:  # the tiers, too, go on from their last answer
                change = max(change, 2.0 * abs(hits.mean_stay - before.mean_stay))
            if change < _SETTLED and rounds > _PICKS:
                guess = new
                break
            guess = secant.next(guess, new, change)
            if self.field.steps_left <= 0:
                notes.append(
                    f"the mean field was given up after {STEPS_OF_ROUNDS} steps: it still moves by"
                    f" {change:.0%} a round"
                )
                break
        else:
            if change > _UNSETTLED:
                notes.append(
                    f"the fixed point still moves by {change:.0%} a round: two states may be near"
                )
        if hits is None or loaded is None or routed is None or not stable:
            self._raise_unstable(rate_rps, instance)
        ttft = loaded.mean_ttft_s()
        if np.isfinite(ttft) and ttft > _LONGEST_S:
            resource = engine_resource(instance)
            raise UnstableError(
                f"{rate_rps:.4g} requests/s over {self.instances} instances: waits grow to"
                f" {ttft / 3600:.3g} hours before they come to rest; {resource} saturates",
                resource,
            )
        if not np.isfinite(ttft):
            resource = engine_resource(instance)
            raise UnstableError(
                f"{rate_rps:.4g} requests/s over {self.instances} instances: while an instance"
                f" prefills {loaded.prefill_load:.3g} times what it can bear comes; {resource}"
                " saturates",
                resource,
            )
        notes += self._check_links(rate_rps, fetches, mixed)
        return self._state(
            rate_rps, hits, reach, fetches, mixed, loaded, routed, guess, rounds, notes
        )

    def _check_links(self, rate_rps: float, fetches: Fetches, mixed: Mixed) -> tuple[str, ...]:
        """Say which links lag behind; raise UnstableError where requests wait for them."""
        recompute = self.scenario.global_tier.recompute_if_faster
        return self.links.check(rate_rps, fetches, not recompute and bool(mixed.potential.any()))

    def _arrivals(
        self, routed: Stickiness, instance: ColocatedInstance, is_free: NDArray[np.bool_]
    ) -> Arrivals:
        """Return what the router sends an instance, by its load."""
        return arrivals_of(routed, instance, is_free, self.work, self._scale)

    def _next(
        self, loaded: LoadedInstance, routed: Stickiness, hits: LocalHits, own: float
    ) -> Guess:
        instance = loaded.instance
        # an overloaded round goes on with what it can: whether it stays so is decided at the end
        ttft = min(loaded.mean_ttft_s(), _LONGEST_S)
        decode = min(self._after_first_token_s(loaded), _LONGEST_S)
        self.field.before_token_ratio = self._before_token_ratio(ttft, decode)
        self.field.first_token_s = ttft
        pace = Pace(ttft, decode / max(self.work.mean_output, 1.0))
        shared = self.work.local.mean_shared
        fetching = own * float(instance.mix.before_prefill_s.mean())
        fetching -= own * float(self.engines.host_s(instance.mix.prompt_tokens).mean())
        running = loaded.mean_batch + fetching
        time = running / own if own > 0 else 0.0
        # the instance counts contexts less what they share
        pinned = running * max(instance.mean_resident_tokens - shared, 0.0)
        self._shared_in_use = min(
            self.work.local.shared_in_use(own, time), 0.3 * self.demand.pool_tokens
        )
        pinned += self._shared_in_use
        return Guess(
            stay_rule(self.scenario.router, routed, hits),
            pace,
            min(pinned, self.demand.pool_tokens),
            1.0 - loaded.law.idle,
        )

    def _before_token_ratio(self, ttft_s: float, decode_s: float) -> float:
        """Share of a request's time at its instance for which its prompt counts as unprefilled."""
        return ttft_s / (ttft_s + decode_s)

    def _after_first_token_s(self, loaded: LoadedInstance) -> float:
        """Mean time from a request's first token to its end [s]."""
        return loaded.mean_decode_s()

    def _raise_unstable(self, rate_rps: float, instance: ColocatedInstance) -> NoReturn:
        most = instance.stability_rps * self.instances
        resource = engine_resource(instance)
        more = ""
        if resource == "kv" and self.scenario.engine.kv_admission == "preempt":
            more = " (engine.kv_admission = 'preempt' is not in these figures: more may fit)"
        raise UnstableError(
            f"{rate_rps:.4g} requests/s over {self.instances} instances: with the hits left"
            f" there they complete {most:.4g}; {resource} saturates{more}",
            resource,
        )

    def _state(
        self,
        rate_rps: float,
        hits: LocalHits,
        reach: float,
        fetches: Fetches,
        mixed: Mixed,
        loaded: LoadedInstance,
        routed: Stickiness,
        guess: Guess,
        rounds: int,
        notes: list[str],
    ) -> ClusterState:
        local = self.work.local
        prompt = float(local.prompt.mean())
        held = self.engines.held_tokens(reach)
        potential = hits.whole * np.maximum(held - hits.whole_tokens, 0.0)
        potential += (hits.stay - hits.whole) * np.maximum(held - hits.part_tokens, 0.0)
        potential += (1 - hits.stay) * np.maximum(held - hits.landed_tokens, 0.0)
        offered = float(mixed.potential.sum())
        made = float(mixed.potential @ fetches.made_ratio) / offered if offered > 0 else 0.0
        found = hits.tokens
        return ClusterState(
            rate_rps=rate_rps,
            hits=hits,
            reach_s=reach,
            fetches=fetches,
            mixed=mixed,
            loaded=loaded,
            routed=routed,
            pinned_tokens=guess.pinned,
            computing=guess.computing,
            local_ratio=float(found.mean()) / prompt,
            global_ratio=float(potential.mean()) * made / prompt,
            total_tokens=found + potential * made,
            stay_rule=guess.rule,
            pace=guess.pace,
            rounds=rounds,
            notes=tuple(dict.fromkeys((*notes, *routed.notes))),
        )


def engine_resource(instance: ColocatedInstance) -> str:
    """Name what limits an engine: ``kv`` if twice the pool would lift the limit by 10 %.

    Parameters
    ----------
    instance : ColocatedInstance
        The instance.
    """
    return "kv" if instance.rate_with_pool(2.0) > 1.1 * instance.stability_rps else "compute"
