"""Decisions: the same inputs give the same choices, live, from the log and in the simulator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import faults
import pytest
from click.testing import CliRunner
from router_rig import FakeEngine, Rig, rig

from smetric_model.cli.route import command
from smetric_model.errors import LiveError, TraceError
from smetric_model.live.router.decision_log import read_decisions, replay
from smetric_model.routing.compiled import choose_compiled
from smetric_model.routing.registry import POLICIES


def session(turns: int, name: str = "s", answer: str = "an answer of some length ") -> list[Any]:
    messages = [{"role": "system", "content": "you are an agent. " * 40}]
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"{name}: question {turn} " * 30},
            {"role": "assistant", "content": answer * 10},
        ]
    messages.append({"role": "user", "content": f"{name}: question {turns} " * 30})
    return messages


async def turns(r: Rig, count: int, name: str = "s") -> list[Any]:
    return [await r.chat(f"{name}{k}", messages=session(k, name)) for k in range(count)]


class TestSMetric:
    def test_a_session_stays_where_it_is(self) -> None:
        async def main() -> None:
            async with rig(*(FakeEngine() for _ in range(4))) as r:
                answers = await turns(r, 6)
                assert len({answer.instance for answer in answers}) == 1
                assert [answer.headers["x-smetric-reason"] for answer in answers] == [
                    "first_turn",
                    *["stick"] * 5,
                ]
                assert [answer.headers["x-smetric-turn"] for answer in answers] == list("012345")
                for answer in answers[1:]:  # nothing was evicted: the hit is what was expected
                    assert (
                        answer.headers["x-smetric-hit-tokens"]
                        == answer.headers["x-smetric-est-hit-tokens"]
                        != "0"
                    )

        asyncio.run(main())

    def test_first_turns_are_balanced_though_all_share_a_system_prompt(self) -> None:
        async def main() -> None:
            async with rig(*(FakeEngine(chunk_s=0.05) for _ in range(4))) as r:
                answers = await asyncio.gather(
                    *(r.chat(f"u{k}", messages=session(0, f"n{k}"), stream=True) for k in range(16))
                )
                used = [answer.instance for answer in answers]
                assert [used.count(f"e{k}") for k in range(4)] == [4] * 4

        asyncio.run(main())

    def test_an_overloaded_home_is_left(self) -> None:
        async def main() -> None:
            engines = [FakeEngine() for _ in range(4)]
            async with rig(*engines) as r:
                home = (await turns(r, 2))[-1].instance
                instance = r.service.fleet[home]
                instance.load.requests = 9
                answer = await r.chat("u", messages=session(2))
                assert answer.headers["x-smetric-reason"] == "overloaded"
                assert answer.instance != home
                instance.load.requests = 0

        asyncio.run(main())

    def test_a_session_moves_once_and_stays_at_its_new_home(self) -> None:
        async def main() -> None:
            async with rig(*(FakeEngine() for _ in range(4))) as r:
                home = (await turns(r, 2))[-1].instance
                r.service.fleet[home].draining = True
                moved = await r.chat("u", messages=session(2))
                assert moved.headers["x-smetric-reason"] == "home_down"
                r.service.fleet[home].draining = False
                later = await r.chat("u", messages=session(3))
                assert later.instance == moved.instance
                assert later.headers["x-smetric-reason"] == "stick"

        asyncio.run(main())

    @pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
    def test_other_apis_hit_too(self, path: str) -> None:
        async def main() -> None:
            async with rig(*(FakeEngine() for _ in range(3))) as r:
                key = "input" if path == "/v1/responses" else "messages"
                answers = [
                    await r.chat(f"u{k}", path=path, **{key: session(k)[1:]}) for k in range(3)
                ]
                assert [a.headers["x-smetric-reason"] for a in answers[1:]] == ["stick"] * 2
                assert len({a.instance for a in answers}) == 1

        asyncio.run(main())

    def test_completions_of_a_client_that_tells_its_turn(self) -> None:
        async def main() -> None:
            async with rig(*(FakeEngine() for _ in range(3))) as r:
                prompt = list(range(1000))
                first = await r.chat("a", path="/v1/completions", prompt=prompt)
                headers = {"x-smetric-turn": "1", "x-smetric-est-hit-tokens": "1000"}
                longer = [*prompt, *range(5000, 5200)]
                second = await r.chat("b", path="/v1/completions", prompt=longer, headers=headers)
                assert second.instance == first.instance
                assert second.headers["x-smetric-reason"] == "stick"
                assert second.headers["x-smetric-prompt-tokens"] == "1200"
                assert second.headers["x-smetric-hit-tokens"] == "960"  # whole elements of 64
                wrong = await r.chat(
                    "c", path="/v1/completions", prompt=prompt, headers={"x-smetric-turn": "-1"}
                )
                assert wrong.status == 400

        asyncio.run(main())


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_decides_and_its_log_replays(policy: str, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    config = {"policy": {"name": policy, "seed": 7}, "log": {"decisions": str(log)}}

    async def main() -> None:
        async with rig(*faults.engines(4, seed=9), config={**faults.CONFIG, **config}) as r:
            ends = await faults.storm(r, requests=60, concurrency=8, seed=4, impatient=0)
            assert ends["whole"] > 30
            assert r.loads() == [(0, 0, 0)] * 4

    asyncio.run(main())
    logged = [one for _, one in read_decisions(log)]
    assert len(logged) >= 60
    assert {one.decision.instance for one in logged} == {0, 1, 2, 3}
    assert replay(log).different == []
    assert replay(log, choose_compiled).different == []  # the simulator's own function
    result = CliRunner().invoke(command, ["--replay", str(log), "--json"])
    assert json.loads(result.output)["decisions"] == len(logged)


def test_a_changed_decision_is_found_and_a_foreign_line_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"

    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(), config={"log": {"decisions": str(log)}}) as r:
            await turns(r, 3)

    asyncio.run(main())
    lines = log.read_text().splitlines()
    assert "question" not in log.read_text()  # nothing of the prompt
    assert "agent" not in log.read_text()
    last = json.loads(lines[-1])
    last["instance"] = 1 - last["instance"]
    log.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert replay(log).different == [len(lines)]
    result = CliRunner().invoke(command, ["--replay", str(log)])
    assert isinstance(result.exception, LiveError)
    log.write_text("\n".join([*lines, '{"type":"decision"}']) + "\n")
    with pytest.raises(TraceError, match=f":{len(lines) + 1}: not a line of a decision log"):
        replay(log)


def test_instances_that_change_are_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"

    async def main() -> None:
        config = {"log": {"decisions": str(log)}}
        async with rig(FakeEngine(), FakeEngine(), FakeEngine(), config=config) as r:
            await turns(r, 2)
            r.service.members.remove("e1")
            await turns(r, 4)

    asyncio.run(main())
    assert {one.names for _, one in read_decisions(log)} == {("e0", "e1", "e2"), ("e0", "e2")}
    assert replay(log).different == []
