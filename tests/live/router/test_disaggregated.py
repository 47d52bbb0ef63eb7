"""Two-stage dispatch."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from router_rig import FakeEngine, rig, until

from smetric_model.live.router.config import InstanceSection, RouterConfig
from smetric_model.live.router.disaggregated import freest, prefill_body
from smetric_model.live.router.fleet import Charge, Fleet
from smetric_model.live.router.scrape import EngineMetrics

ROLES = ("prefill", "prefill", "decode", "decode")
REMOTE = {"remote_engine_id": "p", "remote_block_ids": [1, 2], "do_remote_prefill": True}


def four(**faults: Any) -> list[FakeEngine]:
    ok = lambda seen: "ok"
    return [
        FakeEngine(faults.get(f"e{k}", ok), extra={"kv_transfer_params": REMOTE} if k < 2 else {})
        for k in range(4)
    ]


class TestTwoStages:
    @pytest.mark.parametrize("stream", [True, False])
    def test_prefill_then_decode(self, stream: bool) -> None:
        async def main() -> None:
            engines = four()
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat(
                    "u", stream=stream, max_completion_tokens=50, min_tokens=9, zzz=[1]
                )
                assert answer.whole
                first, second = (
                    engines[0].requests
                    + engines[1].requests
                    + (engines[2].requests + engines[3].requests)
                )
                assert first.json["max_tokens"] == first.json["max_completion_tokens"] == 1
                assert first.json["min_tokens"] == 1
                assert first.json["stream"] is False
                assert first.json["kv_transfer_params"]["do_remote_decode"] is True
                assert second.json["kv_transfer_params"] == REMOTE
                assert second.json["max_completion_tokens"] == 50
                assert second.json["zzz"] == [1]
                assert first.headers["x-request-id"] == second.headers["x-request-id"]
                assert answer.headers["x-smetric-decode-instance"] in ("e2", "e3")
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_all_but_the_handed_over_member_arrives_as_it_was_sent(self) -> None:
        async def main() -> None:
            engines = four()
            async with rig(*engines, roles=ROLES) as r:
                body = b'{ "user":"u",\n "messages":[{"role":"user","content":"x"}], "f":1.50 }'
                async with r.client.post(r.url + "/v1/chat/completions", data=body) as response:
                    assert response.status == 200
                (second,) = engines[2].requests + engines[3].requests
                start = second.body.index(b"}") + 2
                assert second.body.startswith(b'{"kv_transfer_params":{')
                assert second.body[start:] == body[1:]

        asyncio.run(main())

    @pytest.mark.parametrize("fault", ["close", "head", "garbage", "status 503", "die"])
    def test_a_failed_prefill_is_tried_once_more(self, fault: str) -> None:
        async def main() -> None:
            engines = four(e0=lambda seen: fault)
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u")
                assert answer.whole
                assert len(engines[0].requests) == len(engines[1].requests) == 1
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    @pytest.mark.parametrize("fault", ["close", "head", "garbage", "status 503"])
    @pytest.mark.parametrize("stream", [True, False])
    def test_a_failure_between_the_stages_runs_both_again(self, fault: str, stream: bool) -> None:
        async def main() -> None:
            engines = four(e2=lambda seen: fault)
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u", stream=stream)
                assert answer.whole
                assert len(engines[0].requests) + len(engines[1].requests) == 2
                assert len(engines[2].requests) == len(engines[3].requests) == 1
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_not_more_than_once(self) -> None:
        async def main() -> None:
            engines = four(e2=lambda seen: "close", e3=lambda seen: "close")
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u")
                assert answer.status == 502
                assert len(engines[0].requests) + len(engines[1].requests) == 2
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_a_broken_stream_is_not_repeated(self) -> None:
        async def main() -> None:
            engines = four(e2=lambda seen: "die", e3=lambda seen: "die")
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u", stream=True)
                assert answer.error
                assert len(engines[2].requests) + len(engines[3].requests) == 1
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_the_clients_error_comes_from_the_prefill_engine(self) -> None:
        async def main() -> None:
            engines = four(e0=lambda seen: "status 400", e1=lambda seen: "status 400")
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u")
                assert answer.status == 400
                assert answer.json == {"error": "engine says no"}
                assert engines[2].requests == engines[3].requests == []
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_an_engine_without_a_connector_is_named(self) -> None:
        async def main() -> None:
            engines = [FakeEngine() for _ in range(4)]
            async with rig(*engines, roles=ROLES) as r:
                answer = await r.chat("u")
                assert answer.status == 502
                assert "kv_transfer_params" in answer.json["error"]["message"]
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    @pytest.mark.parametrize("where", [0, 2])
    def test_a_client_that_goes_in_either_stage(self, where: int) -> None:
        async def main() -> None:
            hang = lambda seen: "hang"
            engines = four(**{f"e{where}": hang, f"e{where + 1}": hang})
            async with rig(*engines, roles=ROLES) as r:
                task = asyncio.create_task(r.chat("u"))
                async with asyncio.timeout(3):
                    while not engines[where].in_flight + engines[where + 1].in_flight:
                        await asyncio.sleep(0.01)
                assert sum(load[0] for load in r.loads()) == 1
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await r.settle()
                assert r.loads() == [(0, 0, 0)] * 4
                async with asyncio.timeout(3):
                    while engines[where].in_flight + engines[where + 1].in_flight:
                        await asyncio.sleep(0.01)

        asyncio.run(main())

    def test_storage_hands_nothing_over(self) -> None:
        async def main() -> None:
            engines = four()
            config = {"disaggregated": {"connector": "storage"}}
            async with rig(*engines, roles=ROLES, config=config) as r:
                for path, limit in (
                    ("/v1/chat/completions", "max_tokens"),
                    ("/v1/messages", "max_tokens"),
                    ("/v1/responses", "max_output_tokens"),
                ):
                    answer = await r.chat("u", path=path, input="x")
                    assert answer.whole
                    first = (engines[0].requests + engines[1].requests)[-1]
                    assert first.json[limit] == 1
                    assert "kv_transfer_params" not in first.json
                    for engine in engines[:2]:
                        engine.seen.clear()

        asyncio.run(main())

    def test_other_paths_and_apis_go_to_the_decode_pool(self) -> None:
        async def main() -> None:
            engines = four()
            async with rig(*engines, roles=ROLES) as r:
                assert (await r.chat("u", path="/v1/messages")).whole
                assert (await r.chat("u", path="/tokenize")).whole
                assert engines[0].requests == engines[1].requests == []
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())


class TestPools:
    def test_prefill_is_balanced_on_unprefilled_tokens(self) -> None:
        async def main() -> None:
            engines = four(e0=lambda seen: "slow", e1=lambda seen: "slow")
            engines[0].slow_s = 1.0  # until the others have come
            async with rig(*engines, roles=ROLES) as r:
                big = [{"role": "user", "content": "x" * 40_000}]
                small = [{"role": "user", "content": "y"}]
                first = asyncio.create_task(r.chat("big", messages=big))
                await until(lambda: r.loads()[0][1] == 10_000)
                others = await asyncio.gather(
                    *(r.chat(f"s{k}", messages=[*small, *small][: k % 2 + 1]) for k in range(6))
                )
                assert {answer.instance for answer in others} == {"e1"}
                assert (await first).instance == "e0"
                assert r.loads() == [(0, 0, 0)] * 4

        asyncio.run(main())

    def test_decode_goes_where_kv_cache_is_free(self) -> None:
        fleet = Fleet()
        one, two, three = (
            fleet.add(
                InstanceSection(
                    name=f"d{k}", url=f"http://h:{k + 1}", role="decode", kv_capacity_tokens=1000
                )
            )
            for k in range(3)
        )
        pool = fleet.pool("decode")
        assert freest(pool, ()) is one
        charge = Charge(one.load, held_tokens=300)
        assert freest(pool, ()) is two
        two.engine = EngineMetrics(1, 0, 0.5, None, None, None, 0.0)
        assert freest(pool, ()) is three
        three.draining = True
        assert freest(pool, ()) is one  # 700 free, against 500
        assert freest(pool, (one,)) is two
        charge.release()
        assert one.load.is_zero
        two.up = one.up = False
        assert freest(pool, ()) is None


def test_bodies_of_the_first_stage() -> None:
    body = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}, "n": 2}
    made = json.loads(prefill_body("completions", body, True))
    assert made["stream"] is False
    assert "stream_options" not in made
    assert made["n"] == 2
    assert made["max_tokens"] == 1
    assert "kv_transfer_params" not in json.loads(prefill_body("completions", body, False))
    assert body["stream"] is True


def test_pools_must_both_be_there() -> None:
    from smetric_model.errors import SpecError

    def instance(name: str, role: str) -> dict[str, str]:
        return {"name": name, "url": f"http://{name}:1", "role": role}

    with pytest.raises(SpecError, match="both needed"):
        RouterConfig(instances=[instance("a", "prefill")])
    with pytest.raises(SpecError, match="mixed"):
        RouterConfig(instances=[instance("a", "prefill"), instance("b", "serve")])
