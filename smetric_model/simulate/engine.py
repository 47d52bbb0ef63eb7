"""The compiled simulator: the reference's answers, a thousand times sooner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from smetric_model.simulate._jit import address, fingerprint, source_files
from smetric_model.simulate._loop import loop
from smetric_model.simulate._state import FULL, grown_state, new_state, replay_of
from smetric_model.simulate._world import new_world
from smetric_model.simulate.inputs import Inputs, Replay

__all__ = ["is_compiled", "run"]


@cache
def _compiled() -> Any:
    """Compile the loop, or load it from disk, where its key holds the sources' checksum."""
    from numba import njit

    mark = fingerprint()

    def simulator_loop(s, w, first, skip):  # type: ignore[no-untyped-def]
        if mark < 0:
            return 0
        return loop(address((s, w)), first, skip)

    return njit(cache=True, error_model="numpy")(simulator_loop)


def is_compiled() -> bool:
    """Whether the compiled loop is likely to be on disk; else the first run compiles it."""
    folder = Path(_compiled().stats.cache_path)
    newest = max(path.stat().st_mtime for path in source_files())
    indices = folder.glob("engine._compiled.*.nbi")
    return any(index.stat().st_mtime >= newest for index in indices)


def run(
    inputs: Inputs,
    *,
    skip: bool = True,
    caches: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Replay:
    """Simulate.

    Parameters
    ----------
    inputs : Inputs
        From :func:`smetric_model.simulate.prepare.prepare`.
    skip : bool, default True
        Whether runs of decode steps are taken in closed form; the answer is the same.
    caches : bool, default False
        Whether ``held_blocks`` is wanted: nodes times instances numbers.
    progress : callable, optional
        Told that the simulator is being compiled, where it is.

    Returns
    -------
    Replay
    """
    if progress is not None and not is_compiled():
        progress("compiling the simulator (once)")
    state = new_state(inputs)
    fixed = np.flatnonzero(inputs.requests.arrival_tick >= 0)
    first = fixed[np.argsort(inputs.requests.arrival_tick[fixed], kind="stable")]
    world = new_world(inputs)
    now = _compiled()(state, world, first, skip)
    while state.count[FULL]:
        state = grown_state(inputs, state)
        now = _compiled()(state, world, first, skip)
    return replay_of(inputs, state, now, caches)
