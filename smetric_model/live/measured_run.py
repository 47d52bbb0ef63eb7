"""``measure``: a scenario's workload replayed through the real router on real engines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.errors import LiveError, SpecError
from smetric_model.live.kv_watch import KvWatch
from smetric_model.live.measure import COUNTERS, measured_outcome
from smetric_model.live.replay import replay
from smetric_model.live.rig import EnginesSpec, Rig
from smetric_model.live.rig.engines import MODEL_NAME, free_port, read_metrics
from smetric_model.live.rig.processes import (
    RigProcess,
    cpu_seconds,
    machine_cpu_seconds,
    start_process,
    uninterrupted,
)
from smetric_model.live.validation_spec import vocabulary_of
from smetric_model.scenario_groups import group_names

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.prepare import Prepared
    from smetric_model.workload.trace import Trace

__all__ = ["MeasuredRun", "measure", "measured_run", "start_router"]

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One replay.

    Attributes
    ----------
    outcome : Outcome
        What was measured, with its tables.
    summary : dict
        Plain values: the outcome, counters, KV events, CPU seconds by process, what ended.
    """

    outcome: Outcome
    summary: dict[str, Any]


def measure(
    scenario: Scenario,
    engines: EnginesSpec,
    folder: str | Path,
    *,
    trace: Trace | None = None,
    timeout_s: float = 60.0,
    progress: Tell | None = None,
) -> Outcome:
    """Measure a scenario: start its engines, replay its workload through the router, end them.

    Parameters
    ----------
    scenario : Scenario
        The question; its ``llm`` and ``engine.gpu`` say what the engines are and are not looked at,
        its workload, policy, window and SLO are.
    engines : EnginesSpec
        What to start, or which engines run already (``endpoints``).
    folder : str or Path
        For logs, the decisions of the router, ``requests.parquet`` and ``run.json``.
    trace : Trace, optional
        The workload, if it is at hand (before the scenario's rate and start are applied).
    timeout_s : float, default 60
        A request that takes longer has failed [s].
    progress : callable, optional
        Told what is going on.

    Returns
    -------
    Outcome
        ``verb`` is ``measure``; with the tables ``requests`` and ``instances``.  It takes as long
        as warm-up and window, and the engines' start.

    Raises
    ------
    SpecError
        If scenario and engines contradict each other, or the workload cannot be had.
    LiveError
        If an engine or the router does not start.

    Notes
    -----
    ``docs/live.md``.  ``validate`` does this for several policies and repeats, with a calibration
    of the engines and the model's answers written down before.

    Examples
    --------
    With vLLM at hand, ``docs/live.md`` has the set-up:

    >>> from smetric_model import Scenario, measure
    >>> from smetric_model.live.rig.spec import EnginesSpec
    >>> scenario = Scenario.from_toml("my-scenario.toml")
    >>> measure(scenario, EnginesSpec(), "out/measure")["ttft_p50_s"]  # doctest: +SKIP
    """
    from smetric_model.simulate.prepare import prepare
    from smetric_model.simulate.workload import replayed_trace

    _check(scenario, engines)
    tell = progress or (lambda _text: None)
    tell("preparing the workload")
    replayed, notes = replayed_trace(scenario, trace)
    prepared = prepare(scenario, replayed)
    prepared.notes[:0] = notes
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    rig = Rig(engines, place / "engines")
    try:
        rig.up(tell)
        tell(f"{scenario.router.policy}: replaying")
        run = measured_run(rig, scenario, prepared, place, timeout_s)
    finally:
        with uninterrupted():
            rig.down()
    (place / "run.json").write_text(json.dumps(run.summary, indent=1))
    return run.outcome


def _check(scenario: Scenario, engines: EnginesSpec) -> None:
    problems = []
    if scenario.groups:
        problems.append(f"groups = {group_names(scenario)}: the engines of a rig are equal")
    if scenario.cluster.serving != "colocated":
        problems.append(f"cluster.serving = {scenario.cluster.serving!r}: only 'colocated'")
    if scenario.cluster.instances != engines.instances:
        problems.append(
            f"cluster.instances = {scenario.cluster.instances}: the engines are {engines.instances}"
        )
    if scenario.engine.block_tokens != engines.block_tokens:
        problems.append(
            f"engine.block_tokens = {scenario.engine.block_tokens}: the engines' are"
            f" {engines.block_tokens}"
        )
    if scenario.engine.max_context_tokens > engines.max_context_tokens:
        problems.append(
            f"engine.max_context_tokens = {scenario.engine.max_context_tokens}: the engines take"
            f" at most {engines.max_context_tokens}"
        )
    if scenario.failures:
        problems.append(f"failures: {len(scenario.failures)} tables; none are brought about")
    if problems:
        raise SpecError("\n".join(f"measure: {problem}" for problem in problems))


