"""The file that ``smetric-model validate`` reads, and the scenario it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from smetric_model.datafiles import data_dir, read_toml
from smetric_model.errors import SpecError
from smetric_model.live.rig.spec import EnginesSpec
from smetric_model.scenario_sections import Policy, RouterSection, SloSection, Spec

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = [
    "ReplaySection",
    "Targets",
    "ValidationSpec",
    "build_workload",
    "jittered",
    "scenario_for",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ReplaySection(Spec):
    """``[workload]``: what is replayed, and how it is scaled to the engines.

    ``parameters`` is a file of the generator of synthetic traffic, ``trace`` a trace file; exactly
    one is needed.  Each block of a trace becomes one block of the engines, so that all its
    prefixes are kept and lengths scale by the ratio; gaps are multiplied by ``time_scale``.
    """

    parameters: str | None = None
    trace: str | None = None
    time_scale: Positive = 1.0
    rate_rps: Positive = 5.0
    warmup_s: Annotated[float, Field(ge=0)] = 10.0
    window_s: Positive = 30.0

    @model_validator(mode="after")
    def _check(self) -> ReplaySection:
        if (self.parameters is None) == (self.trace is None):
            raise ValueError(
                f"parameters = {self.parameters!r} and trace = {self.trace!r}: exactly one of them"
            )
        return self


class Targets(Spec):
    """``[targets]``: how far model and measurement may be apart, fixed before the replay."""

    ratio_simulated: Positive = 0.02
    tps_simulated: Positive = 0.10
    tps_predicted: Positive = 0.15
    latency_simulated: Positive = 0.15
    latency_predicted: Positive = 0.25
    largest_cv: Positive = 0.10  #: of the repeats; noisier quantities are not judged


class ValidationSpec(Spec):
    """What to validate, on which engines.

    Raises
    ------
    SpecError
        If a key is unknown or a value not allowed.
    """

    name: str = "validation"
    seed: Annotated[int, Field(ge=0)] = 0
    policies: tuple[Policy, ...] = ("smetric", "load-balance", "bailian", "lmetric")
    repeats: Count = 3
    calibration_repeats: Count = 3
    recheck_repeats: Annotated[int, Field(ge=0)] = 2  #: of a few points after the replays
    #: simulations of each policy, with arrivals and think times moved by up to `jitter_s`: one
    #: run of a few dozen sessions is one draw of what small differences in time make of it
    simulations: Count = 16
    jitter_s: Annotated[float, Field(ge=0)] = 0.02
    timeout_s: Positive = 60.0
    engines: EnginesSpec = EnginesSpec()
    workload: ReplaySection
    router: RouterSection = RouterSection(overload_floor=2.0)
    slo: SloSection = SloSection()
    targets: Targets = Targets()

    @field_validator("policies", mode="before")
    @classmethod
    def _tuples(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @classmethod
    def from_toml(cls, path: str | Path, trace: str | Path | None = None) -> ValidationSpec:
        """Read a specification; relative paths count from its folder.

        Parameters
        ----------
        path : str or Path
        trace : str or Path, optional
            A trace to replay, in place of the file's ``trace`` or ``parameters``.

        Raises
        ------
        SpecError
            If the file is missing or wrong.
        """
        path = Path(path)
        content = read_toml(path)
        try:
            workload = dict(content.get("workload", {}))
            if trace is not None:
                workload.pop("parameters", None)
                workload["trace"] = str(Path(trace).resolve())
            for key in ("parameters", "trace"):
                if isinstance(workload.get(key), str):
                    workload[key] = str(_find(path.resolve().parent, workload[key], key))
            engines = dict(content.get("engines", {}))
            model = engines.get("model", "")
            if isinstance(model, str) and ("/" in model or model.startswith(".")):
                engines["model"] = str((path.resolve().parent / model).resolve())
            return cls(**{**content, "workload": workload, "engines": engines})
        except SpecError as error:
            raise SpecError("\n".join(f"{path}: {one}" for one in str(error).split("\n"))) from None


def _find(folder: Path, written: str, key: str) -> Path:
    places = [folder / written, data_dir() / written, data_dir().parent / written]
    for place in places:
        if place.exists():
            return place
    another = "; --trace FILE names another" if key == "trace" else ""
    raise SpecError(f"workload.{key} = {written!r}: no such file beside the specification{another}")


def vocabulary_of(model_folder: Path) -> int:
    """Size of a model's vocabulary.

    Parameters
    ----------
    model_folder : Path
        With ``config.json``.

    Raises
    ------
    SpecError
        If the file is missing or does not say.
    """
    path = model_folder / "config.json"
    try:
        return int(json.loads(path.read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: no vocab_size to read: {error}") from None


def build_workload(spec: ValidationSpec, path: Path) -> Trace:
    """Make the trace that is replayed, and write it.

    Parameters
    ----------
    spec : ValidationSpec
        Its ``workload``, ``seed`` and the engines' block.
    path : Path
        Parquet file to write; if it is there, it is read instead.

    Returns
    -------
    Trace
        As read from the file.
    """
    from dataclasses import replace

    from smetric_model.workload.sessions import infer_sessions
    from smetric_model.workload.synthesis import WorkloadParameters, generate
    from smetric_model.workload.synthesis_scaling import scale_to_rate
    from smetric_model.workload.trace import load_trace, write_trace

    work, block = spec.workload, spec.engines.block_tokens
    if path.exists():
        return load_trace(path)
    # the last requests of the window take a while, and arrivals go on until they have ended
    length_s = work.warmup_s + work.window_s + 30.0
    if work.parameters is not None:
        parameters = replace(WorkloadParameters.from_toml(work.parameters), block_tokens=block)
        trace = generate(parameters, rate_rps=work.rate_rps, window_s=length_s, seed=spec.seed)
    else:
        assert work.trace is not None
        trace = load_trace(work.trace)
        if trace.sessions is None and trace.tree is not None:
            trace = infer_sessions(trace).trace  # whole sessions are thinned, and replayed
        trace = _rescaled(trace, block, work.time_scale)
        if trace.session_clock == "shared":
            trace = scale_to_rate(trace, work.rate_rps, spec.seed)
    write_trace(trace, path)
    return load_trace(path)


def jittered(trace: Trace, jitter_s: float, seed: int) -> Trace:
    """Return a trace whose arrivals and think times are moved a little.

    Parameters
    ----------
    trace : Trace
        Of the replay.
    jitter_s : float
        Each is moved by a uniform draw of at most this much, either way [s].
    seed : int
        Of the draws.

    Returns
    -------
    Trace
        In order of arrival.
    """
    from dataclasses import replace

    import numpy as np

    chance = np.random.default_rng([seed, 3])
    requests = trace.requests.copy()
    size = len(requests)
    moved = requests["arrival_s"] + chance.uniform(-jitter_s, jitter_s, size)
    # a turn does not come before the one it follows
    moved = moved.clip(lower=0.0).groupby(requests["session_id"]).cummax()
    think = requests["think_time_s"] + chance.uniform(-jitter_s, jitter_s, size)
    requests["arrival_s"] = moved
    requests["think_time_s"] = np.maximum(think, 0.0)
    order = np.argsort(moved.to_numpy(), kind="stable")
    return replace(trace, requests=requests).take(order)


def _rescaled(trace: Trace, block: int, time_scale: float) -> Trace:
    from dataclasses import replace

    import numpy as np

    _, own = trace.require_tree()
    requests = trace.requests.copy()
    for name in ("prompt_tokens", "output_tokens"):
        scaled = np.rint(requests[name].to_numpy() * (block / own))
        requests[name] = np.maximum(scaled, 1).astype(np.int64)
    # a prompt is at least as long as its whole blocks
    tree = trace.tree
    assert tree is not None
    whole = np.minimum(tree.request_blocks, requests["prompt_tokens"].to_numpy() // block)
    requests["prompt_tokens"] = np.maximum(requests["prompt_tokens"], whole * block)
    for name in ("arrival_s", "think_time_s", "e2e_s"):
        requests[name] = requests[name] * time_scale
    return replace(trace, requests=requests, block_tokens=block)


def scenario_for(spec: ValidationSpec, folder: Path, policy: str, kv_pool_tokens: int) -> Scenario:
    """Return the scenario of the engines under a policy.

    Parameters
    ----------
    spec : ValidationSpec
        What is validated.
    folder : Path
        Of the validation: ``gpu.toml``, ``workload.parquet``, ``engines``.
    policy : str
        Of the router.
    kv_pool_tokens : int
        Tokens that an engine's pool holds, as it says itself.

    Returns
    -------
    Scenario
        All engines on one node: what is fetched crosses its bus, no network.
    """
    from smetric_model.live.calibrate import ENGINE
    from smetric_model.scenario import Scenario

    engines = spec.engines
    tier = 0 if engines.tier.kind == "none" else engines.tier.bytes
    config = engines.model_folder(folder / "engines") / "config.json"
    clocked = spec.workload.trace is None or _has_clock(folder / "workload.parquet")
    return Scenario.from_dict(
        {
            "name": f"{spec.name}-{policy}",
            "seed": spec.seed,
            "llm": {"name": str(config)},
            "engine": {
                "gpu": str(folder / "gpu.toml"),
                "name": ENGINE,
                "token_budget": engines.token_budget,
                "max_running_requests": engines.max_running_requests,
                "kv_admission": "preempt",
                "block_tokens": engines.block_tokens,
                "max_context_tokens": engines.max_context_tokens,
                "kv_pool_tokens": kv_pool_tokens,
            },
            "cluster": {
                "instances": engines.instances,
                "gpus_per_node": engines.instances,
                "dram_bytes_per_node": float(max(tier, 1)),
            },
            "global_tier": {"bytes_per_node": float(tier), "recompute_if_faster": False},
            "workload": {
                "trace": str(folder / "workload.parquet"),
                "rate_rps": "trace" if clocked else spec.workload.rate_rps,
                "warmup_s": spec.workload.warmup_s,
                "window_s": spec.workload.window_s,
                "start": "cold",
            },
            "router": {**spec.router.model_dump(), "policy": policy},
            "slo": spec.slo.model_dump(),
        }
    )


def _has_clock(path: Path) -> bool:
    from smetric_model.workload.trace import load_trace

    return load_trace(path).session_clock == "shared"
