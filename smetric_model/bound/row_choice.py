"""Which of the many valid rows a problem has: those that charge its requests most."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.minorant import Minorant, minorants
from smetric_model.bound.rows import Row, Workload, fit_row, least_token_s

if TYPE_CHECKING:
    from smetric_model.bound.problem import Problem
    from smetric_model.simulate.inputs import Inputs

__all__ = ["for_pool", "with_rows"]

FloatArray = NDArray[np.float64]

#: v of the rows beside engine time alone, and for which shares of recomputed prefixes.
_POOL_WEIGHTS = (0.1, 0.2, 0.35, 0.6)
_RECOMPUTED, _RECOMPUTED_BESIDE_POOL = (0.0, 0.1, 0.3, 1.0), (0.1, 0.4)
#: Requests looked at to choose.
_SAMPLE = 20_000


def with_rows(problem: Problem, inputs: Inputs) -> Problem:
    """Return the problem with its rows.

    Parameters
    ----------
    problem : Problem
        Without rows.
    inputs : Inputs
        Engine and step model.

    Returns
    -------
    Problem
        With ``rows`` and ``decode_rows``.
    """
    engine, model = inputs.engine, inputs.model
    budget, places = engine.token_budget, engine.max_running_requests
    alone = minorants(model, budget, places, mixed=False)
    if problem.capacities.decode_compute > 0:
        # one pool prefills and keeps prefixes, the other has running requests only: no row for
        # both is needed
        decode = _chosen(alone, problem, (0.0,), (0.0,), prefills=False)
        fastest = Row(problem.fastest_prefill, 0.0, np.array([0.0, 1.0]), np.zeros(2))
        return replace(problem, rows=(fastest,), decode_rows=decode)
    family = minorants(model, budget, places, mixed=True)
    rows = _chosen(family, problem, (0.0,), _RECOMPUTED)
    rows += _chosen(family, problem, _POOL_WEIGHTS, _RECOMPUTED_BESIDE_POOL)
    return replace(problem, rows=rows, decode_rows=())


def for_pool(problem: Problem, factor: float) -> Problem:
    """Return the problem on instances with larger pools: what a request holds is less of them.

    Parameters
    ----------
    problem : Problem
        With rows.
    factor : float
        By how much the pools are larger.  Capacities are not changed.

    Returns
    -------
    Problem
    """
    larger = replace(
        problem,
        pool_tokens=problem.pool_tokens * factor,
        pool_share=problem.pool_share / factor,
    )
    load = _workload(larger)
    refit = (
        tuple(fit_row(row.minorant, row.pool_weight, load) for row in rows)
        for rows in (problem.rows, problem.decode_rows)
    )
    rows, decode_rows = refit
    if problem.decode_rows:
        rows = problem.rows
    return replace(larger, rows=rows, decode_rows=decode_rows)


def _workload(problem: Problem) -> Workload:
    return Workload(
        problem.pool_tokens, problem.fixed_tokens, problem.pool_share, problem.decode_tokens
    )


def _chosen(
    family: list[Minorant],
    problem: Problem,
    pool_weights: tuple[float, ...],
    recomputed: tuple[float, ...],
    prefills: bool = True,
) -> tuple[Row, ...]:
    """Rows of the minorants that charge most, by weight and share of prefixes recomputed."""
    step = max(1, problem.size // _SAMPLE)
    share = problem.pool_share[::step]
    decode = problem.decode_tokens[::step]
    keys = float(problem.decode_keys[::step].sum())
    grid = np.linspace(0.0, 1.0, 201) ** 2
    request = problem.piece_request
    picked = np.flatnonzero(request % step == 0)
    held = problem.pool_share[request[picked]]
    chosen: dict[tuple[float, int], None] = {}
    for weight in pool_weights:
        own, again = 1.0 - weight + weight * share, 1.0 - weight + weight * held
        base = float(own @ problem.base_tokens[::step]), float(own @ problem.base_pairs[::step])
        pieces = (
            float(again @ problem.piece_tokens[picked]),
            float(again @ problem.piece_pairs[picked]),
        )
        decoding = np.array(
            [
                float(
                    decode
                    @ np.interp(
                        share,
                        grid,
                        least_token_s(m, weight, problem.pool_tokens, problem.fixed_tokens, grid),
                    )
                )
                + (1.0 - weight) * m.decode_key_s * keys
                for m in family
            ]
        )
        token = np.array([m.prefill_token_s for m in family])
        pair = np.array([m.prefill_pair_s for m in family])
        for part in recomputed:
            total = decoding
            if prefills:
                total = (
                    decoding
                    + token * (base[0] + part * pieces[0])
                    + pair * (base[1] + part * pieces[1])
                )
            chosen[weight, int(np.argmax(total))] = None
    load = _workload(problem)
    return tuple(fit_row(family[k], weight, load) for weight, k in chosen)
