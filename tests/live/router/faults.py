"""Random faults: what the tests and the long benchmark run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from router_rig import Answer, FakeEngine, Rig, Seen

#: fault -> weight; most requests are well
WEIGHTS = {
    "ok": 60,
    "slow": 3,
    "close": 5,
    "head": 5,
    "die": 6,
    "status 429": 4,
    "status 500": 4,
    "status 503": 4,
    "status 400": 2,
    "hang": 1,
    "stall": 1,
    "garbage": 4,
    "huge": 1,
}
CONFIG: dict[str, Any] = {
    "timeouts": {"first_byte_s": 1.0, "idle_s": 1.0, "connect_s": 1.0},
    "retry": {"attempts": 3},
}


def random_faults(seed: int) -> Any:
    chance = random.Random(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())

    def behave(seen: Seen) -> str:
        return chance.choices(names, weights)[0]

    return behave


def check(answer: Answer, user: str, stream: bool) -> str:
    """Say how a request ended for the client; raise if its answer is lost, wrong or doubled."""
    if answer.error:
        return "broken off"  # the client knows
    if answer.status == 200:
        assert answer.whole, (user, answer.body[:200])
        assert answer.body.count(b'"usage"') == 1
        return "whole"
    assert answer.status in (400, 429, 500, 502, 503, 504), answer.status
    assert "error" in answer.json
    return f"status {answer.status}"


async def storm(
    rig: Rig, requests: int, concurrency: int, seed: int, *, impatient: float = 0.03
) -> Counter[str]:
    """Send requests, some of whose clients go away, and count how they ended."""
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            user, stream = f"user-{number}", chance.random() < 0.5
            turns = chance.randrange(4)
            messages = [{"role": "system", "content": "be brief"}]
            for turn in range(turns):
                messages += [
                    {"role": "user", "content": f"question {turn} of {number % 50}"},
                    {"role": "assistant", "content": f"answer {turn}"},
                ]
            messages.append({"role": "user", "content": "and now?"})
            request = rig.chat(user, stream=stream, messages=messages)
            if chance.random() < impatient:
                try:
                    async with asyncio.timeout(chance.random() * 0.05):
                        await request
                except TimeoutError:
                    ends["client went"] += 1
                    continue
                ends["in time"] += 1
            else:
                ends[check(await request, user, stream)] += 1

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return ends


def engines(count: int, seed: int, **settings: Any) -> list[FakeEngine]:
    return [FakeEngine(random_faults(seed + index), **settings) for index in range(count)]
