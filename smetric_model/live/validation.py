"""Validation: engines are calibrated, the answers written down, the workload replayed, compared.

Each phase leaves files in the folder of the validation, and one whose files are there is not run
again: an interrupted validation goes on where it stopped.

====================  ===========================================================================
``gpu.toml``          the calibrated engines, for ``engine.gpu`` of any scenario
``calibration…``      measurements, and each point with the model's error
``workload.parquet``  what is replayed
``predictions.json``  simulation, closed form and bound, written before the first replay, with
                      the time and the hashes of what they were made from
``runs/POLICY-K/``    a replay: outcome, requests, CPU time, what went wrong
``rechecks.parquet``  some points measured again, before replays that came later and after all
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.errors import LiveError, SpecError
from smetric_model.live.calibrate import Calibration, fit, write_gpu_file
from smetric_model.live.measured_run import measured_run, start_router
from smetric_model.live.microbenchmark import FEW, microbenchmark, router_cost_s
from smetric_model.live.model_answers import model_answers
from smetric_model.live.rig import Rig
from smetric_model.live.rig.engines import MODEL_NAME, read_metrics
from smetric_model.live.validation_spec import (
    ValidationSpec,
    build_workload,
    scenario_for,
    vocabulary_of,
)

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.run import Simulation

__all__ = ["RunResult", "Validation"]

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RunResult:
    """One replay: its policy, number and folder, and what is in ``run.json``."""

    policy: str
    repeat: int
    folder: Path
    summary: dict[str, Any]


class Validation:
    """A validation in a folder.

    Parameters
    ----------
    spec : ValidationSpec
        What to validate.
    folder : str or Path
        Where its files are, or will be.
    tell : callable
        Told what is going on.

    Raises
    ------
    SpecError
        If the folder holds a validation of another specification.
    """

    def __init__(self, spec: ValidationSpec, folder: str | Path, tell: Tell = lambda _text: None):
        self.spec, self.folder, self.tell = spec, Path(folder).resolve(), tell
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rig = Rig(spec.engines, self.folder / "engines")
        self._keep_spec()

    def _keep_spec(self) -> None:
        path = self.folder / "spec.json"
        # more policies and repeats may be asked for later
        new = json.loads(self.spec.model_dump_json(exclude_none=True))
        new["engines"].pop("python", None)
        for key in ("parameters", "trace"):  # a folder may move with what is in it
            if key in new["workload"]:
                new["workload"][key] = Path(new["workload"][key]).name
        if path.exists():
            old = json.loads(path.read_text())
            free = ("policies", "repeats", "timeout_s", "targets")
            changed = sorted(
                key for key in {*old, *new} - set(free) if old.get(key) != new.get(key)
            )
            if changed:
                raise SpecError(
                    f"{self.folder}: holds a validation with other {', '.join(changed)};"
                    " take another folder"
                )
            if old.get("targets") != new.get("targets") and (self.folder / "runs").exists():
                raise SpecError(f"{self.folder}: targets may not change after the first replay")
        path.write_text(json.dumps(new, indent=1))

    # --- all phases -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run what is missing.

        Raises
        ------
        LiveError
            If an engine fails, or an answer; what was measured until then is kept.
        """
        wanted = [
            (policy, repeat)
            for repeat in range(self.spec.repeats)
            for policy in self.spec.policies
            if not (self._run_folder(policy, repeat) / "run.json").exists()
        ]
        calibrated = (self.folder / "gpu.toml").exists()
        if not wanted and calibrated:
            self.tell("nothing is missing")
            return
        begin = time.monotonic()
        try:
            self.rig.up(self.tell)
            self._note("engines_ready_s", time.monotonic() - begin)
            self._facts()
            if calibrated:
                self._recheck()
            else:
                self._calibrate()
            predicted = self._predict()
            for policy, repeat in wanted:
                self.tell(f"{policy}, replay {repeat + 1} of {self.spec.repeats}")
                self._replay(policy, repeat, predicted[policy])
                gone = self.rig.gone()
                if gone:
                    raise LiveError(
                        f"{', '.join(gone)} ended during the replay; what was measured is kept"
                        f" in {self._run_folder(policy, repeat)} (delete it to replay it again)"
                    )
            if wanted:
                try:
                    self._recheck()
                except LiveError as error:  # the replays are whole; their speed is not known
                    self.tell(f"the engines could not be measured again: {error}")
        finally:
            self.rig.down()
        self._note("wall_s", time.monotonic() - begin)

    def _run_folder(self, policy: str, repeat: int) -> Path:
        return self.folder / "runs" / f"{policy}-{repeat}"

    def _note(self, key: str, value: Any) -> None:
        path = self.folder / "facts.json"
        facts = json.loads(path.read_text()) if path.exists() else {}
        facts[key] = value
        path.write_text(json.dumps(facts, indent=1))

    def _facts(self) -> None:
        """Note what stands for the engines in the model: pool, machine."""
        metrics = read_metrics(self.rig.endpoints[0].url)
        blocks = metrics.get("num_gpu_blocks", self.spec.engines.blocks)
        if not blocks:
            raise LiveError(f"{self.rig.endpoints[0].url}: says nothing of its KV blocks")
        # vLLM keeps one block for itself
        self._note("kv_pool_tokens", int(blocks - 1) * self.spec.engines.block_tokens)
        self._note("cores", os.cpu_count())
        with contextlib.suppress(OSError, StopIteration):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            name = next(line for line in lines if line.startswith("model name"))
            self._note("cpu", name.split(":", 1)[1].strip())

    @property
    def facts(self) -> dict[str, Any]:
        """What was noted: pool of the engines, machine, times."""
        path = self.folder / "facts.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    # --- calibration ----------------------------------------------------------------------------

    def _calibrate(self) -> Calibration:
        import pandas as pd

        from smetric_model.catalog.llm import get_llm

        spec = self.spec
        begin = time.monotonic()
        config = spec.engines.model_folder(self.rig.folder)
        vocabulary = vocabulary_of(config)
        kept = self.folder / "calibration.parquet"
        measured = microbenchmark(
            self.rig,
            model=MODEL_NAME,
            vocabulary=vocabulary,
            repeats=spec.calibration_repeats,
            seed=spec.seed + int(time.time()),  # engines that run longer know older prompts
            known=pd.read_parquet(kept) if kept.exists() else None,
            keep=lambda table: table.to_parquet(kept),
            tell=self.tell,
        )
        llm = get_llm(str(config / "config.json"))
        found = fit(measured, llm, spec.engines.block_tokens, spec.engines.token_budget)
        router, url = start_router(self.rig, "round-robin", {}, self.folder)
        try:
            cost = router_cost_s(
                url, [p.url for p in self.rig.endpoints], model=MODEL_NAME, vocabulary=vocabulary
            )
        finally:
            router.stop()
        numbers = {**found.numbers, "router_s": max(0.0, cost)}
        source = (
            f"fitted to {len(measured)} measurements of {spec.engines.instances} engines,"
            f" {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        )
        found.points.to_parquet(self.folder / "calibration-points.parquet")
        (self.folder / "calibration.json").write_text(json.dumps(numbers, indent=1))
        self._note("calibration_s", time.monotonic() - begin)
        write_gpu_file(self.folder / "gpu.toml", numbers, llm, 8192, source)
        return Calibration(numbers, found.points)

    def _recheck(self) -> None:
        """Measure a few points again, to see whether the engines are as fast as before."""
        import pandas as pd

        if not self.spec.recheck_repeats:
            return
        path = self.folder / "rechecks.parquet"
        before = [pd.read_parquet(path)] if path.exists() else []
        again = microbenchmark(
            self.rig,
            model=MODEL_NAME,
            vocabulary=vocabulary_of(self.spec.engines.model_folder(self.rig.folder)),
            repeats=self.spec.recheck_repeats,
            seed=self.spec.seed + int(time.time()),
            points=FEW,
            tell=lambda text: self.tell(f"again: {text}"),
        )
        again = again.assign(written=datetime.now(UTC).isoformat())
        pd.concat([*before, again], ignore_index=True).to_parquet(path)

    # --- the model's answers --------------------------------------------------------------------

    def _scenario(self, policy: str) -> Scenario:
        return scenario_for(self.spec, self.folder, policy, int(self.facts["kv_pool_tokens"]))

    def _predict(self) -> dict[str, tuple[Scenario, Simulation]]:
        """Simulate, predict and bound; written down before anything is replayed."""
        from smetric_model.simulate.run import simulate_in_detail

        begin = time.monotonic()
        trace = build_workload(self.spec, self.folder / "workload.parquet")
        path = self.folder / "predictions.json"
        known = json.loads(path.read_text()) if path.exists() else {"policies": {}}
        sources = {name: _hash(self.folder / name) for name in ("gpu.toml", "workload.parquet")}
        if known.get("sources", sources) != sources:
            raise LiveError(f"{path}: made from other files than now lie there")
        found: dict[str, tuple[Scenario, Simulation]] = {}
        added = False
        for policy in self.spec.policies:
            self.tell(f"model: {policy}")
            scenario = self._scenario(policy)
            simulation = simulate_in_detail(scenario, trace)
            found[policy] = (scenario, simulation)
            if policy not in known["policies"]:
                known["policies"][policy] = model_answers(self.spec, scenario, trace, simulation)
                added = True
        if added:
            known |= {"sources": sources, "written": datetime.now(UTC).isoformat()}
            text = json.dumps(known, indent=1)
            path.write_text(text)
            digest = hashlib.sha256(text.encode()).hexdigest()
            (self.folder / "predictions.sha256").write_text(f"{digest}  predictions.json\n")
            self._note("model_s", time.monotonic() - begin)
        return found

    # --- the replay -----------------------------------------------------------------------------

    def _replay(self, policy: str, repeat: int, model: tuple[Scenario, Simulation]) -> RunResult:
        scenario, simulation = model
        folder = self._run_folder(policy, repeat)
        folder.mkdir(parents=True, exist_ok=True)
        run = measured_run(
            self.rig, scenario, simulation.prepared, folder, self.spec.timeout_s, repeat
        )
        (folder / "run.json").write_text(json.dumps(run.summary, indent=1))
        return RunResult(policy, repeat, folder, run.summary)

    def results(self) -> list[RunResult]:
        """Replays that are there, by policy and number."""
        found = []
        for path in sorted((self.folder / "runs").glob("*/run.json")):
            summary = json.loads(path.read_text())
            found.append(RunResult(summary["policy"], summary["repeat"], path.parent, summary))
        return found


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
