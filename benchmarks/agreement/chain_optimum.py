"""OVERLOAD* against the optimum of the mean field itself, where moves bring engine work.

``python benchmarks/agreement/chain_optimum.py``: clusters of instances ``A + E l``, some with room
for b requests only; a move brings w requests' worth of recomputation.  The optimum is the OVERLOAD
of a grid with the least mean load; *regret* is how much longer requests stay at the grid's nearest
to OVERLOAD* than there.  About 20 CPU seconds.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass

import numpy as np

from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.stickiness import Stickiness, stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.analytic.thresholds import (
    overload_optimum,
    persistence_s,
    recompute_delay_s,
    service_line,
)
from smetric_model.errors import ConvergenceError, UnstableError
from smetric_model.routing import make_policy

OVERLOADS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, math.inf)
LEVELS, ROUNDS, LARGEST = 400, 8, 64.0
WORKS = (0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Cell:
    """A cluster: A and E, room, load at which the rate is set, instances, sessions, work moved."""

    base_s: float
    slope_s: float
    room: int
    load: float
    instances: int
    think_s: float
    turns: float
    work: float

    def solved(self, overload: float) -> Stickiness | None:
        """Return the mean field, or None where there is none."""
        present = np.minimum(np.arange(1.0, LEVELS), self.room)
        rate = 0.97 * self.load / (self.base_s + self.slope_s * self.load)
        try:
            return stickiness(
                RoutedCluster(
                    instances=self.instances,
                    arrival_rate_rps=self.instances * rate,
                    completion_rate_rps=present / (self.base_s + self.slope_s * present),
                    policy=make_policy("smetric", {"overload": overload}),
                    turns=TurnLaw.geometric(self.turns),
                    think_time=ThinkTime.exponential(self.think_s),
                    move_work_ratio=self.work,
                )
            )
        except (ConvergenceError, UnstableError):
            return None

    def optimum(self, own_stay_only: bool) -> float:
        """Return OVERLOAD* by fixed point; with the saving of the own stay only, if asked."""
        overload = star = 2.0
        for _ in range(ROUNDS):
            state = self.solved(overload)
            if state is None:
                break
            rate, slope = state.cluster.rate_per_instance_rps, state.noise.service_slope
            # engine time of so many mean requests: they are what is not completed meanwhile
            cost = recompute_delay_s(self.work / rate, rate, slope)
            line = service_line(state.completion_rate_rps, state.mean_load)
            saving = line.saving_s(persistence_s(state.noise.drift, state.noise.covariance))
            if own_stay_only:
                # the slope at the mean load, and what the own stay alone saves
                at_mean = line.base_s / line.sojourn_s**2
                cost = self.work / at_mean if at_mean > 0 else math.inf
                saving = 2 * line.own_saving_s
            star = float(overload_optimum(cost, saving, state.joined_load_mean, line.mean_load))
            overload = min(math.sqrt(overload * star), LARGEST)
        return star


def cells() -> list[Cell]:
    """Return the clusters."""
    found = []
    for (base, slope, room, load), work in itertools.product(
        (
            (2.0, 0.25, LEVELS, 1.0),
            (2.0, 0.25, LEVELS, 4.0),
            (1.0, 1.0, LEVELS, 1.0),
            (1.0, 1.0, LEVELS, 4.0),
            (2.0, 0.25, 6, 4.0),
            (2.0, 0.25, 6, 5.5),
            (2.0, 0.25, 3, 2.5),
        ),
        WORKS,
    ):
        for instances, think, turns in ((32, 15.0, 33.0), (8, 60.0, 10.0)):
            found.append(Cell(base, slope, room, load, instances, think, turns, work))
    return found


def main() -> int:
    print(
        "| A, E | room | load | N | think, turns | w | optimum | regret of 2 | OVERLOAD* | regret |"
        " slope at the mean, own stay | regret |"
    )
    print("|" + "---|" * 12)
    regrets: list[list[float]] = [[], [], []]
    for cell in cells():
        states = {o: cell.solved(o) for o in OVERLOADS}
        loads = {o: math.inf if s is None else s.mean_load for o, s in states.items()}
        best = min(loads, key=lambda o: loads[o])
        if math.isinf(loads[best]):
            continue
        stars = [2.0, cell.optimum(False), cell.optimum(True)]
        found = []
        for kept, star in zip(regrets, stars, strict=True):
            place = 1 / max(star, 0.5)
            near = min(OVERLOADS, key=lambda o: abs(1 / o - place))
            found.append(loads[near] / loads[best] - 1)
            kept.append(found[-1])
        room = "–" if cell.room == LEVELS else str(cell.room)
        print(
            f"| {cell.base_s:g}, {cell.slope_s:g} | {room} | {cell.load:g} | {cell.instances} |"
            f" {cell.think_s:g}, {cell.turns:g} | {cell.work:g} | {best:g} | {found[0]:.3f} |"
            f" {stars[1]:.2f} | {found[1]:.3f} | {stars[2]:.3g} | {found[2]:.3f} |",
            flush=True,
        )
    for name, kept in zip(("OVERLOAD 2", "OVERLOAD*", "own stay only"), regrets, strict=True):
        print(
            f"{name}: median {np.median(kept):.4f}, mean {np.mean(kept):.4f},"
            f" largest {max(kept):.3f} ({len(kept)} clusters)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
