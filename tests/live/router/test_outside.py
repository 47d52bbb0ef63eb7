"""What is seen and done from outside: admin, health, metrics, logs, tenants, the command line."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from router_rig import FakeEngine, Rig, rig, until

from smetric_model.cli.route import command
from smetric_model.errors import SpecError
from smetric_model.live.router.config import RouterConfig, load_config
from smetric_model.live.router.scrape import read_engine_metrics
from smetric_model.live.router.usage import Usage, read_usage

TOKEN = "a-token-of-sixteen"
START = "from smetric_model.cli import main; main()"
ADMIN: dict[str, Any] = {"admin": {"token": TOKEN}}


async def admin(
    r: Rig, method: str, path: str, body: Any = None, token: str = TOKEN
) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {token}"}
    async with r.client.request(method, r.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


class TestAdmin:
    def test_without_a_token_there_is_none(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                assert (await admin(r, "GET", "/router/status"))[0] == 404
                assert r.engines[0].requests == []  # not forwarded either
            async with rig(FakeEngine(), config=ADMIN) as r:
                assert (await admin(r, "GET", "/router/status", token="wrong"))[0] == 401
                assert (await admin(r, "GET", "/router/status"))[0] == 200
                assert (await admin(r, "GET", "/%72outer/status", token="wrong"))[0] == 401
                assert (await admin(r, "GET", "/router/nothing"))[0] == 404

        asyncio.run(main())

    def test_instances_come_drain_and_go(self) -> None:
        async def main() -> None:
            new = await FakeEngine().start()
            async with rig(FakeEngine(chunk_s=0.05), config=ADMIN) as r:
                status, told = await admin(
                    r, "POST", "/router/instances", {"name": "new", "url": new.url}
                )
                assert status == 201
                assert told["in_flight"] == 0
                for wrong in (
                    {"name": "new", "url": "http://h:1"},
                    {"name": "x", "url": new.url},
                    {"name": "x"},
                    {"name": "x", "url": "ftp://h"},
                    {"name": "x", "url": "http://h:1", "role": "decode"},
                    [1],
                ):
                    status, told = await admin(r, "POST", "/router/instances", wrong)
                    assert (status, told["error"]["code"]) == (400, "bad_instance"), wrong
                used = {(await r.chat(f"u{k}")).instance for k in range(4)}
                assert used == {"e0", "new"}
                running = asyncio.create_task(r.chat("long", stream=True))
                await asyncio.sleep(0.08)
                busy = next(i.name for i in r.service.fleet if i.load.requests)
                assert (await admin(r, "POST", f"/router/instances/{busy}/drain"))[0] == 200
                other = {"e0": "new", "new": "e0"}[busy]
                used = {(await r.chat(f"v{k}")).instance for k in range(4)}
                assert used == {other}
                assert (await running).whole
                assert (await admin(r, "POST", f"/router/instances/{busy}/undrain"))[0] == 200
                assert (await admin(r, "DELETE", "/router/instances/new"))[0] == 200
                assert (await admin(r, "DELETE", "/router/instances/new"))[0] == 404
                used = {(await r.chat(f"w{k}")).instance for k in range(4)}
                assert used == {"e0"}
                status, told = await admin(r, "GET", "/router/status")
                assert [one["name"] for one in told["instances"]] == ["e0"]
            await new.stop()

        asyncio.run(main())

    def test_a_removed_instance_ends_its_requests_and_its_slot_is_used_again(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), FakeEngine(lambda seen: "slow"), config=ADMIN) as r:
                await r.chat("a")
                task = asyncio.create_task(r.chat("b"))
                await until(lambda: r.loads()[1][0] == 1)
                removed = r.service.members.remove("e1")
                assert removed.load.requests == 1
                assert (await task).whole
                assert removed.load.is_zero
                async with asyncio.timeout(3):
                    while removed.slot in r.service.fleet._slots:
                        await asyncio.sleep(0.02)
                assert r.service.approximate.entries_of(removed.bit) == 0
                from smetric_model.live.router.config import InstanceSection

                again = r.service.members.add(InstanceSection(name="e2", url=r.engines[1].url))
                assert again.slot == removed.slot

        asyncio.run(main())


class TestTenants:
    def config(self) -> dict[str, Any]:
        return {"tenants": {"header": "authorization", "secret": "0123456789abcdef"}}

    def test_caches_are_kept_apart(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), FakeEngine(), config=self.config()) as r:
                salts = []
                for key, mine in (("a", None), ("a", None), ("b", None), ("a", "x"), ("b", "x")):
                    body = {} if mine is None else {"cache_salt": mine}
                    answer = await r.chat("u", headers={"authorization": key}, **body)
                    assert answer.whole
                    engine = r.engines[int(answer.instance[1:])]
                    salts.append(engine.requests[-1].json["cache_salt"])
                    assert engine.requests[-1].body.count(b"cache_salt") == 1
                assert salts[0] == salts[1]
                assert len(set(salts)) == 4
                assert not {"a", "b", "x"} & set(salts)

        asyncio.run(main())

    def test_one_tenant_gets_no_hit_from_another(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), FakeEngine(), config=self.config()) as r:
                messages = [{"role": "user", "content": "q" * 4000}]
                hits = []
                for key in ("a", "a", "b"):
                    answer = await r.chat("u", headers={"authorization": key}, messages=messages)
                    hits.append(int(answer.headers["x-smetric-hit-tokens"]))
                answer = await r.chat("u", headers={"authorization": "a"}, messages=messages)
                instance = {(await r.chat("u", headers={"authorization": "c"})).instance}
                assert instance <= {"e0", "e1"}
                assert hits[2] == 0

        asyncio.run(main())

    def test_what_cannot_be_kept_apart_is_not_forwarded(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), config=self.config()) as r:
                assert (await r.chat("u")).status == 401
                headers = {"authorization": "a"}
                answer = await r.chat("u", path="/v1/messages", headers=headers)
                assert answer.status == 501
                async with r.client.post(
                    r.url + "/v1/completions", data=b"no JSON", headers=headers
                ) as response:
                    assert response.status == 400
                assert r.engines[0].requests == []

        asyncio.run(main())


class TestMetrics:
    def test_they_say_what_happened(self) -> None:
        async def main() -> None:
            engine = FakeEngine(cached_tokens=lambda seen: 32, prompt_tokens=lambda seen: 100)
            engine.metrics = (
                "# HELP x\n"
                'vllm:num_requests_running{engine="0",model_name="a b"} 3.0\n'
                'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
                'vllm:num_requests_waiting_by_reason{reason="capacity"} 99\n'
                'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
                'vllm:cache_config_info{block_size="32",num_gpu_blocks="320",x="1"} 1.0\n'
                "process_start_time_seconds 1.7e9\n"
            )
            async with rig(engine, config={"health": {"scrape_interval_s": 0.05}}) as r:
                for _ in range(3):
                    await r.chat("u")
                await asyncio.sleep(0.2)
                async with r.client.get(r.url + "/metrics") as response:
                    assert response.status == 200
                    text = await response.text()
                assert 'smetric_router_requests_total{ended="whole",instance="e0"} 3.0' in text
                assert 'smetric_router_answers_total{status="200"} 3.0' in text
                assert 'smetric_router_decisions_total{reason="first_turn"} 3.0' in text
                assert r.metric("instance_engine_running", instance="e0") == 3
                assert r.metric("instance_engine_waiting", instance="e0") == 2
                assert r.metric("instance_engine_kv_usage_ratio", instance="e0") == 0.25
                assert r.metric("engine_hit_tokens_total") == 96
                assert r.metric("engine_prompt_tokens_total") == 300
                assert r.service.fleet["e0"].kv_capacity_tokens == 10_240
                assert r.loads() == [(0, 0, 0)]  # what the engine says is not charged

        asyncio.run(main())

    def test_an_engine_that_restarted_has_nothing_cached(self) -> None:
        async def main() -> None:
            engine = FakeEngine()
            page = "vllm:num_requests_running 0\nprocess_start_time_seconds {}\n"
            engine.metrics = page.format(1)
            async with rig(engine, config={"health": {"scrape_interval_s": 0.05}}) as r:
                await r.chat("u")
                await asyncio.sleep(0.15)
                assert r.service.approximate.entries > 0
                engine.metrics = page.format(2)
                await asyncio.sleep(0.15)
                assert r.service.approximate.entries == 0

        asyncio.run(main())

    def test_pages_that_are_none(self) -> None:
        assert read_engine_metrics("", 0.0) is None
        assert read_engine_metrics("<html>\nvllm:num_requests_running\n", 0.0) is None
        assert read_engine_metrics("vllm:num_requests_running x\n", 0.0) is None
        old = read_engine_metrics(
            "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n", 0.0
        )
        assert old.kv_usage_ratio == 0.5

    def test_usage_is_read_at_the_end_and_not_in_the_text(self) -> None:
        text = json.dumps({"content": '"cached_tokens": 7, {"prompt_tokens": 8}'}).encode()
        assert read_usage(text) == Usage()
        usage = b'"usage":{"prompt_tokens":10,"completion_tokens":2,'
        usage += b'"prompt_tokens_details":{"cached_tokens":8}}}'
        assert read_usage(text + usage) == Usage(10, 2, 8)
        anthropic = b'{"input_tokens": 5, "output_tokens":1, "cache_read_input_tokens":4}'
        assert read_usage(anthropic) == Usage(5, 1, 4)


def test_nothing_from_a_prompt_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    config = {"log": {"requests": True, "decisions": str(tmp_path / "d"), "level": "debug"}}
    secret = "the-secret-of-the-prompt"

    async def main() -> None:
        engines = [FakeEngine(lambda seen: "die"), FakeEngine(lambda seen: "status 500")]
        async with rig(*engines, config=config) as r:
            for body in (
                {"messages": [{"role": "user", "content": secret}]},
                {"messages": secret},
                {"messages": [{"role": secret, "content": [{"type": secret}]}], "model": secret},
                {"messages": [{"role": "user", "content": {"x": secret}}]},
            ):
                await r.chat("u", **body)
            async with r.client.post(r.url + f"/v1/x?{secret}=1", data=secret) as response:
                await response.read()
            # a defect, whose message holds the prompt
            r.service.decider.choose = lambda *a: (_ for _ in ()).throw(RuntimeError(secret))
            assert (await r.chat("u")).status == 500
            assert r.loads() == [(0, 0, 0)] * 2
            text = r.service.metrics.text().decode()
            assert secret not in text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert any(record.getMessage() == "request" for record in caplog.records)
    said = caplog.text + "".join(str(getattr(r, "fields", "")) for r in caplog.records)
    assert secret not in said
    assert secret not in (tmp_path / "d").read_text()


class TestCommand:
    def test_it_serves_and_drains(self, tmp_path: Path) -> None:
        async def main() -> None:
            engine = await FakeEngine(chunk_s=0.1).start()
            file = tmp_path / "router.toml"
            file.write_text(
                f'[listen]\nport = 0\n[policy]\nname = "lmetric"\n'
                f'[log]\nrequests = true\ndecisions = "decisions.jsonl"\n'
                f'[[instances]]\nname = "a"\nurl = "{engine.url}"\n'
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                START,
                "route",
                "--config",
                str(file),
                stderr=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            lines = []
            while True:
                line = (await process.stderr.readline()).decode()
                assert line, lines
                lines.append(line)
                if line.startswith("listening on "):
                    url = line.split()[-1]
                    break
            async with aiohttp.ClientSession() as client:
                request = client.post(
                    url + "/v1/completions", json={"user": "u", "stream": True, "prompt": "x"}
                )
                async with request as response:
                    process.send_signal(signal.SIGTERM)
                    data = await response.read()
                assert data.endswith(b"data: [DONE]\n\n")
            out, err = await process.communicate()
            assert process.returncode == 0
            assert out == b""
            events = [json.loads(line) for line in err.decode().splitlines()]
            assert {event["event"] for event in events} >= {"draining", "request"}
            assert (tmp_path / "decisions.jsonl").read_text().count('"decision"') == 1
            await engine.stop()

        asyncio.run(main())

    def test_wrong_configurations_say_where(self, tmp_path: Path) -> None:
        file = tmp_path / "router.toml"
        for text, message in (
            ("x = 1", "x is not a known key"),
            ("[listen]\nport = 70000", "listen.port = 70000"),
            ('[policy]\nname = "best"', "router policy 'best' is not known"),
            ("[policy]\noverlaod = 2", "router parameter 'overlaod' is not known"),
            ("[policy]\noverload = -1", "overload is -1"),
            ("[[instances]]\nname = 'a'", "instances[0].url is missing"),
            ("[[instances]]\nname = 'a b'\nurl = 'http://h:1'", "instances[0].name = 'a b'"),
            ("[[instances]]\nname = 'a'\nurl = 'http://h:1/v1'", "without a path"),
            (
                "[[instances]]\nname = 'a'\nurl = 'http://h:1'\n"
                "[[instances]]\nname = 'a'\nurl = 'http://h:2'",
                "'a' stands twice",
            ),
            ("[admin]\ntoken = 'short-secret'", "admin.token: string should have at least 16"),
            ("[tenants]\nheader = 'x'", "go together"),
            ("[listen\n", ":1: no valid TOML"),
        ):
            file.write_text(text)
            with pytest.raises(SpecError) as caught:
                load_config(file)
            assert message in str(caught.value), text
            assert str(file) in str(caught.value)
            assert "short-secret" not in str(caught.value)
            result = CliRunner().invoke(command, ["--config", str(file), "--check"])
            assert isinstance(result.exception, SpecError)

    def test_options_go_before_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "router.toml"
        file.write_text("[listen]\nport = 1\n[policy]\nname = 'bailian'\nhit_weight = 0.5\n")
        arguments = ["--config", str(file), "--port", "2", "--instance", "http://h:1"]
        arguments += ["--instance", "b=http://h:2", "--check", "--json"]
        result = CliRunner().invoke(command, arguments)
        told = json.loads(result.output)
        assert told["listen"] == {"host": "127.0.0.1", "port": 2, "backlog": 2048}
        assert [one["name"] for one in told["instances"]] == ["instance-0", "b"]
        assert told["policy"]["parameters"] == {"hit_weight": 0.5}
        result = CliRunner().invoke(command, [*arguments, "--policy", "smetric"])
        assert json.loads(result.output)["policy"]["parameters"] == {}

    def test_without_the_extra_one_line_says_what_to_install(self) -> None:
        code = (
            "import sys; sys.modules['httptools'] = None\n"
            "from smetric_model.cli import main\n"
            "sys.argv = ['smetric-model', 'route', '--instance', 'http://h:1']\nmain()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "pip install 'smetric-model[live]'" in done.stderr

    def test_a_port_in_use_is_one_line(self) -> None:
        async def main() -> None:
            engine = await FakeEngine().start()
            done = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                START,
                "route",
                "--port",
                str(engine.port),
                "--instance",
                engine.url,
                stderr=asyncio.subprocess.PIPE,
            )
            _, err = await done.communicate()
            await engine.stop()
            assert done.returncode == 1
            last = err.decode().splitlines()[-1]
            assert last.startswith("smetric-model: listen: cannot listen on 127.0.0.1")
            assert "Traceback" not in err.decode()

        asyncio.run(main())

    def test_secrets_are_not_shown(self) -> None:
        config = RouterConfig(admin={"token": TOKEN})
        assert config.admin.token == TOKEN
        result = CliRunner().invoke(command, ["--check", "--json", "--instance", "http://h:1"])
        assert os.linesep not in TOKEN
        assert json.loads(result.output)["admin"]["token"] is None