def start_router(
    rig: Rig, policy: str, parameters: dict[str, Any], folder: Path
) -> tuple[RigProcess, str]:
    """Start the live router in front of a rig's engines.

    Parameters
    ----------
    rig : Rig
        Its engines are up.
    policy : str
    parameters : dict
        Of the policy.
    folder : Path
        For its configuration, log and decisions.

    Returns
    -------
    router : RigProcess
        To be stopped by the caller.
    url : str

    Raises
    ------
    LiveError
        If it does not answer in two minutes.
    """
    import tomli_w

    port = free_port()
    config = {
        "listen": {"port": port},
        "policy": {"name": policy, **parameters},
        "hits": {"source": "exact", "tokenise_budget_s": 5.0},
        "log": {"decisions": str(folder / "decisions.jsonl")},
        "instances": [
            {"name": one.name, "url": one.url, "kv_events": one.kv_events} for one in rig.endpoints
        ],
    }
    path = folder / "router.toml"
    path.write_text(tomli_w.dumps(config))
    command = [sys.executable, "-c", "from smetric_model.cli import main; main()"]
    with uninterrupted():
        router = start_process("router", [*command, "route", "--config", str(path)], folder)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 120.0  # the first start on a machine compiles
    try:
        while not _answers(url):
            if not router.alive or time.monotonic() > end:
                tail = router.end_of_log()
                raise LiveError(f"the router does not start; {router.log}:\n{tail}")
            time.sleep(0.1)
    except BaseException:
        with uninterrupted():
            router.stop()
        raise
    return router, url


def measured_run(
    rig: Rig,
    scenario: Scenario,
    prepared: Prepared,
    folder: Path,
    timeout_s: float,
    repeat: int = 0,
) -> MeasuredRun:
    """Replay a prepared workload on engines that are up, under the scenario's policy.

    Parameters
    ----------
    rig : Rig
        Its engines are up.
    scenario : Scenario
    prepared : Prepared
        Its workload.
    folder : Path
        For the router's files and ``requests.parquet``.
    timeout_s : float
        A request that takes longer has failed, and the last ones may take so long after the
        window [s].
    repeat : int
        Number of the replay, kept in its files.

    Returns
    -------
    MeasuredRun

    Raises
    ------
    LiveError
        If the router does not start.
    """
    from smetric_model.analytic.demand import instance_of
    from smetric_model.analytic.scenario_policy import policy_settings

    policy = scenario.router.policy
    settings = policy_settings(
        scenario,
        instance_of(scenario),
        prepared.inputs.model,
        prepared.inputs.engine.cache_block_tokens,
    )
    given = {key: value for key, value in settings.items() if value is not None}
    router, url = start_router(rig, policy, given, folder)
    edges: dict[str, dict[str, Any]] = {}
    watch = KvWatch(rig.endpoints)

    def at_edge(edge: str) -> None:
        edges[edge] = {
            "time": time.monotonic(),
            "cpu_s": {**rig.cpu_s(), "router": cpu_seconds(router.members())},
            "machine": machine_cpu_seconds(),
            "counters": _counters(rig),
        }
        if edge == "begin":
            watch.start()
        else:
            watch.stop()

    def alarm() -> str:
        if not router.alive:
            return f"the router has ended:\n{router.end_of_log()}"
        engines = [name for name in rig.gone() if name != "tier"]
        return "all engines have ended" if len(engines) == len(rig.endpoints) else ""

    try:
        result = replay(
            prepared,
            url,
            model=MODEL_NAME,
            vocabulary=vocabulary_of(rig.spec.model_folder(rig.folder)),
            salt=_salt(str(folder)),
            timeout_s=timeout_s,
            drain_s=timeout_s,
            at_edge=at_edge,
            alarm=alarm,
        )
    finally:
        watch.stop()
        with uninterrupted():
            router.stop()
    begin, end = edges["begin"], edges["end"]
    gone = rig.gone()
    if gone:
        result.notes.append(
            "; ".join(f"{name} ended during the replay" for name in gone)
            + ": requests after that met a smaller cluster"
        )
    counted = {
        name: end["counters"].get(name, 0.0) - begin["counters"].get(name, 0.0) for name in COUNTERS
    }
    outcome = measured_outcome(scenario, prepared, result, counted)
    cpu = {name: end["cpu_s"].get(name, 0.0) - taken for name, taken in begin["cpu_s"].items()}
    cpu["replayer"] = result.client_cpu_s
    busy, stolen = (end["machine"][k] - begin["machine"][k] for k in (0, 1))
    cpu["others"] = max(0.0, busy - sum(cpu.values()))
    lag = sorted(result.lag_s)
    summary = {
        "policy": policy,
        "repeat": repeat,
        "written": datetime.now(UTC).isoformat(),
        "outcome": outcome.to_dict(),
        "counters": counted,
        "kv_events": watch.counts(),
        "cpu_s": cpu,
        "stolen_s": stolen,
        "window_s": end["time"] - begin["time"],
        "lag_p99_s": lag[int(0.99 * (len(lag) - 1))] if lag else None,
        "ended": gone,
    }
    requests = outcome.requests
    assert requests is not None
    requests.assign(policy=policy, repeat=repeat).to_parquet(folder / "requests.parquet")
    return MeasuredRun(outcome, summary)


def _counters(rig: Rig) -> dict[str, float]:
    total: dict[str, float] = {}
    for point in rig.endpoints:
        with contextlib.suppress(OSError):  # one that is down counts no more
            for name, value in read_metrics(point.url).items():
                if name in COUNTERS:
                    total[name] = total.get(name, 0.0) + value
    return total


def _answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _salt(name: str) -> int:
    """Tokens of each replay are its own: what earlier ones left in the caches is never hit."""
    text = f"{name} {time.time_ns()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
