"""KV events over real ZMQ sockets: feed, gaps, restarts, a router that follows."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
import zmq
import zmq.asyncio
from exact_rig import BLOCK, Engine, encode, live_index, prompt
from router_rig import FakeEngine, rig, until

from smetric_model.live.router.kv_feed import KvFeed
from smetric_model.live.router.kv_wire import (
    AllCleared,
    BlocksRemoved,
    BlocksStored,
)


class Publisher:
    """An engine's publisher: PUB and replay ROUTER, as vLLM has them."""

    def __init__(self, context: zmq.asyncio.Context, topic: bytes = b"kv", with_topic: bool = True):
        self.pub = context.socket(zmq.PUB)
        self.router = context.socket(zmq.ROUTER)
        for socket in (self.pub, self.router):
            socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.topic, self.with_topic = topic, with_topic
        self.number = 0
        self.kept: list[tuple[int, bytes]] = []
        self.lost: set[int] = set()
        self.task = asyncio.ensure_future(self._serve())

    async def publish(self, *events: Any) -> None:
        payload = encode([0.0, [_wire(event) for event in events], 0])
        self.kept.append((self.number, payload))
        if self.number not in self.lost:
            await self.pub.send_multipart([self.topic, self.number.to_bytes(8, "big"), payload])
        self.number += 1

    async def _serve(self) -> None:
        while True:
            client, empty, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            middle = [self.topic] if self.with_topic else []
            for number, payload in self.kept:
                if number >= first:
                    await self.router.send_multipart(
                        [client, empty, *middle, number.to_bytes(8, "big"), payload]
                    )
            await self.router.send_multipart([client, empty, *middle, struct.pack(">q", -1), b""])

    def close(self) -> None:
        self.task.cancel()
        self.pub.close()
        self.router.close()


def _wire(event: Any) -> Any:
    if isinstance(event, BlocksStored):
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": event.block_tokens,
            "medium": "GPU",
        }
    if isinstance(event, BlocksRemoved):
        return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": "GPU"}
    return {"type": "AllBlocksCleared"}


class FeedRig:
    """A feed on a publisher."""

    def __init__(self, replay: bool = True, with_topic: bool = True):
        self.index, (self.one,) = live_index(1)
        self.index.live = 0
        self.replay, self.with_topic = replay, with_topic

    async def __aenter__(self) -> FeedRig:
        self.context = zmq.asyncio.Context()
        self.publisher = Publisher(self.context, with_topic=self.with_topic)
        self.engine = Engine()
        return self

    async def follow(self) -> None:
        endpoint = self.publisher.replay if self.replay else None
        self.feed = KvFeed("e0", self.one.bit, self.index, self.publisher.endpoint, endpoint)
        self.feed.task = asyncio.ensure_future(self.feed.run(self.context))
        await until(lambda: self.feed.counts["connected"])
        await asyncio.sleep(0.1)  # the subscription arrives after the connection

    async def store(self, tokens: list[int]) -> None:
        await self.publisher.publish(self.engine.store(tokens))

    def agrees(self, *prompts: list[int]) -> bool:
        return all(
            self.index.hits(prompt(tokens), [self.one]).get(self.one.bit) == self.engine.hit(tokens)
            for tokens in prompts
        )

    async def __aexit__(self, *_: object) -> None:
        self.feed.task.cancel()
        await asyncio.gather(self.feed.task, return_exceptions=True)
        self.publisher.close()
        self.context.destroy(linger=0)


A, B, C = list(range(100)), list(range(40)) + [7] * 60, [9] * 70


