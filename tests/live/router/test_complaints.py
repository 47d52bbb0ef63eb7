"""What people complain about in other routers, each as the rule that follows from it.

The numbers in brackets are issues of vllm-project/router, sgl-project/sglang, llm-d and others.
Rules whose test stands elsewhere in this folder are listed in ``docs/router.md``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from router_rig import FakeEngine, rig

LONG = "a long shared beginning of every prompt. " * 200


def session(turns: int, name: str) -> list[Any]:
    messages = [{"role": "system", "content": LONG}]
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"{name} {turn} " * 50},
            {"role": "assistant", "content": "well " * 100},
        ]
    return [*messages, {"role": "user", "content": f"{name} {turns} " * 50}]


def run(coroutine: Any) -> None:
    asyncio.run(coroutine)


def test_a_probe_does_not_reset_loads() -> None:  # vllm-router 197
    async def main() -> None:
        engine = FakeEngine(lambda seen: "slow")
        async with rig(engine, config={"health": {"interval_s": 0.02}}) as r:
            task = asyncio.create_task(r.chat("u"))
            await asyncio.sleep(0.03)
            probes = len(engine.seen)
            loads = set()
            while not task.done():
                loads.add(r.loads()[0][0])
                await asyncio.sleep(0.005)
            assert len(engine.seen) > probes + 2  # it was probed meanwhile
            assert loads <= {1, 0}
            assert 1 in loads
            assert r.loads() == [(0, 0, 0)]

    run(main())


def test_clients_that_leave_leak_no_load() -> None:  # vllm-router 215
    async def main() -> None:
        async with rig(FakeEngine(lambda seen: "hang"), FakeEngine(chunk_s=0.02)) as r:
            for stream in (True, False) * 20:
                task = asyncio.create_task(r.chat("u", stream=stream))
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await r.settle()
            assert r.loads() == [(0, 0, 0)] * 2

    run(main())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/tokenize", "/v1/new_thing"])
def test_every_path_counts_load(path: str) -> None:  # vllm-router 179
    async def main() -> None:
        async with rig(*(FakeEngine(lambda seen: "slow") for _ in range(4))) as r:
            answers = await asyncio.gather(*(r.chat(f"u{k}", path=path) for k in range(16)))
            used = [answer.instance for answer in answers]
            assert [used.count(f"e{k}") for k in range(4)] == [4] * 4

    run(main())


def test_a_miss_goes_to_the_least_load() -> None:  # sglang 14305, 14532
    async def main() -> None:
        async with rig(*(FakeEngine(lambda seen: "slow") for _ in range(3))) as r:
            r.service.fleet["e0"].load.requests = 2
            r.service.fleet["e1"].load.requests = 1
            answer = await r.chat("u", messages=session(3, "never seen"))
            assert answer.headers["x-smetric-reason"] == "evicted"
            assert answer.instance == "e2"
            r.service.fleet["e0"].load.requests = r.service.fleet["e1"].load.requests = 0

    run(main())


def test_imbalance_does_not_end_all_affinity() -> None:  # sglang 32195
    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(4))) as r:
            homes = {}
            for name in "abcdefgh":
                homes[name] = (await r.chat(name, messages=session(0, name))).instance
            overloaded = r.service.fleet["e0"]
            overloaded.load.requests = 8
            for name, home in homes.items():
                answer = await r.chat(name, messages=session(1, name))
                if home == "e0":
                    assert answer.headers["x-smetric-reason"] == "overloaded"
                else:
                    assert answer.instance == home  # the others stay
            overloaded.load.requests = 0

    run(main())


def test_a_session_leaves_an_instance_that_thrashes() -> None:  # prime-rl 3255
    async def main() -> None:
        engines = [FakeEngine() for _ in range(3)]
        async with rig(*engines) as r:
            home = (await r.chat("a", messages=session(1, "s"))).instance
            engine = engines[int(home[1:])]
            engine.cached_tokens = lambda seen: 0  # it has dropped what it had
            engine.prompt_tokens = lambda seen: 3000
            answer = await r.chat("b", messages=session(2, "s"))
            assert answer.instance == home
            assert r.metric("hit_error_tokens_bucket", le="-1024.0") == 1  # and it is seen
            for other in ("x", "y"):  # sessions it knew before are no longer believed there
                told = await r.chat("c", messages=session(2, other))
                assert told.headers["x-smetric-hit-tokens"] in ("0", "2050")

    run(main())


def test_few_in_flight_need_not_move_sessions() -> None:  # verl 6533
    config = {"policy": {"parameters": {"overload_floor": 2.0}}}

    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(4)), config=config) as r:
            home = (await r.chat("a", messages=session(1, "s"))).instance
            r.service.fleet[home].load.requests = 2  # four times the mean of 0.5
            answer = await r.chat("b", messages=session(2, "s"))
            assert answer.headers["x-smetric-reason"] == "stick"
            r.service.fleet[home].load.requests = 0

    run(main())


def test_a_shared_prefix_draws_nobody() -> None:  # Gym 3193, sglang 34513
    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(4))) as r:
            for k in range(8):  # everybody has the beginning
                await r.chat(f"w{k}", messages=session(0, f"w{k}"))
            used = []
            for k in range(8):  # sessions whose own context is nowhere
                answer = await r.chat(f"u{k}", messages=session(2, f"u{k}"))
                used.append(answer.instance)
                assert answer.headers["x-smetric-reason"] in ("evicted", "shared_prefix")
            assert [used.count(f"e{k}") for k in range(4)] == [2] * 4

    run(main())


def test_one_hung_engine_blocks_nobody_else() -> None:  # production-stack 749
    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []
        listener = await asyncio.start_server(lambda r, w: writers.append(w), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        # accepts and never answers: neither connecting nor sending fails
        async with rig(FakeEngine(), config={"timeouts": {"first_byte_s": 0.5}}) as r:
            from smetric_model.live.router.config import InstanceSection

            r.service.members.add(InstanceSection(name="hung", url=f"http://127.0.0.1:{port}"))
            loop = asyncio.get_running_loop()
            start = loop.time()
            answers = await asyncio.gather(*(r.chat(f"u{k}") for k in range(10)))
            assert all(answer.whole for answer in answers)
            assert loop.time() - start < 2
            assert all(load == (0, 0, 0) for load in r.loads())
        listener.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)

    run(main())


def test_the_liveness_probe_is_answered_under_load() -> None:  # production-stack 448
    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(2))) as r:
            storm = asyncio.gather(
                *(r.chat(f"u{k}", messages=session(20, f"u{k}")) for k in range(150))
            )
            loop = asyncio.get_running_loop()
            waits = []
            while not storm.done():
                start = loop.time()
                async with r.client.get(r.url + "/health/live") as response:
                    assert response.status == 200
                waits.append(loop.time() - start)
            await storm
            assert len(waits) >= 2  # answered between the others, not after them
            assert max(waits) < 5.0  # engines and clients share this loop

    run(main())


def test_load_is_charged_before_sending_and_held_to_the_end() -> None:  # smg 1714, sglang 27547
    async def main() -> None:
        seen_loads = []
        engine = FakeEngine(chunk_s=0.05)
        async with rig(engine) as r:

            def look(_: Any) -> str:
                seen_loads.append(r.loads()[0])
                return "ok"

            engine.behave = look
            messages = [{"role": "user", "content": "x" * 4000}]
            async with r.client.post(
                r.url + "/v1/chat/completions",
                json={"user": "u", "stream": True, "messages": messages},
            ) as response:
                await response.content.readany()  # the first token is here
                assert r.loads() == [(1, 0, 1000)]
                await response.read()
            assert seen_loads == [(1, 1000, 1000)]
            assert r.loads() == [(0, 0, 0)]

    run(main())


def test_an_engine_that_hangs_within_its_answer_holds_no_load() -> None:  # vllm-router 146
    async def main() -> None:
        config = {"timeouts": {"idle_s": 0.2}}
        async with rig(FakeEngine(lambda seen: "stall"), config=config) as r:
            answer = await r.chat("u", stream=True)
            assert answer.error
            assert b'"error"' in answer.body
            await r.settle()
            assert r.loads() == [(0, 0, 0)]
            assert r.metric("requests_total", instance="e0", ended="timeout_idle") == 1

    run(main())


def test_no_two_answers_are_glued_together() -> None:  # aden-hive 5923, vllm-ascend 15239
    async def main() -> None:
        async with rig(FakeEngine(lambda seen: "die"), FakeEngine()) as r:
            answers = [await r.chat(f"u{k}", stream=True) for k in range(8)]
            for k, answer in enumerate(answers):
                assert answer.whole or answer.error
                assert answer.body.count(b'"index": 0') == 1
                assert f'"id": "u{k}"'.encode() in answer.body
            assert sum(answer.whole for answer in answers) >= 1

    run(main())


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},  # 275: no parameters
        {"cache_salt": "s", "vllm_xargs": {"a": 1}, "priority": 3, "reasoning_content": None},
        {"messages": []},
        {"messages": [{"role": "tool", "name": "n", "content": None, "tool_call_id": "1"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"something": {"of": ["the", "future"]}},
    ],
)
def test_no_schema_stands_between_client_and_engine(body: dict[str, Any]) -> None:
    async def main() -> None:  # vllm-router 275, 110, 239; semantic-router 3708
        async with rig(FakeEngine(extra={"unknown": {"field": 1}})) as r:
            data = json.dumps({"user": "u", **body}).encode()
            async with r.client.post(r.url + "/v1/chat/completions", data=data) as response:
                assert response.status == 200
                assert (await response.json())["unknown"] == {"field": 1}
            assert r.engines[0].requests[0].body == data

    run(main())


@pytest.mark.filterwarnings("ignore:Sending a large body")
def test_images_of_many_megabytes_pass() -> None:  # sglang 38735
    async def main() -> None:
        async with rig(FakeEngine()) as r:
            url = "data:image/png;base64," + "A" * 12_000_000
            content = [{"type": "image_url", "image_url": {"url": url}}]
            answer = await r.chat("u", messages=[{"role": "user", "content": content}])
            assert answer.whole
            assert answer.headers["x-smetric-prompt-tokens"] == "1000"  # an image is an image

    run(main())


def test_the_index_stays_within_one_budget_for_all() -> None:  # dynamo 10774, 14878; smg 2137
    async def main() -> None:
        config = {"hits": {"index_bytes": 1_000_000}}
        async with rig(*(FakeEngine(keep=False) for _ in range(8)), config=config) as r:
            index = r.service.approximate
            for block in range(60):
                await asyncio.gather(
                    *(r.chat("u", messages=session(9, f"{block}-{k}")) for k in range(10))
                )
            assert index.forgotten > 0
            assert index.memory_bytes <= 1_000_000
            assert r.metric("index_bytes") == index.memory_bytes

    run(main())


def test_sessions_need_no_table_in_the_router() -> None:  # dynamo 11035
    async def main() -> None:
        engines = [FakeEngine() for _ in range(3)]
        async with rig(*engines) as r:
            home = (await r.chat("u", messages=session(1, "s"))).instance
            assert (await r.chat("u", messages=session(2, "s"))).instance == home
            assert not hasattr(r.service, "sessions")

    run(main())


def test_content_tells_the_session_not_a_header() -> None:  # teamclaude 438
    async def main() -> None:
        config = {"policy": {"name": "always-sticky"}}
        async with rig(*(FakeEngine() for _ in range(8)), config=config) as r:
            same = {"x-claude-code-session-id": "one-for-all"}
            used = {
                (await r.chat("u", messages=session(0, f"agent {k}"), headers=same)).instance
                for k in range(24)
            }
            assert len(used) > 4  # parent and subagents are not funnelled
        config["paths"] = {"session_header": "X-Session"}
        async with rig(*(FakeEngine() for _ in range(8)), config=config) as r:
            used = {
                (
                    await r.chat("u", messages=session(0, f"{k}"), headers={"x-session": "1"})
                ).instance
                for k in range(12)
            }
            assert len(used) == 1  # if one asks for it

    run(main())


def test_the_billing_nonce_does_not_end_the_prefix() -> None:  # vllm 36829, claude-code 68900
    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(3))) as r:

            async def ask(turn: int) -> Any:
                system = [
                    {"type": "text", "text": f"x-anthropic-billing-header: cch={turn}"},
                    {"type": "text", "text": LONG},
                ]
                messages = session(turn, "s")[1:]
                return await r.chat("u", path="/v1/messages", system=system, messages=messages)

            first, second = await ask(0), await ask(1)
            assert second.instance == first.instance
            assert second.headers["x-smetric-reason"] == "stick"

    run(main())


def test_dropped_reasoning_is_not_expected_to_hit() -> None:  # Qwen3.8 131, Crow 60
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine()) as r:
            plain = session(1, "s")
            thought = json.loads(json.dumps(plain))
            thought[2]["content"] = "<think>" + "hm " * 3000 + "</think>" + thought[2]["content"]
            thought[2]["reasoning_content"] = "hm " * 3000
            told = [await r.chat("u", messages=messages) for messages in (plain, thought)]
            one, two = (answer.headers["x-smetric-est-hit-tokens"] for answer in told)
            assert one == two

    run(main())


def test_predicted_and_delivered_hits_are_published() -> None:  # llm-d 2896, 1020
    async def main() -> None:
        engine = FakeEngine(cached_tokens=lambda s: 700, prompt_tokens=lambda s: 1000)
        async with rig(engine) as r:
            for k in range(3):
                await r.chat("u", messages=session(k, "s"))
            assert r.metric("engine_hit_tokens_total") == 2100
            assert r.metric("predicted_hit_tokens_total", source="approximate") > 1000
            assert r.metric("hit_error_tokens_bucket", le="+Inf") == 3

    run(main())


def test_the_router_asks_no_engine_to_tokenise() -> None:  # vllm 55770, llm-d 1289
    async def main() -> None:
        async with rig(*(FakeEngine() for _ in range(3))) as r:
            for k in range(5):
                await r.chat("u", messages=session(k, "s"))
            asked = [seen.target for engine in r.engines for seen in engine.requests]
            assert asked == ["/v1/chat/completions"] * 5

    run(main())


def test_a_dead_home_is_not_chosen_again_by_the_retries() -> None:  # vllm-router 0.1.17, measured
    async def main() -> None:
        engines = [FakeEngine() for _ in range(2)]
        async with rig(*engines, config={"health": {"interval_s": 60.0}}) as r:
            home = (await r.chat("u", messages=session(1, "s"))).instance
            await engines[int(home[1:])].stop()
            answers = [await r.chat("u", messages=session(k, "s")) for k in range(2, 8)]
            assert all(answer.whole for answer in answers)
            assert {answer.instance for answer in answers} == {"e0", "e1"} - {home}
            await engines[int(home[1:])].start()

    run(main())
