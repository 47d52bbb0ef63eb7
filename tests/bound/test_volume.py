from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_scenarios import KINDS, random_scenario
from scipy.optimize import linprog

from smetric_model.bound.certify import RESOURCES, Prices, goodput_bound, scale_bound
from smetric_model.bound.problem import problem_of
from smetric_model.bound.solvers import (
    InfeasibleError,
    SolverOptions,
    Sweep,
    TimeLimitError,
    UnboundedError,
    solve,
)
from smetric_model.bound.timed import timed_bound, windows_of
from smetric_model.bound.volume import (
    steady_window,
    usage_of,
    volume_bound,
    volume_by_thresholds,
    volume_program,
)
from smetric_model.errors import SolveError, SpecError

DIRECT = SolverOptions("highs-direct")


@pytest.fixture(scope="module", params=KINDS)
def problem(request):
    scenario, trace = random_scenario(KINDS.index(request.param), request.param)
    return problem_of(scenario, trace)[0]


def _linprog(program):
    matrix, limit = program.as_inequalities()
    return linprog(
        program.cost,
        A_ub=matrix,
        b_ub=limit,
        A_eq=program.equal,
        b_eq=np.zeros(program.equal.shape[0]),
        bounds=np.column_stack([program.lower, program.upper]),
        method="highs",
    )


def test_the_program_is_what_another_solver_makes_of_it(problem):
    program, _, _ = volume_program(problem)
    ours, theirs = solve(program), _linprog(program)
    assert theirs.status == 0
    assert ours.objective == pytest.approx(theirs.fun, rel=1e-6)
    assert solve(program, DIRECT).objective == pytest.approx(theirs.fun, rel=1e-6)


def test_thresholds_find_the_optimum_of_the_unmerged_program(problem):
    small = problem.take(np.arange(problem.size) % 4 == 0)
    program, _, _ = volume_program(small, detail=np.inf)
    exact = solve(program, DIRECT).objective
    low, high, _ = volume_by_thresholds(small, tolerance=1e-8)
    assert low <= exact * (1 + 1e-6)
    assert low == pytest.approx(exact, rel=1e-6)
    assert high == pytest.approx(exact, rel=1e-6)


def test_merged_columns_prove_almost_as_much(problem):
    low, high, _ = volume_by_thresholds(problem, tolerance=1e-8)
    bound = volume_bound(problem)
    assert 1 / bound.load_multiple <= high * (1 + 1e-7)  # it is a bound
    assert 1 / bound.load_multiple >= 0.995 * low  # and a good one
    assert bound.status == "optimal"
    assert sum(bound.elasticity.values()) == pytest.approx(1)


def test_modes_follow_the_thresholds():
    scenario, trace = random_scenario(5, "link")
    problem = problem_of(scenario.replace(**{"global_tier.bytes_per_node": 3e9}), trace)[0]
    bound = volume_bound(problem)
    mode, gap = bound.costs.mode, problem.gap_end_s - problem.gap_start_s
    # which mode is cheapest changes once, from local to anything else, as the gap grows
    longest_local = gap[mode == 0].max(initial=0.0)
    shortest_fetch = gap[mode == 1].min(initial=np.inf)
    link = (
        bound.prices.nic[0] * problem.nic_work_per_token
        + bound.prices.pcie[0] * problem.kv_bytes_per_token
    )[problem.piece_request]
    extra = bound.prices.local[0] - bound.prices.global_[0]
    if extra > 0:
        assert longest_local <= (link / extra).max() + 1e-6 or not (mode == 1).any()
        assert shortest_fetch >= (link / extra).min() - 1e-6


def test_any_prices_prove_something_that_holds(problem):
    _, high, _ = volume_by_thresholds(problem, tolerance=1e-8)
    edges, capacity = steady_window(problem)
    rng = np.random.default_rng(3)
    for _ in range(20):
        prices = Prices.zero(problem, edges, capacity)
        values = {}
        for name in RESOURCES:
            attribute = "global_" if name == "global" else name
            shape = getattr(prices, attribute).shape
            values[attribute] = rng.exponential(1.0, shape) * 10.0 ** rng.uniform(-9, 0)
        values["nic"] *= rng.choice([-1.0, 1.0])  # a solver's sign slip
        values["pcie"] *= rng.choice([np.nan, 1.0])
        theta, _ = scale_bound(problem, replace(prices, **values), writes=True)
        assert theta <= high * (1 + 1e-7)


def test_an_inexact_solve_reports_no_more_than_a_bound(problem):
    """Prices disturbed by a factor: every bound is on the safe side of the optimum."""
    exact = timed_bound(problem, DIRECT, window_s=60.0, detail=np.inf, block_requests=np.inf)
    optimum = exact.objective_tokens
    assert exact.bound_tokens >= optimum * (1 - 1e-7)
    assert exact.bound_tokens <= optimum * (1 + 1e-4)  # min-over-windows prices are the program's
    rng = np.random.default_rng(5)
    for _ in range(10):
        prices = exact.prices
        noise = {
            name: getattr(prices, name) * rng.lognormal(0, 1, getattr(prices, name).shape)
            for name in ("compute", "local", "global_", "nic", "pcie")
        }
        bound, _ = goodput_bound(problem, replace(prices, **noise))
        assert bound >= optimum * (1 - 1e-9)