class TestFeed:
    def test_events_as_they_come(self) -> None:
        async def main() -> None:
            async with FeedRig() as r:
                await r.follow()
                assert r.feed.is_live
                for tokens in (A, B, C):
                    await r.store(tokens)
                await until(lambda: r.feed.applied == 2)
                assert r.agrees(A, B, C)
                await r.publisher.publish(r.engine.evict(r.engine.hashes(A)[3:]))
                await until(lambda: r.feed.applied == 3)
                assert r.agrees(A, B, C)
                r.engine.cached.clear()
                await r.publisher.publish(AllCleared())
                await until(lambda: r.feed.applied == 4)
                assert r.agrees(A, B, C)
                assert r.feed.state == "live"

        asyncio.run(main())

    @pytest.mark.parametrize("with_topic", [True, False])
    def test_what_was_cached_before_is_replayed(self, with_topic: bool) -> None:
        async def main() -> None:
            async with FeedRig(with_topic=with_topic) as r:
                await r.store(A)
                await r.store(B)
                await r.follow()
                await until(lambda: r.feed.applied == 1)
                assert r.agrees(A, B, C)
                await r.store(C)
                await until(lambda: r.feed.applied == 2)
                assert r.agrees(A, B, C)
                assert r.feed.counts["replayed"] == 2
                assert r.feed.counts["gaps"] == 0

        asyncio.run(main())

    def test_a_gap_is_filled_by_replay(self) -> None:
        async def main() -> None:
            async with FeedRig() as r:
                await r.follow()
                r.publisher.lost = {1, 2}
                await r.store(A)
                await r.store(B)
                await r.publisher.publish(r.engine.evict(r.engine.hashes(A)[3:]))
                await r.store(C)
                await until(lambda: r.feed.applied == 3)
                assert r.agrees(A, B, C)
                assert r.feed.counts["gaps"] == 1
                assert r.feed.is_live
                assert r.feed.state == "live"

        asyncio.run(main())

    @pytest.mark.parametrize("replay", [False, True])
    def test_a_gap_that_cannot_be_filled_forgets_what_may_be_stale(self, replay: bool) -> None:
        async def main() -> None:
            async with FeedRig(replay=replay) as r:
                await r.follow()
                r.publisher.lost = {1}
                await r.store(A)
                await until(lambda: r.feed.applied == 0)
                await r.publisher.publish(r.engine.evict(r.engine.hashes(A)))
                del r.publisher.kept[:]  # the engine's buffer has lost it, too
                await r.store(C)
                await until(lambda: r.feed.applied == 2)
                assert r.agrees(A, C)
                assert "gap" in r.feed.state
                assert r.feed.is_live

        asyncio.run(main())

    def test_a_restart_is_seen_by_the_numbers(self) -> None:
        async def main() -> None:
            async with FeedRig(replay=False) as r:
                await r.follow()
                await r.store(A)
                await r.store(B)
                await until(lambda: r.feed.applied == 1)
                r.publisher.number, r.publisher.kept = 0, []
                r.engine = Engine("another seed")
                await r.store(C)
                await until(lambda: r.feed.counts["restarts"] == 1)
                assert r.agrees(A, B, C)
                assert r.feed.applied == 0
                r.feed.restarted()  # the metrics tell it, too, but later: nothing is lost
                assert r.agrees(A, B, C)
                r.feed.restarted()  # this time they are the first to tell
                assert r.index.blocks(r.one.bit) == 0

        asyncio.run(main())

    def test_garbage_is_counted_and_forgets(self) -> None:
        async def main() -> None:
            async with FeedRig(replay=False) as r:
                await r.follow()
                await r.store(A)
                await r.publisher.pub.send_multipart([b"kv", b"short", b"x"])
                await r.publisher.pub.send_multipart([b"kv", (1).to_bytes(8, "big"), b"\xc1"])
                await until(lambda: r.feed.counts["garbled"] == 2)
                assert r.index.hits(prompt(A), [r.one])[r.one.bit] == 0

        asyncio.run(main())

    def test_a_late_subscriber_without_replay_says_so(self) -> None:
        async def main() -> None:
            async with FeedRig(replay=False) as r:
                await r.store(A)
                await r.follow()
                await r.store(C)
                await until(lambda: r.feed.applied == 1)
                assert "came late" in r.feed.state
                assert r.agrees(C)

        asyncio.run(main())


class TestLive:
    def test_speculation_works_before_the_first_event(self) -> None:
        async def main() -> None:
            context = zmq.asyncio.Context()
            publisher = Publisher(context)
            engine = FakeEngine(prompt_tokens=lambda s: len(s.json["prompt"]))
            engine.metrics = (
                "vllm:num_requests_running 0\n"
                'vllm:cache_config_info{block_size="16",num_gpu_blocks="99"} 1.0\n'
            )
            config = {
                "hits": {"source": "exact"},
                "health": {"scrape_interval_s": 0.05},
                "instance_settings": [{"kv_events": publisher.endpoint}],
            }
            async with rig(engine, config=config) as r:
                await until(lambda: r.service.exact.block_sizes)
                await until(lambda: r.service.feeds["e0"].is_live)
                told = [
                    await r.chat("u", path="/v1/completions", prompt=[5] * length)
                    for length in (100, 140)
                ]
                assert [a.headers["x-smetric-hit-tokens"] for a in told] == ["0", "96"]
            publisher.close()
            context.destroy(linger=0)

        asyncio.run(main())

    def test_the_router_decides_by_events(self) -> None:
        """Predicted hits are the engine's own, request by request, evictions included."""

        async def main() -> None:
            context = zmq.asyncio.Context()
            engines = [FakeEngine(prompt_tokens=lambda s: len(s.json["prompt"])) for _ in range(2)]
            caches = [Engine(str(k)) for k in range(2)]
            publishers = [Publisher(context) for _ in range(2)]
            config = {
                "hits": {"source": "exact"},
                "instance_settings": [
                    {"kv_events": one.endpoint, "kv_replay": one.replay} for one in publishers
                ],
            }
            told: list[tuple[int, int]] = []
            async with rig(*engines, config=config) as r:
                await until(lambda: all(f.counts["connected"] for f in r.service.feeds.values()))
                await asyncio.sleep(0.2)
                for publisher, cache in zip(publishers, caches, strict=True):
                    await publisher.publish(cache.store([1] * BLOCK))
                await until(lambda: all(f.applied == 0 for f in r.service.feeds.values()))
                prompts = [[k // 40 + s for k in range(50 + 37 * s)] for s in range(1, 12)]
                for step in range(40):
                    tokens = prompts[step * 7 % 11]
                    answer = await r.chat(
                        f"u{step}",
                        path="/v1/completions",
                        prompt=tokens,
                        headers={"x-smetric-turn": str(step % 3)},
                    )
                    which = int(answer.instance[1:])
                    cache, publisher = caches[which], publishers[which]
                    told.append((int(answer.headers["x-smetric-hit-tokens"]), cache.hit(tokens)))
                    assert answer.headers["x-smetric-hit-source"] == "exact"
                    events = [cache.store(tokens)]
                    if step % 4 == 3:
                        events.append(cache.evict(list(cache.cached)[-6:]))
                    await publisher.publish(*[event for event in events if event is not None])
                    feed = r.service.feeds[answer.instance]
                    await until(lambda f=feed, p=publisher: f.applied == p.number - 1)
                async with r.client.get(r.url + "/health") as response:
                    assert (await response.json())["hits"]["feeds"] == {"e0": "live", "e1": "live"}
                assert r.metric("kv_feed_live", instance="e0") == 1
            for publisher in publishers:
                publisher.close()
            context.destroy(linger=0)
            assert all(predicted == real for predicted, real in told)
            assert sum(real for _, real in told) > 1000

        asyncio.run(main())
