"""The router under random faults for a while: memory, lost answers, loads.

Usage: ``router_soak.py [--minutes 30] [--rate 40] [--requests N]``.  Four fake engines that fail in
every way, clients some of whom leave, sessions of several turns; the router is the command, in a
process of its own.  Prints a line a minute; fails if an answer is lost, doubled or wrong, if a
load is not zero at the end, or if memory grows.  ``--requests`` ends after so many instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "live" / "router"))

import faults  # noqa: E402
from router_rig import Answer, ask  # noqa: E402

START = "from smetric_model.cli import main; main()"
TOKEN = "token-of-the-soak-run"


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--requests", type=int, help="end after so many, as fast as they go")
    arguments = parser.parse_args()
    engines = faults.engines(4, seed=1, keep=False)
    for engine in engines:
        await engine.start()
    instances = "".join(
        f'[[instances]]\nname = "e{k}"\nurl = "{engine.url}"\n' for k, engine in enumerate(engines)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "router.toml"
        file.write_text(
            f'[listen]\nport = 0\n[admin]\ntoken = "{TOKEN}"\n[log]\nlevel = "error"\n'
            "[hits]\nindex_bytes = 2_000_000\n[health]\ninterval_s = 0.5\nfails = 2\n"
            "[timeouts]\nfirst_byte_s = 1.0\nidle_s = 1.0\n" + instances
        )
        router = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            START,
            "route",
            "--config",
            str(file),
            stderr=asyncio.subprocess.PIPE,
        )
        assert router.stderr is not None
        while True:
            line = (await router.stderr.readline()).decode()
            if line.startswith("listening on "):
                break
            assert line, "the router did not start"
        url = line.split()[-1]
        reading = asyncio.create_task(router.stderr.read())
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as client:
            status = await run(client, url, router.pid, arguments)
            for _ in range(100):
                headers = {"authorization": f"Bearer {TOKEN}"}
                async with client.get(url + "/router/status", headers=headers) as response:
                    told = await response.json()
                if told["in_flight"] == 0:
                    break
                await asyncio.sleep(0.1)
        loads = [
            (one["in_flight"], one["unprefilled_tokens"], one["held_tokens"])
            for one in told["instances"]
        ]
        print(f"loads at the end: {loads}; in flight: {told['in_flight']}")
        if any(any(load) for load in loads) or told["in_flight"]:
            status = 1
        router.terminate()
        await router.wait()
        errors = await reading
        if router.returncode or errors:
            print(f"router ended with {router.returncode}: {errors[-500:].decode()}")
            status = 1
    for engine in engines:
        await engine.stop()
    return status


async def run(
    client: aiohttp.ClientSession, url: str, pid: int, arguments: argparse.Namespace
) -> int:
    chance = random.Random(2)
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    tasks: set[asyncio.Task[None]] = set()
    count = 0

    async def one(number: int) -> None:
        user, stream = f"user-{number}", chance.random() < 0.5
        session = number % 500 + 500 * int(time.monotonic() // 600)
        messages = [{"role": "system", "content": "be brief " * 50}]
        for turn in range(chance.randrange(8)):
            messages += [
                {"role": "user", "content": f"question {turn} of {session} " * 20},
                {"role": "assistant", "content": f"answer {turn} " * 30},
            ]
        messages.append({"role": "user", "content": "and now?"})
        body = {"user": user, "stream": stream, "messages": messages}
        asking = ask(client, url + "/v1/chat/completions", body)
        try:
            if chance.random() < 0.03:
                async with asyncio.timeout(chance.random() * 0.05):
                    await asking
            else:
                answer: Answer = await asking
                ends[faults.check(answer, user, stream)] += 1
        except TimeoutError:
            ends["client went"] += 1
        except (AssertionError, json.JSONDecodeError) as error:
            wrong.append(f"{user}: {error!r}"[:200])

    start = last = time.monotonic()
    memory: list[tuple[float, float]] = []
    end = start + 60 * arguments.minutes
    while (count < arguments.requests) if arguments.requests else (time.monotonic() < end):
        task = asyncio.create_task(one(count))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        count += 1
        if arguments.requests:
            while len(tasks) >= 64:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(chance.expovariate(arguments.rate))
        now = time.monotonic()
        if now - last > 15:
            last = now
            memory.append(((now - start) / 60, rss_mb(pid)))
            if len(memory) % 4 == 0:
                print(
                    f"{memory[-1][0]:5.1f} min  {count:7d} requests  {memory[-1][1]:6.1f} MB  "
                    f"{len(wrong)} wrong",
                    flush=True,
                )
    await asyncio.gather(*tasks)
    print(f"{count} requests in {(time.monotonic() - start) / 60:.1f} min: {dict(ends)}")
    status = 0
    if wrong or sum(ends.values()) + len(wrong) != count:
        print(f"wrong answers: {len(wrong)}: {wrong[:5]}")
        status = 1
    settled = (
        [(minute, mb) for minute, mb in memory if minute > memory[-1][0] / 3] if memory else []
    )
    if len(settled) > 8:
        half = len(settled) // 2
        early, late = (
            statistics.median(mb for _, mb in part) for part in (settled[:half], settled[half:])
        )
        print(f"memory: {early:.1f} MB, later {late:.1f} MB ({100 * (late / early - 1):+.1f} %)")
        if late > 1.03 * early:
            print("memory grows")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
