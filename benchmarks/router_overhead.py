"""What routers cost, side by side: CPU a request and a streamed chunk, added latency.

Usage: ``router_overhead.py [--vllm-router PATH] [--sglang-router PATH] [--quick]``; the paths are
the commands of vllm-router and sglang-router, each in an environment of its own.  The router runs
on one core, four mock engines and the clients on another.  CPU time is the process's own (all
threads), so that other work on the machine hardly changes it; latency is the median.

Bodies: 0.5 kB and 240 kB chats (60 messages), 16 of each; streams: 64 connections, 64 chunks, one
every 5 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import uvloop
from router_load import CHUNKS, Load

HERE = Path(__file__).resolve().parent
ENGINES = [18101, 18102, 18103, 18104]
PORT = 18100


def small(k: int) -> bytes:
    messages = [
        {"role": "system", "content": "You are a careful assistant who answers briefly. " * 4},
        {"role": "user", "content": f"Question {k}: " + "why is the sky blue today? " * 6},
    ]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 16}).encode()


def big(k: int) -> bytes:
    words = f"session {k}: def handle(request): return respond(request, status=200) # note "
    messages = [{"role": "system", "content": words * 40}]
    for turn in range(60):
        role = "assistant" if turn % 2 else "user"
        messages.append({"role": role, "content": f"{turn} " + words * 50})
    messages.append({"role": "user", "content": "go on"})
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 16}).encode()


def streamed(body: bytes) -> bytes:
    return body[:-1] + b',"stream":true}'


def cpu_s(pid: int) -> float:
    """Time on a core of all threads of a process and its children [s]."""
    total = 0
    for one in [pid, *children(pid)]:
        for task in Path(f"/proc/{one}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def rss_mb(pid: int) -> float:
    pages = sum(
        int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in [pid, *children(pid)]
    )
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def started(command: list[str], core: int) -> Iterator[subprocess.Popen[bytes]]:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        stdout=log,
        stderr=log,
        env={**os.environ, "RUST_LOG": "error"},
        start_new_session=True,
    )
    try:
        yield process
    except Exception:
        log.seek(0)
        sys.stderr.write(log.read()[-2000:].decode("utf-8", "replace"))
        raise
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(port: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=small(0),
        headers={"content-type": "application/json"},
    )
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.3)
    raise TimeoutError(f"nothing answers on port {port}")


def measure(port: int, pid: int, counts: dict[str, int]) -> dict[str, float]:
    """Measure one router (or, with its own pid, the way without one)."""

    def run(bodies: list[bytes], connections: int, requests: int) -> tuple[Load, float]:
        load = Load(port, bodies, connections, requests)
        before = cpu_s(pid)
        uvloop.run(load.run())
        if load.errors:
            raise RuntimeError(f"{load.errors} errors")
        return load, cpu_s(pid) - before

    smalls, bigs = [small(k) for k in range(16)], [big(k) for k in range(16)]
    run(smalls, 8, 200)
    run(bigs, 4, 32)
    result = {}
    load, _ = run(smalls, 1, counts["small_alone"])
    result["small_us"] = 1e6 * statistics.median(load.seconds)
    load, cpu = run(smalls, 32, counts["small"])
    result["small_cpu_us"] = 1e6 * cpu / counts["small"]
    load, _ = run(bigs, 1, counts["big_alone"])
    result["big_us"] = 1e6 * statistics.median(load.seconds)
    load, cpu = run(bigs, 8, counts["big"])
    result["big_cpu_us"] = 1e6 * cpu / counts["big"]
    streams = counts["streams"]
    load, cpu = run([streamed(body) for body in smalls], 64, streams)
    assert load.chunks == streams * CHUNKS, (load.chunks, streams * CHUNKS)
    request = result["small_cpu_us"] * 1e-6 * streams
    result["chunk_cpu_us"] = 1e6 * max(cpu - request, 0.0) / load.chunks
    result["rss_mb"] = rss_mb(pid)
    return result


def routers(arguments: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    urls = [f"http://127.0.0.1:{port}" for port in ENGINES]
    own = [sys.executable, "-c", "from smetric_model.cli import main; main()", "route"]
    own += ["--port", str(PORT)]
    for url in urls:
        own += ["--instance", url]
    found = {
        "smetric route (smetric, approximate)": own,
        "smetric route (round-robin, no hits)": [*own, "--policy", "round-robin", "--hits", "none"],
        "aiohttp, bytes through only": [
            sys.executable,
            str(HERE / "router_aiohttp.py"),
            str(PORT),
            *urls,
        ],
    }
    for name, path in (
        ("vllm-router", arguments.vllm_router),
        ("sglang-router", arguments.sglang_router),
    ):
        if path is None:
            continue
        launch = [path] if name == "vllm-router" else [path, "launch"]
        for policy in ("round_robin", "cache_aware"):
            found[f"{name} ({policy})"] = [
                *launch,
                "--host",
                "127.0.0.1",
                "--port",
                str(PORT),
                "--policy",
                policy,
                "--prometheus-port",
                "18199",
                "--log-level",
                "error",
                "--worker-urls",
                *urls,
            ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-router")
    parser.add_argument("--sglang-router")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="routers whose name holds this")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    counts = {
        "small_alone": 2000 // scale,
        "small": 10_000 // scale,
        "big_alone": 200 // scale,
        "big": 800 // scale,
        "streams": 640 // scale,
    }
    os.sched_setaffinity(0, {1})
    table: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        started(
            [sys.executable, str(HERE / "router_load.py"), "engines", *map(str, ENGINES)], 1
        ) as engines,
    ):
        wait_for(ENGINES[0])
        direct = measure(ENGINES[0], engines.pid, counts)
        for name, command in routers(arguments, Path(folder)).items():
            if arguments.only and arguments.only not in name:
                continue
            with started(command, 0) as router:
                wait_for(PORT)
                rounds = [measure(PORT, router.pid, counts) for _ in range(arguments.rounds)]
            table[name] = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            print(name, {k: round(v, 1) for k, v in table[name].items()}, flush=True)
    print(
        f"\nmachine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; without a router: "
        f"{direct['small_us']:.0f} us and {direct['big_us']:.0f} us"
    )
    print(
        "| router | CPU us/request 0.5 kB | added median us | CPU us/request 240 kB | added "
        "median us | CPU us/chunk | MB |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, row in table.items():
        print(
            f"| {name} | {row['small_cpu_us']:.0f} | {row['small_us'] - direct['small_us']:.0f} "
            f"| {row['big_cpu_us']:.0f} | {row['big_us'] - direct['big_us']:.0f} "
            f"| {row['chunk_cpu_us']:.1f} | {row['rss_mb']:.0f} |"
        )
    base = table.get("vllm-router (round_robin)")
    ours = table.get("smetric route (smetric, approximate)")
    default = table.get("vllm-router (cache_aware)")
    if base and ours and default:
        print(
            f"small body: {ours['small_cpu_us'] / base['small_cpu_us']:.2f} x vllm-router's round "
            f"robin; 240 kB: {ours['big_cpu_us'] / default['big_cpu_us']:.2f} x its default"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
