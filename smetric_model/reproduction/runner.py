"""Run the points of a reproduction, on several processes, and keep every row at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model._workers import worker_pool
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.reproduction.anchor import anchor_rate
from smetric_model.reproduction.parameters import Experiments, Setup
from smetric_model.reproduction.points import (
    Group,
    group_scenario,
    groups,
    point_scenario,
    sensitivity_groups,
)
from smetric_model.reproduction.table import KEYS, append_rows, frame, measures_of, read_rows
from smetric_model.reproduction.workload import other_trace, workload_row

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["Run", "group_rows", "reproduce", "trace_of_group"]

#: told how much is done: rows done, rows in all (0: not known yet), what is being done
Progress = Callable[[int, int, str], None]

_ROWS, _ANCHORS, _WORKLOAD = "rows.jsonl", "anchors.json", "workload.jsonl"
#: loads and tiers of the sensitivity table
_SENSITIVITY_LOADS = (0.75, 1.25, 1.5, 1.75)
_SENSITIVITY_TIERS = ("none", "full")


@dataclass(frozen=True, eq=False)
class Run:
    """What a reproduction found.

    Attributes
    ----------
    table : DataFrame
        The result table (:mod:`smetric_model.reproduction.table`).
    workload : DataFrame
        Figures of the traces, a row a preset (of both traces) and seed.
    anchors : dict of str to dict of str to float
        Rate at 1.0x by set-up and preset [requests/s].
    seconds : float
        Wall time of this call [s].
    computed_rows : int
        Rows of the result table that this call computed; the others were there.
    """

    table: pd.DataFrame
    workload: pd.DataFrame
    anchors: dict[str, dict[str, float]]
    seconds: float
    computed_rows: int


def reproduce(
    parameters: Experiments,
    out: str | Path,
    processes: int = 2,
    sensitivity: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Run everything that is not there yet.

    Parameters
    ----------
    parameters : Experiments
        What to run.
    out : str or Path
        Folder; rows are added to its files as they come, and what is there is not run again.
    processes : int, default 2
        How many work side by side.
    sensitivity : bool, default False
        Whether to run the sensitivity table, too.
    progress : callable, optional
        Told how far it is: ``progress(rows_done, rows_in_all, what)``.

    Returns
    -------
    Run

    Raises
    ------
    SpecError
        If the folder holds the run of other parameters, or processes is not positive.
    """
    if processes < 1:
        raise SpecError(f"processes = {processes}: at least 1 is needed")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tell = progress or (lambda _done, _all, _text: None)
    start = time.perf_counter()
    with worker_pool(processes) as pool:
        workload = _workload(parameters, folder / _WORKLOAD, pool, tell)
        anchors = _anchors(parameters, folder, pool, tell)
        work = list(groups(parameters, anchors))
        if sensitivity:
            # after the runs that it varies, before what refines them
            cut = next(i for i, group in enumerate(work) if group.verb == "predict")
            work[cut:cut] = sensitivity_groups(
                _few(parameters), anchors, _SENSITIVITY_LOADS, _SENSITIVITY_TIERS
            )
        computed = _run(parameters, work, folder / _ROWS, pool, processes, tell)
    rows = read_rows(folder / _ROWS)
    return Run(frame(rows), workload, anchors, time.perf_counter() - start, computed)


def _few(parameters: Experiments) -> Experiments:
    """One seed of the medium preset (else the first that is asked for): 30 variants are many."""
    medium = [name for name in parameters.presets if name.endswith("-medium")]
    return dataclasses.replace(
        parameters,
        presets=tuple(medium or parameters.presets[:1]),
        seeds=parameters.seeds[:1],
    )


def _workload(
    parameters: Experiments, path: Path, pool: ProcessPoolExecutor, tell: Progress
) -> pd.DataFrame:
    """Figures of the presets, and of the same ones for the other trace."""
    import pandas as pd

    names = dict.fromkeys([*parameters.presets, *map(other_trace, parameters.presets)])
    there = {(row["preset"], row["seed"]) for row in read_rows(path)}
    missing = [(n, s) for n in names for s in parameters.seeds if (n, s) not in there]
    jobs = [pool.submit(workload_row, name, seed) for name, seed in missing]
    for index, job in enumerate(jobs):
        tell(0, 0, f"figures of the traces: {len(jobs) - index} left")
        append_rows(path, [job.result()])
    table = pd.DataFrame(read_rows(path))
    return table.drop_duplicates(["preset", "seed"]).reset_index(drop=True)


def _anchors(
    parameters: Experiments, folder: Path, pool: ProcessPoolExecutor, tell: Progress
) -> dict[str, dict[str, float]]:
    """Rates at 1.0x; those that were found before are kept."""
    path = folder / _ANCHORS
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    digest = _digest(parameters)
    if known and known["parameters"] != digest:
        raise SpecError(f"{folder}: holds a run with other parameters; another folder is needed")
    rates: dict[str, dict[str, float]] = known.get("rates_rps", {})
    missing = [
        (setup, preset)
        for setup in parameters.setups
        for preset in parameters.presets
        if preset not in rates.get(setup.name, {})
    ]
    jobs = {
        pool.submit(anchor_rate, parameters, setup, preset): (setup.name, preset)
        for setup, preset in missing
    }
    left = set(jobs)
    while left:
        names = ", ".join(" ".join(jobs[job]) for job in left)
        tell(0, 0, f"looking for SMetric's peak: {len(left)} left ({names})")
        done, left = wait(left, return_when=FIRST_COMPLETED)
        for job in done:
            setup_name, preset = jobs[job]
            rates.setdefault(setup_name, {})[preset] = job.result()
        path.write_text(json.dumps({"parameters": digest, "rates_rps": rates}, indent=1) + "\n")
    return rates


