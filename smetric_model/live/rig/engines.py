"""Engines and their shared KV tier: started, watched, ended; or endpoints that run already."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from smetric_model.errors import LiveError
from smetric_model.live.rig.processes import (
    RigProcess,
    cpu_seconds,
    start_process,
    uninterrupted,
)
from smetric_model.live.rig.spec import TINY_MODEL, EnginesSpec
from smetric_model.live.rig.tiny_model import write_tiny_model

__all__ = ["MODEL_NAME", "Endpoint", "Rig", "free_port", "install_lines", "read_metrics"]

_STATE = "engines.json"
#: name under which the engines serve the model
MODEL_NAME = "m"


@dataclass(frozen=True)
class Endpoint:
    """One engine: its name, HTTP address and the address of its KV events."""

    name: str
    url: str
    kv_events: str


def install_lines(mooncake: bool = False) -> str:
    """How to install what engines need, on GPUs and on CPUs.

    Parameters
    ----------
    mooncake : bool
        With Mooncake in place of LMCache.
    """
    store = "mooncake-transfer-engine" if mooncake else "lmcache==0.5.6"
    option = " --mooncake" if mooncake else ""
    make = "" if mooncake else "make live-environment, or "
    return (
        f"with GPUs: pip install vllm==0.32.0 {store}\n"
        f"with CPUs, x86-64, in a checkout: {make}"
        f"python tools/live_environment.py{option} .venv-live;"
        " then --python .venv-live/bin/python, or engines.python"
    )


def read_metrics(url: str, timeout_s: float = 10.0) -> dict[str, float]:
    """Read an engine's metrics, summed over all labels but ``source``.

    Parameters
    ----------
    url : str
        The engine's.
    timeout_s : float
        Of the request [s].

    Returns
    -------
    dict of str to float
        Name without ``vllm:``, and ``name{source}`` where there is that label.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=timeout_s) as answer:
        text = answer.read().decode()
    result: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name, _, labels = line[5:].partition("{")
        value = line.rsplit(" ", 1)[1]
        key = name.split(" ")[0]
        source = re.search(r'source="([^"]*)"', labels)
        if source:
            key += "{" + source[1] + "}"
        blocks = re.search(r'num_gpu_blocks="(\d+)"', labels)
        if blocks:
            result["num_gpu_blocks"] = float(blocks[1])
        with contextlib.suppress(ValueError):
            result[key] = result.get(key, 0.0) + float(value)
    return result


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Rig:
    """Engines of a specification in a folder of their own.

    Parameters
    ----------
    spec : EnginesSpec
        What to start, or where it runs.
    folder : str or Path
        For logs, the generated model and the state file.

    Attributes
    ----------
    endpoints : list of Endpoint
        Empty until the engines are up.
    """

    def __init__(self, spec: EnginesSpec, folder: str | Path):
        self.spec = spec
        self.folder = Path(folder).resolve()
        self.processes: list[RigProcess] = []
        self.endpoints: list[Endpoint] = []
        self.started_s = 0.0

    # --- state ----------------------------------------------------------------------------------

    @classmethod
    def found(cls, folder: str | Path) -> Rig | None:
        """Return the rig whose state lies in a folder; None if there is none."""
        path = Path(folder) / _STATE
        try:
            state = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LiveError(f"{path}: cannot be read: {error}") from None
        rig = cls(EnginesSpec(**state["spec"]), folder)
        rig.processes = [RigProcess(**one) for one in state["processes"]]
        rig.endpoints = [Endpoint(**one) for one in state["endpoints"]]
        rig.started_s = state["started_s"]
        return rig

    def _keep(self) -> None:
        state = {
            "spec": json.loads(self.spec.model_dump_json(exclude_none=True)),
            "processes": [one.to_dict() for one in self.processes],
            "endpoints": [vars(one) for one in self.endpoints],
            "started_s": self.started_s,
        }
        (self.folder / _STATE).write_text(json.dumps(state, indent=1))

    def status(self) -> list[dict[str, Any]]:
        """One line a process or endpoint: name, pid, whether it runs, memory and CPU."""
        lines: list[dict[str, Any]] = []
        for one in self.processes:
            members = one.members() if one.alive else []
            lines.append(
                {
                    "name": one.name,
                    "pid": one.pid,
                    "alive": one.alive,
                    "memory_bytes": sum(_memory_bytes(pid) for pid in members),
                    "cpu_s": cpu_seconds(members),
                    "log": one.log,
                }
            )
        if not self.processes:
            lines += [
                {"name": point.name, "alive": _answers(point.url), "url": point.url}
                for point in self.endpoints
            ]
        return lines

    # --- starting and stopping ------------------------------------------------------------------

    def up(self, tell: Callable[[str], None] = lambda _text: None) -> None:
        """Start everything and wait until it is ready; or see that the endpoints answer.

        Parameters
        ----------
        tell : callable
            Told what is going on.

        Raises
        ------
        LiveError
            If something is not installed, does not start, or is not ready in time; with the end
            of its log.  Nothing is left running then.
        """
        before = Rig.found(self.folder)
        if before is not None and any(one.alive for one in before.processes):
            raise LiveError(f"{self.folder}: engines run there already; end them first")
        begin = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.spec.model == TINY_MODEL:
            write_tiny_model(self.spec.model_folder(self.folder))
        if self.spec.endpoints:
            self.endpoints = [
                Endpoint(f"v{i}", one.url.rstrip("/"), one.kv_events)
                for i, one in enumerate(self.spec.endpoints)
            ]
            for point in self.endpoints:
                if not _answers(point.url):
                    raise LiveError(f"{point.url}: no engine answers at /health")
            self._keep()
            return
        python = self.python()
        try:
            environment, connector = self._start_tier(python)
            tell("starting the engines")
            for i in range(self.spec.instances):
                self._start_engine(i, python, environment, connector)
            self._keep()
            self._wait(begin)
        except BaseException:
            self.down()
            raise
        self.started_s = time.monotonic() - begin
        self._keep()

    def down(self) -> None:
        """End what was started, engines first; endpoints are left alone."""
        with uninterrupted():
            for one in sorted(self.processes, key=lambda one: not one.name.startswith("v")):
                one.stop()
            self.processes = []
            self.endpoints = []
            with contextlib.suppress(FileNotFoundError):
                (self.folder / _STATE).unlink()

    def _start(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        core: int | None = None,
    ) -> RigProcess:
        """Start a process; from then on it is in the state file."""
        with uninterrupted():
            started = start_process(name, command, self.folder, environment, core)
            self.processes.append(started)
            self._keep()
        return started

    def check(self) -> None:
        """Raise if an engine or the tier is gone.

        Raises
        ------
        LiveError
            Which, and the end of its log.
        """
        gone = [one for one in self.processes if not one.alive]
        if gone:
            raise LiveError("; ".join(_obituary(one) for one in gone))

    def gone(self) -> list[str]:
        """Names of the processes that do not run any more."""
        return [one.name for one in self.processes if not one.alive]

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far of each process with its workers [s]."""
        return {one.name: cpu_seconds(one.members()) for one in self.processes}

    def python(self) -> Path:
        """Interpreter with vLLM.

        Raises
        ------
        LiveError
            If vLLM, or the tier's package, is not installed there: the lines that install it.
        """
        python = Path(self.spec.python or sys.executable).expanduser().absolute()
        needed = ["vllm"]
        needed += {"lmcache": ["lmcache"], "mooncake": ["mooncake"]}.get(self.spec.tier.kind, [])
        lines = install_lines(self.spec.tier.kind == "mooncake")
        look = (
            "import importlib.util as u,sys;print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
        )
        try:
            answer = subprocess.run(
                [str(python), "-c", look, *needed],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            raise LiveError(f"engines.python = {python}: no Python that runs\n{lines}") from None
        missing = answer.stdout.split()
        if missing:
            raise LiveError(f"{' and '.join(missing)} not found by {python}\n{lines}")
        return python

    def _start_tier(self, python: Path) -> tuple[dict[str, str], dict[str, Any] | None]:
        """Environment and connector of the engines; the tier's server runs."""
        tier = self.spec.tier
        if tier.kind == "none":
            return {}, None
        if tier.kind == "lmcache":
            port, http = free_port(), free_port()
            command = [
                str(python.parent / "lmcache"),
                *("server", "--host", "127.0.0.1", "--port", str(port)),
                *("--http-host", "127.0.0.1", "--http-port", str(http)),
                *("--chunk-size", str(tier.chunk_tokens), "--eviction-policy", "LRU"),
                *("--l1-size-gb", f"{tier.bytes / 2**30:.6f}"),
                *("--supported-transfer-mode", "auto"),
            ]
            environment = {"LMCACHE_TRACK_USAGE": "false", "PYTHONHASHSEED": "0"}
            server = self._start("tier", command, environment)
            self._until(lambda: _listens(port), server, 120.0)
            return environment, {
                "kv_connector": "LMCacheMPConnector",
                "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "lmcache.mp.host": "tcp://127.0.0.1",
                    "lmcache.mp.port": port,
                    "lmcache.mp.mp_transfer_mode": "lmcache_driven",
                },
            }
        port, metrics = free_port(), free_port()
        command = [
            str(python.parent / "mooncake_master"),
            *(f"--rpc_port={port}", "--rpc_address=127.0.0.1"),
            *(f"--metrics_port={metrics}", "--metrics_host=127.0.0.1"),
            "--default_kv_lease_ttl=2000",
        ]
        server = self._start("tier", command)
        self._until(lambda: _listens(port), server, 60.0)
        settings = {
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": f"127.0.0.1:{port}",
            "protocol": "tcp",
            "device_name": "",
            "mode": "embedded",
            "global_segment_size": f"{tier.bytes // self.spec.instances // 10**6}MB",
            "local_buffer_size": "64MB",
        }
        path = self.folder / "mooncake.json"
        path.write_text(json.dumps(settings))
        return (
            {"MOONCAKE_CONFIG_PATH": str(path), "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"},
            {
                "kv_connector": "MooncakeStoreConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            },
        )

    def _start_engine(
        self,
        index: int,
        python: Path,
        environment: dict[str, str],
        connector: dict[str, Any] | None,
    ) -> None:
        spec = self.spec
        name, port, events = f"v{index}", free_port(), free_port()
        publisher = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "topic": "kv",
        }
        command = [
            *(str(python.parent / "vllm"), "serve", str(spec.model_folder(self.folder))),
            *("--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)),
            *("--load-format", spec.load_format, "--seed", "0", "--dtype", "bfloat16"),
            *("--max-model-len", str(spec.max_context_tokens)),
            *("--block-size", str(spec.block_tokens)),
            *("--max-num-seqs", str(spec.max_running_requests)),
            *("--max-num-batched-tokens", str(spec.token_budget)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--disable-uvicorn-access-log", "--kv-events-config", json.dumps(publisher)),
        ]
        if spec.blocks is not None:
            command += ["--num-gpu-blocks-override", str(spec.blocks)]
        own = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
        if spec.device == "cpu":
            # room for any number of blocks: the override decides
            command += ["--enforce-eager", "--kv-cache-memory-bytes", "1073741824"]
            own |= {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_HOST_IP": "127.0.0.1",
            }
        else:
            own["CUDA_VISIBLE_DEVICES"] = str(index)
        if connector is not None:
            command += ["--kv-transfer-config", json.dumps(connector)]
        command += spec.arguments
        core = spec.cores[index % len(spec.cores)] if spec.cores else None
        self._start(name, command, {**own, **environment}, core)
        self.endpoints.append(
            Endpoint(name, f"http://127.0.0.1:{port}", f"tcp://127.0.0.1:{events}")
        )

    def _wait(self, begin: float) -> None:
        for point in self.endpoints:
            process = next(one for one in self.processes if one.name == point.name)
            self._until(partial(_answers, point.url), process, self.spec.ready_s, begin)

    def _until(
        self,
        ready: Callable[[], bool],
        process: RigProcess,
        patience_s: float,
        begin: float | None = None,
    ) -> None:
        end = (time.monotonic() if begin is None else begin) + patience_s
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise LiveError(
                    f"{process.name} is not ready after {patience_s:.0f} s; the end of"
                    f" {process.log}:\n{process.end_of_log()}"
                )
            time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _memory_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _obituary(process: RigProcess) -> str:
    tail = process.end_of_log()
    cause = ""
    if re.search(r"out of memory|MemoryError|bad_alloc|OutOfMemory", tail):
        cause = " (out of memory)"
    elif "Traceback" not in tail and "Error" not in tail:
        cause = " (no error in its log: killed, or the machine ran out of memory)"
    return f"{process.name} has ended{cause}; the end of {process.log}:\n{tail}"