def test_merging_and_blocks_only_weaken(problem):
    exact = timed_bound(problem, DIRECT, window_s=30.0, detail=np.inf, block_requests=np.inf)
    for detail, block in ((4.0, np.inf), (1.0, np.inf), (4.0, problem.size / 3)):
        weaker = timed_bound(problem, DIRECT, window_s=30.0, detail=detail, block_requests=block)
        assert weaker.bound_tokens >= exact.objective_tokens * (1 - 1e-7)


def test_windows_refine_the_average(problem):
    """One window is weaker than many."""
    coarse = timed_bound(problem, DIRECT, window_s=1e4, detail=np.inf)
    fine = timed_bound(problem, DIRECT, window_s=20.0, detail=np.inf)
    assert fine.bound_tokens <= coarse.bound_tokens * (1 + 1e-6)


def test_sweeps_are_not_built_again(problem):
    program, _, _ = volume_program(problem, detail=2.0)
    for options in (SolverOptions(), DIRECT):
        sweep = Sweep(program, options)
        first = sweep.solve().objective
        built = sweep._built
        twice = sweep.solve(**dict.fromkeys(RESOURCES, 2.0)).objective
        assert sweep._built is built
        assert twice == pytest.approx(first / 2, rel=1e-6)
        assert sweep.solve().objective == pytest.approx(first, rel=1e-6)


def test_what_the_prices_choose_uses_what_the_bound_says(problem):
    low, high, volume = volume_by_thresholds(problem, tolerance=1e-8)
    used = usage_of(problem, volume.costs.mode)
    # complementary slackness: the chosen modes' value at the prices is the bound
    edges, capacity = steady_window(problem)
    del edges
    worth = 0.0
    for name, values in used.items():
        attribute = "global_" if name == "global" else name
        price = getattr(volume.prices, attribute)
        scale = volume.costs.capacity.get(name, 0.0) / sum(volume.costs.capacity.values())
        per_row = price[:, 0] if price.ndim == 2 else price
        if per_row.sum() > 0:
            worth += scale * float(values @ (per_row / per_row.sum())) / capacity[0]
    assert worth == pytest.approx(low, rel=1e-6)
    assert low <= high * (1 + 1e-12)


def test_windows_cover_all_deadlines(problem):
    edges = windows_of(problem, 50.0)
    assert edges[0] == problem.start_s
    assert edges[-1] >= problem.due_s.max()
    assert (np.diff(edges) > 0).all()
    with pytest.raises(SpecError, match="window_s = 0"):
        windows_of(problem, 0.0)


def test_failures_have_names(problem):
    program, _, _ = volume_program(problem, detail=2.0)
    impossible = replace(program, upper=np.where(program.lower > 0, 1.0, 0.0))
    endless = replace(program, cost=-program.cost)
    for solver in ("HIGHS", "highs-direct"):
        options = SolverOptions(solver)
        with pytest.raises(InfeasibleError):
            solve(impossible, options)
        with pytest.raises((UnboundedError, InfeasibleError)):
            solve(endless, options)
    with pytest.raises(SpecError, match="solver = 'GLOP9': not installed; one of"):
        solve(program, SolverOptions("GLOP9"))
    with pytest.raises(SpecError, match="tolerance = 2"):
        SolverOptions(tolerance=2)


def test_no_time_gives_a_weaker_bound_and_says_so(problem):
    hurried = SolverOptions("highs-direct", time_limit_s=1e-9)
    program, _, _ = volume_program(problem, detail=np.inf)
    with pytest.raises((TimeLimitError, SolveError)):
        solve(program, hurried)
    _, high, _ = volume_by_thresholds(problem)
    weak = volume_bound(problem, hurried, detail=np.inf)
    assert weak.status == "failed"
    assert weak.notes
    assert 0 < 1 / weak.load_multiple <= high * (1 + 1e-7)
    timed = timed_bound(problem, hurried, detail=np.inf, fallback=weak.prices)
    assert timed.status == "partial"
    good = timed_bound(problem, DIRECT, detail=np.inf)
    assert timed.bound_tokens >= good.objective_tokens * (1 - 1e-9)


def test_an_interrupt_ends_with_the_best_bound_so_far(problem, monkeypatch):
    from smetric_model.bound import timed as module

    calls = []
    solve_for_real = module.solve

    def interrupted(program, options):
        calls.append(program)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return solve_for_real(program, options)

    volume = volume_bound(problem)
    monkeypatch.setattr(module, "solve", interrupted)
    partial = timed_bound(
        problem, DIRECT, window_s=30.0, block_requests=problem.size / 4, fallback=volume.prices
    )
    assert len(calls) == 2
    assert partial.status == "partial"
    assert any("interrupted" in note for note in partial.notes)
    monkeypatch.setattr(module, "solve", solve_for_real)
    whole = timed_bound(problem, DIRECT, window_s=30.0, detail=np.inf, block_requests=np.inf)
    assert whole.objective_tokens * (1 - 1e-9) <= partial.bound_tokens
    assert partial.bound_tokens <= problem.value_tokens.sum() * (1 + 1e-9)