def _digest(parameters: Experiments) -> str:
    """Of what a row depends on beside its keys; presets and set-ups may be added later."""
    from smetric_model.datafiles import data_dir

    parts = [
        repr((parameters.seeds, parameters.anchor, parameters.anchor_coarse_ratio)),
        repr((parameters.anchor_fine_ratio, parameters.tiers)),
        (data_dir() / "reproduction.toml").read_text(encoding="utf-8"),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _run(
    parameters: Experiments,
    work: Iterable[Group],
    path: Path,
    pool: ProcessPoolExecutor,
    processes: int,
    tell: Progress,
) -> int:
    there = {tuple(row[key] for key in KEYS) for row in read_rows(path)}
    jobs: list[tuple[Group, set[tuple[Any, ...]]]] = []
    total = 0
    for group in work:
        keys = set(group.row_keys())
        total += len(keys)
        if not keys <= there:
            jobs.append((group, keys - there))
    todo = sum(len(keys) for _, keys in jobs)
    done = total - todo
    tell(done, total, "simulating")
    waiting, jobs = list(reversed(jobs)), []
    running: dict[Any, Group] = {}
    while waiting or running:
        # a few ahead, so that an interrupt throws little away and the queue stays short
        while waiting and len(running) < 2 * processes:
            group, keys = waiting.pop()
            setup = parameters.setup(group.setup)
            running[pool.submit(group_rows, setup, parameters.tiers, group, keys)] = group
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for job in finished:
            group = running.pop(job)
            rows = job.result()
            append_rows(path, rows)
            done += len(rows)
            tell(done, total, f"{group.setup}, {group.preset}, {group.load:g}x")
    return todo


def trace_of_group(scenario: Scenario, workload: dict[str, Any]) -> Trace:
    """Draw the trace that a group's points share.

    Parameters
    ----------
    scenario : Scenario
        Of the group.
    workload : dict
        Changed parameters of the preset, by ``preset.`` and their dotted key.

    Returns
    -------
    Trace
        Window and drain.
    """
    from smetric_model.analytic.demand import trace_of
    from smetric_model.simulate.prepare import LEAST_DRAIN_S

    work = scenario.workload
    extra_s = max(work.window_s, LEAST_DRAIN_S)
    changed = {key[7:]: value for key, value in workload.items() if key.startswith("preset.")}
    if not changed:
        return trace_of(scenario, extra_s=extra_s)
    from smetric_model.workload.synthesis import generate, preset_parameters
    from smetric_model.workload.synthesis_parameters import WorkloadParameters

    assert work.preset is not None
    content = preset_parameters(work.preset).to_dict()
    for key, value in changed.items():
        *sections, last = key.split(".")
        table = content
        for section in sections:
            table = table[section]
        if last not in table:
            raise SpecError(f"preset.{key}: no such parameter of {work.preset}")
        table[last] = value
    return generate(
        WorkloadParameters.from_dict(content),
        rate_rps=float(work.rate_rps),
        window_s=work.warmup_s + work.window_s + extra_s,
        seed=scenario.seed,
        start=work.start,
    )


def group_rows(
    setup: Setup,
    tiers: dict[str, float | str],
    group: Group,
    keys: set[tuple[Any, ...]] | None = None,
) -> list[dict[str, Any]]:
    """Rows of a group.

    Parameters
    ----------
    setup : Setup
    tiers : dict of str to float or "full"
        Global tiers by name.
    group : Group
    keys : set of tuple, optional
        Which rows; by default all.

    Returns
    -------
    list of dict
        A point that a verb refuses or cannot answer has a row without figures, ``valid`` False.
    """
    from smetric_model.analytic.demand import demand_of
    from smetric_model.simulate import simulate

    base = group_scenario(setup, group)
    trace = trace_of_group(base, dict(group.workload))
    demand = None
    rows = []
    for point, key in zip(group.points, group.row_keys(), strict=True):
        if keys is not None and key not in keys:
            continue
        row: dict[str, Any] = dict(zip(KEYS, key, strict=True))
        try:
            scenario = point_scenario(setup, base, point, tiers)
            row |= {
                "rate_rps": group.rate_rps,
                "tier_ratio": scenario.global_tier.bytes_per_node
                / setup.tier_bytes_per_node("full")
                * setup.full_tier_bytes
                / setup.local_tier_bytes,
                "overload": _finite(scenario.router.overload),
                "hit_ratio": scenario.router.hit_ratio,
            }
            if group.verb == "simulate":
                outcome = simulate(scenario, trace)
            else:
                from smetric_model.analytic.predict import predict

                # the closed form sees what arrives in the window, no later
                demand = demand or demand_of(base, _window(trace, base))
                outcome = predict(scenario, demand=demand)
            row |= measures_of(outcome, setup.goodput)
        except (SpecError, UnstableError, SolveError) as error:
            row |= {"valid": False, "binding_resource": getattr(error, "resource", "")}
        rows.append(row)
    return rows


def _finite(value: float) -> float:
    # JSON has no infinity; a threshold that is never reached
    return min(value, 1e9)


def _window(trace: Trace, scenario: Scenario) -> Trace:
    import numpy as np

    work = scenario.workload
    arrival = trace.column("arrival_s")
    return trace.take(np.flatnonzero(arrival < work.warmup_s + work.window_s))
