"""The exact hit index against real vLLM engines: predicted hits, and what the engines counted.

Usage: ``router_engines.py --engine URL,EVENTS[,REPLAY] ... [--tokenizer FOLDER] [--requests 150]``.
The engines need ``--enable-prefix-caching --enable-prompt-tokens-details`` and KV events over ZMQ,
no KV connector, and caches small enough to evict.  Sessions grow turn by turn; the router decides
by SMetric.  First one request at a time, then eight.  An engine's ``cached_tokens`` is its local
hit; its counter ``vllm:prefix_cache_hits_total`` must agree in sum.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from smetric_model.live.router.config import RouterConfig
from smetric_model.live.router.service import Service


@dataclass
class Asked:
    """One request: what was predicted, and what the engine counted."""

    instance: str
    source: str
    prompt_tokens: int
    predicted: int
    delivered: int
    reason: str
    request_id: str
    what: str


class Sessions:
    """Growing sessions of token ids or of chat messages."""

    def __init__(self, count: int, seed: int, chat: bool):
        self.chance = random.Random(seed)
        self.chat = chat
        self.count = count
        self.system = [self.chance.randrange(300, 3999) for _ in range(96)]
        self.histories: list[Any] = [self._new(k) for k in range(count)]

    def _words(self, count: int) -> str:
        return " ".join(f"value_{self.chance.randrange(4000)}" for _ in range(count))

    def _new(self, k: int) -> Any:
        if self.chat:
            return [{"role": "system", "content": "You are an agent that edits code. " * 10}]
        return list(self.system)

    def next(self, busy: set[int]) -> tuple[str, dict[str, Any], int, int]:
        """Return path, body, session and turn of the next request of a session not busy."""
        k = self.chance.choice([k for k in range(self.count) if k not in busy])
        history = self.histories[k]
        if self.chat:
            turn = sum(message["role"] == "assistant" for message in history)
            history.append({"role": "user", "content": self._words(self.chance.randrange(30, 120))})
            return "/v1/chat/completions", {"messages": list(history)}, k, turn
        turn = (len(history) > len(self.system)) + 0
        history += [
            self.chance.randrange(300, 3999) for _ in range(self.chance.randrange(100, 500))
        ]
        return "/v1/completions", {"prompt": list(history)}, k, turn

    def answered(self, k: int, answer: dict[str, Any]) -> None:
        history = self.histories[k]
        if self.chat:
            text = answer["choices"][0]["message"]["content"] or ""
            history.append({"role": "assistant", "content": text})
            if len(history) > 30:
                self.histories[k] = self._new(k)
        else:
            history += answer["choices"][0].get("token_ids") or []
            if len(history) > 3500:
                self.histories[k] = self._new(k)


async def ask(client: aiohttp.ClientSession, url: str, sessions: Sessions, busy: set[int]) -> Asked:
    path, body, k, turn = sessions.next(busy)
    busy.add(k)
    body |= {"model": "m", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    headers = {}
    if not sessions.chat:
        body["return_token_ids"] = True
        headers = {"x-smetric-turn": str(turn)}
        if turn:
            headers["x-smetric-est-hit-tokens"] = str(len(body["prompt"]) * 3 // 4)
    async with client.post(url + path, json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        told = response.headers
    sessions.answered(k, answer)
    busy.discard(k)
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Asked(
        told["x-smetric-instance"],
        told["x-smetric-hit-source"],
        usage["prompt_tokens"],
        int(told["x-smetric-hit-tokens"]),
        details.get("cached_tokens") or 0,
        told["x-smetric-reason"],
        told["x-request-id"],
        f"session {k} turn {turn}",
    )


async def counters(client: aiohttp.ClientSession, urls: list[str]) -> float:
    total = 0.0
    for url in urls:
        async with client.get(url + "/metrics") as response:
            for line in (await response.text()).splitlines():
                if line.startswith("vllm:prefix_cache_hits_total"):
                    total += float(line.rsplit(" ", 1)[1])
    return total


class Witness:
    """Remembers prompts and evictions, to say why a prediction was wrong.

    A prediction is made when the request comes; the engine looks its cache up when the request is
    scheduled.  What it evicts, or caches, for the requests before is the difference.
    """

    def __init__(self, service: Service):
        self.removed: dict[tuple[int, int], list[float]] = {}
        self.prompts: dict[str, tuple[Any, int, float, float]] = {}
        exact, answered = service.exact, service.answered
        assert exact is not None
        removed, names = exact.removed, exact._names

        def on_removed(bit: int, event: Any) -> None:
            now = time.monotonic()
            for name in event.hashes:
                entry = names.get(bit, {}).get(name)
                if entry is not None:
                    self.removed.setdefault((bit, entry[0]), []).append(now)
            removed(bit, event)

        def on_answered(exchange: Any, status: int, tail: bytes) -> None:
            now = time.monotonic()
            self.prompts[exchange.request_id.decode()] = (
                exchange.prompt,
                exchange.choice.instance.bit,
                now - exchange.seconds,
                now,
            )
            answered(exchange, status, tail)

        exact.removed = on_removed
        service.answered = on_answered  # type: ignore[method-assign]

    def why(self, one: Asked, block: int) -> str:
        """Explain the difference between prediction and delivery."""
        prompt, bit, start, end = self.prompts[one.request_id]
        if prompt is None:
            return "not tokenised in time"
        keys = prompt.keys(block)
        low, high = sorted((one.predicted, one.delivered))
        if one.delivered > one.predicted:
            return f"cached by another request meanwhile ({(high - low) // block} blocks)"
        gone = [
            key
            for key in keys[low // block : high // block]
            if any(start - 0.1 <= when <= end for when in self.removed.get((bit, key), ()))
        ]
        if gone:
            return f"{len(gone)} of its blocks evicted between decision and answer"
        return "NOT EXPLAINED"


def report(name: str, asked: list[Asked], counted: float, witness: Witness, block: int) -> int:
    errors = [abs(one.predicted - one.delivered) for one in asked]
    tokens = sum(one.prompt_tokens for one in asked)
    wrong = [one for one in asked if abs(one.predicted - one.delivered) > block]
    hits = sum(one.delivered for one in asked)
    print(
        f"{name}: {len(asked)} requests, {tokens} prompt tokens, {hits} hit "
        f"({hits / tokens:.1%}; the engines' counters: {counted:.0f}); exact for "
        f"{sum(one.source == 'exact' for one in asked)}; "
        f"{sum(one.predicted == one.delivered for one in asked)} equal; "
        f"mean absolute error {sum(errors) / tokens:.3%} of prompt tokens",
        flush=True,
    )
    reasons = sorted({one.reason for one in asked})
    print("   reasons:", {r: sum(one.reason == r for one in asked) for r in reasons})
    print(f"   blocks evicted so far: {sum(map(len, witness.removed.values()))}")
    why: dict[str, int] = {}
    for one in wrong:
        word = witness.why(one, block)
        why[word.lstrip("0123456789 ")] = why.get(word.lstrip("0123456789 "), 0) + 1
        print(
            f"   {one.what} on {one.instance} ({one.reason}): predicted {one.predicted}, "
            f"delivered {one.delivered} of {one.prompt_tokens}: {word}"
        )
    print("   misses over one block:", why or "none", flush=True)
    return int(any(error for error in errors)) if "one at a time" in name else 0


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--pause", type=float, default=0.05, help="between single requests [s]")
    parser.add_argument("--block", type=int, default=32, help="the engines' block size")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--skip-single", action="store_true", help="only eight at a time")
    arguments = parser.parse_args()
    instances, urls = [], []
    for index, text in enumerate(arguments.engine):
        url, events, *replay = text.split(",")
        urls.append(url)
        one = {"name": f"v{index}", "url": url, "kv_events": events}
        instances.append({**one, "kv_replay": replay[0]} if replay else one)
    hits: dict[str, Any] = {"source": "exact", "tokenise_budget_s": 5.0}
    if arguments.tokenizer:
        hits["tokenizer"] = arguments.tokenizer
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "decisions.jsonl"
        config = RouterConfig(
            listen={"port": 0},
            instances=instances,
            hits=hits,
            policy={"parameters": {"overload_floor": 2.0, "block_tokens": arguments.block}},
            log={"decisions": str(log)},
        )
        service = Service(config)
        witness = Witness(service)
        host, port = await service.start()
        url = f"http://{host}:{port}"
        status = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as client:
            await asyncio.sleep(2)
            for chat in (False, True) if arguments.tokenizer else (False,):
                kind = "chat" if chat else "token ids"
                block = arguments.block
                if not arguments.skip_single:
                    sessions, asked = Sessions(arguments.sessions, 1 + chat, chat), []
                    before, busy = await counters(client, urls), set()
                    for _ in range(arguments.requests):
                        asked.append(await ask(client, url, sessions, busy))
                        await asyncio.sleep(arguments.pause)
                    counted = await counters(client, urls) - before
                    status |= report(f"{kind}, one at a time", asked, counted, witness, block)
                sessions, asked = Sessions(2 * arguments.sessions, 5 + chat, chat), []
                before, busy = await counters(client, urls), set()

                async def worker(sessions=sessions, asked=asked, busy=busy) -> None:
                    while len(asked) < arguments.requests:
                        asked.append(await ask(client, url, sessions, busy))

                await asyncio.gather(*(worker() for _ in range(8)))
                counted = await counters(client, urls) - before
                report(f"{kind}, eight at a time", asked, counted, witness, block)
            async with client.get(url + "/health") as response:
                print("health:", (await response.json())["hits"])
            for item in service.fleet:
                feed = service.feeds[item.name]
                print(f"{item.name}: loads zero: {item.load.is_zero}; feed {dict(feed.counts)}")
                status |= not item.load.is_zero
        await service.drain()
        await service.stop()
    return int(status)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
