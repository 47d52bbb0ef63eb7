"""Forwarding on real sockets: bytes, streams, ends, limits, faults."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from typing import Any

import pytest
import yarl
from router_rig import FakeEngine, Rig, rig, until

LOOPS = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):  # not on Windows
    LOOPS["uvloop"] = importlib.import_module("uvloop").new_event_loop
_loop = ["asyncio"]


@pytest.fixture(autouse=True, params=list(LOOPS))
def _each_loop(request: pytest.FixtureRequest) -> None:
    _loop[0] = request.param


def run(coroutine: Any) -> None:
    with asyncio.Runner(loop_factory=LOOPS[_loop[0]]) as runner:
        runner.run(coroutine)


async def raw(rig: Rig, data: bytes, until_close: bool = True, timeout: float = 5.0) -> bytes:
    port = int(rig.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(timeout):
            return await (reader.read() if until_close else reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.close()


class TestBytes:
    def test_a_body_arrives_as_it_was_sent(self) -> None:
        body = (
            b'{ "messages" : [{"content":"\\ud83d x","role":"user", "zzz": 1e400}],'
            b'"unknown_field":{"a":[1,2.50,3]}, "stream":false,\n"user":"u" }'
        )

        async def main() -> None:
            async with rig(FakeEngine(), FakeEngine()) as r:
                url = yarl.URL(r.url + "/v1/chat/completions?x=%2F&y", encoded=True)
                async with r.client.post(url, data=body, headers={"X-Own": "Ä"}) as response:
                    assert response.status == 200
                (seen,) = r.engines[0].requests + r.engines[1].requests
                assert seen.body == body
                assert seen.target == "/v1/chat/completions?x=%2F&y"
                assert seen.headers["x-own"] == "Ä".encode().decode("latin-1")

        run(main())

    @pytest.mark.parametrize(
        "path", ["/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/embeddings"]
    )
    def test_every_path_is_forwarded(self, path: str) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                answer = await r.chat("u", path=path)
                assert answer.whole
                assert r.engines[0].requests[0].target == path
                async with r.client.get(r.url + "/v1/models") as response:
                    assert response.status == 200

        run(main())

    def test_an_answer_arrives_as_it_was_sent_with_its_headers(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                answer = await r.chat("u")
                assert answer.json["id"] == "u"
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["x-smetric-instance"] == "e0"
                assert answer.headers["x-smetric-reason"] == "first_turn"
                assert answer.headers["x-smetric-load"] == "0"
                assert answer.headers["x-smetric-turn"] == "0"

        run(main())

    def test_hop_by_hop_headers_and_ours_are_not_forwarded(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                await raw(
                    r,
                    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close, x-secret\r\n"
                    b"x-secret: 1\r\nte: trailers\r\nx-smetric-instance: forged\r\n"
                    b"x-request-id: mine\r\nauthorization: Bearer k\r\n\r\n",
                )
                (seen,) = r.engines[0].requests
                assert not {"x-secret", "te", "connection", "x-smetric-instance"} & set(
                    seen.headers
                )
                assert seen.headers["x-request-id"] == "mine"
                assert seen.headers["authorization"] == "Bearer k"
                assert seen.headers["host"] == f"127.0.0.1:{r.engines[0].port}"

        run(main())

    def test_chunked_requests_http10_head_and_pipelines(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                body = b'{"user":"c"}'
                answer = await raw(
                    r,
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
                    b"connection: close\r\n\r\n3\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
                    % (body[:3], len(body) - 3, body[3:]),
                )
                assert b'"id": "c"' in answer
                assert r.engines[0].requests[0].body == body
                answer = await raw(
                    r,
                    b"POST /v1/completions HTTP/1.0\r\ncontent-length: 28\r\n\r\n"
                    b'{"user": "d","stream": true}',
                )
                head, payload = answer.split(b"\r\n\r\n", 1)
                assert b"transfer-encoding" not in head
                assert payload.endswith(b"data: [DONE]\n\n")  # no chunk framing
                one = (
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
                    b'content-length: 13\r\n\r\n{"user":"%d"}'
                )
                last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
                answers = await raw(r, b"".join(one % k for k in range(10, 15)) + last)
                ids = [answers.index(b'"id": "%d"' % k) for k in range(10, 15)]
                assert ids == sorted(ids)
                assert answers.index(b'"hits"') > ids[-1]
                head = await raw(
                    r, b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
                )
                assert head.startswith(b"HTTP/1.1 200")
                assert head.endswith(b"\r\n\r\n")

        run(main())

    def test_thousands_of_pipelined_requests_do_not_recurse(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                one = b"GET /health/live HTTP/1.1\r\n\r\n"
                last = b"GET /health/live HTTP/1.1\r\nconnection: close\r\n\r\n"
                answers = await raw(r, one * 4000 + last)
                assert answers.count(b"HTTP/1.1 200 OK") == 4001

        run(main())

    def test_expect_continue_is_answered(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", int(r.url.rsplit(":", 1)[1])
                )
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                    b"content-length: 12\r\n\r\n"
                )
                assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
                writer.write(b'{"user":"u"}')
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                writer.close()

        run(main())


class TestStreams:
    def test_pieces_arrive_while_the_engine_still_writes(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(chunk_s=0.1)) as r:
                async with r.client.post(
                    r.url + "/v1/chat/completions", json={"user": "u", "stream": True}
                ) as response:
                    times = [time.perf_counter() async for _ in response.content.iter_any()]
                assert times[-1] - times[0] > 0.3
                assert len(times) >= 5

        run(main())

    def test_a_slow_client_stops_the_engine_not_the_router(self) -> None:
        async def main() -> None:
            engine = FakeEngine(chunks=400, piece=b" " * 100_000)
            async with rig(engine) as r:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", int(r.url.rsplit(":", 1)[1]), limit=2**16
                )
                body = b'{"user":"u","stream":true}'
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n%s" % (len(body), body)
                )
                await asyncio.sleep(0.5)  # nobody reads
                (connection,) = r.service.server.connections
                assert connection.is_slow
                assert connection.transport.get_write_buffer_size() < 2_000_000  # of 40 MB
                assert engine.in_flight == 1
                assert r.loads()[0][0] == 1
                data = await reader.read()
                assert data.count(b'"index"') == 400
                assert data.endswith(b"0\r\n\r\n")
                await r.settle()
                writer.close()

        run(main())

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_client_that_goes_ends_the_request_at_the_engine(self, stream: bool) -> None:
        async def main() -> None:
            async with rig(FakeEngine(lambda seen: "hang" if not stream else "stall")) as r:
                task = asyncio.create_task(r.chat("u", stream=stream))
                await until(lambda: r.loads()[0][0] == 1 and r.engines[0].in_flight)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await r.settle()
                async with asyncio.timeout(2):
                    while r.engines[0].in_flight:
                        await asyncio.sleep(0.01)
                assert r.engines[0].requests[0].ended == "client gone"
                assert r.loads() == [(0, 0, 0)]
                assert r.metric("requests_total", instance="e0", ended="client_gone") == 1

        run(main())


class TestRetry:
    @pytest.mark.parametrize(
        "fault", ["close", "head", "garbage", "status 503", "status 429", "status 500"]
    )
    @pytest.mark.parametrize("stream", [True, False])
    def test_before_the_first_byte_another_instance_is_tried(
        self, fault: str, stream: bool
    ) -> None:
        async def main() -> None:
            bad, good = FakeEngine(lambda seen: fault), FakeEngine()
            async with rig(bad, good) as r:
                answer = await r.chat("u", stream=stream)
                assert answer.whole
                assert answer.instance == "e1"
                assert answer.headers["x-smetric-attempts"] == "2"
                assert len(bad.requests) == 1
                assert len(good.requests) == 1
                assert r.loads() == [(0, 0, 0)] * 2

        run(main())

    @pytest.mark.parametrize("stream", [True, False])
    def test_after_the_first_byte_never(self, stream: bool) -> None:
        async def main() -> None:
            bad, good = FakeEngine(lambda seen: "die"), FakeEngine()
            async with rig(bad, good) as r:
                answer = await r.chat("u", stream=stream)
                assert not answer.whole
                assert answer.error  # the client knows: the end is missing
                assert good.requests == []
                if stream:
                    assert b"[DONE]" not in answer.body
                    last = json.loads(answer.body.rsplit(b"data: ", 1)[1])
                    assert last["error"]["type"] == "engine_error"
                assert r.loads() == [(0, 0, 0)] * 2

        run(main())

    def test_instances_are_not_tried_twice_and_no_more_than_allowed(self) -> None:
        async def main() -> None:
            engines = [FakeEngine(lambda seen: "close") for _ in range(5)]
            async with rig(*engines, config={"retry": {"attempts": 3}}) as r:
                answer = await r.chat("u")
                assert answer.status == 502
                assert "3 attempts" in answer.json["error"]["message"]
                assert sorted(len(engine.requests) for engine in engines) == [0, 0, 1, 1, 1]
                assert r.loads() == [(0, 0, 0)] * 5

        run(main())

    def test_the_last_answer_of_an_engine_goes_to_the_client(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(lambda seen: "status 503")) as r:
                answer = await r.chat("u")
                assert answer.status == 503
                assert answer.json == {"error": "engine says no"}

        run(main())

    def test_a_clients_own_error_is_not_retried(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(lambda seen: "status 400"), FakeEngine()) as r:
                answer = await r.chat("u")
                assert answer.status == 400
                assert r.engines[1].requests == []

        run(main())

    def test_a_connection_that_the_engine_closed_while_idle_is_no_failure(self) -> None:
        async def main() -> None:
            engine = FakeEngine()
            async with rig(engine) as r:
                assert (await r.chat("a")).whole
                (instance,) = r.service.fleet
                assert instance.pool.idle == 1
                # the engine reads the next request, and closes instead of answering
                closes = iter(["close", "ok"])
                engine.behave = lambda seen: next(closes)
                answer = await r.chat("b")
                assert answer.whole
                assert answer.headers["x-smetric-attempts"] == "1"

        run(main())


class TestTimeouts:
    def test_an_engine_that_hangs(self) -> None:
        config = {"timeouts": {"first_byte_s": 0.3}}

        async def main() -> None:
            async with rig(FakeEngine(lambda seen: "hang"), FakeEngine(), config=config) as r:
                answer = await r.chat("u")
                assert answer.whole
                assert answer.instance == "e1"
            async with rig(FakeEngine(lambda seen: "hang"), config=config) as r:
                answer = await r.chat("u", stream=True)
                assert answer.status == 504
                assert answer.json["error"]["code"] == "timeout_first_byte"
                await r.settle()
                assert r.loads() == [(0, 0, 0)]
                async with asyncio.timeout(2):
                    while r.engines[0].requests[0].ended != "client gone":
                        await asyncio.sleep(0.01)

        run(main())

    def test_the_whole_request(self) -> None:
        config = {"timeouts": {"total_s": 0.4}}

        async def main() -> None:
            async with rig(
                FakeEngine(lambda seen: "hang"), FakeEngine(lambda seen: "hang"), config=config
            ) as r:
                answer = await r.chat("u")
                assert answer.status == 504
                assert answer.json["error"]["code"] == "timeout_total"
                assert r.loads() == [(0, 0, 0)] * 2

        run(main())

    def test_a_client_that_does_not_send(self) -> None:
        config = {"timeouts": {"request_s": 0.2, "keep_alive_s": 0.2}}

        async def main() -> None:
            async with rig(FakeEngine(), config=config) as r:
                answer = await raw(
                    r, b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"
                )
                assert b"408 Request Timeout" in answer
                assert await raw(r, b"GET / HT") != b""
                assert (await raw(r, b"GET /health/live HTTP/1.1\r\n\r\n")).count(b"HTTP/1.1") == 1

        run(main())


class TestLimits:
    def test_header_and_body(self) -> None:
        config = {"limits": {"header_bytes": 2000, "body_bytes": 1000}}

        async def main() -> None:
            async with rig(FakeEngine(), config=config) as r:
                for data, status in (
                    (b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 3000), b"431"),
                    (b"GET / HTTP/1.1\r\nx: %s\r\n\r\n" % (b"x" * 3000), b"431"),
                    (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000, b"431"),
                    (b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n", b"413"),
                    (
                        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n%s\r\n"
                        % (b"x" * 1001),
                        b"413",
                    ),
                    (b"nonsense\r\n\r\n", b"400"),
                    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", b"400"),
                    (
                        b"POST / HTTP/1.1\r\ncontent-length: 1\r\n"
                        b"transfer-encoding: chunked\r\n\r\nx",
                        b"400",
                    ),
                    (
                        b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                        b"501",
                    ),
                    (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"400"),
                ):
                    answer = await raw(r, data)
                    assert answer.startswith(b"HTTP/1.1 " + status), (data[:60], answer[:60])
                    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                body = b'{"user":"' + b"x" * 989 + b'"}'
                async with r.client.post(r.url + "/v1/completions", data=body) as response:
                    assert response.status == 200  # the limit itself is allowed
                assert len(r.engines[0].requests) == 1

        run(main())

    def test_paths_for_the_operator_are_refused_however_they_are_written(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                for path in (
                    "/sleep",
                    "/sleep/",
                    "//sleep",
                    "/%73leep",
                    "/x/../sleep",
                    "/./sleep",
                    "/v1/load_lora_adapter",
                    "http://elsewhere/sleep?level=1",
                ):
                    answer = await raw(
                        r, b"POST %s HTTP/1.1\r\nconnection: close\r\n\r\n" % path.encode()
                    )
                    assert answer.startswith(b"HTTP/1.1 403"), path
                assert r.engines[0].requests == []

        run(main())


class TestLife:
    def test_an_engine_that_is_down_gets_nothing_and_comes_back(self) -> None:
        async def main() -> None:
            dead, live = FakeEngine(), FakeEngine()
            async with rig(dead, live) as r:
                await dead.stop()
                answers = await asyncio.gather(*(r.chat(f"u{k}") for k in range(20)))
                assert all(answer.whole for answer in answers)
                assert not next(iter(r.service.fleet)).up
                assert (await r.chat("v")).headers["x-smetric-attempts"] == "1"
                await dead.start()
                async with asyncio.timeout(3):
                    while not next(iter(r.service.fleet)).up:
                        await asyncio.sleep(0.02)
                used = {(await r.chat(f"w{k}")).instance for k in range(4)}
                assert used == {"e0", "e1"}

        run(main())

    def test_a_failing_probe_takes_an_instance_out_but_leaves_its_load(self) -> None:
        async def main() -> None:
            engine = FakeEngine(lambda seen: "slow")
            async with rig(engine, FakeEngine()) as r:
                instance = r.service.fleet["e0"]
                task = asyncio.create_task(r.chat("u"))
                await asyncio.sleep(0.05)
                engine.healthy = False
                async with asyncio.timeout(3):
                    while instance.up and not task.done():
                        await asyncio.sleep(0.01)
                assert instance.load.requests in (0, 1)
                assert (await task).whole
                async with asyncio.timeout(3):
                    while instance.up:
                        await asyncio.sleep(0.01)
                assert "503" in instance.down_reason
                assert r.loads() == [(0, 0, 0)] * 2

        run(main())

    def test_no_instance_at_all(self) -> None:
        async def main() -> None:
            engine = FakeEngine()
            async with rig(engine) as r:
                await engine.stop()
                assert (await r.chat("u")).status == 502
                answer = await r.chat("u")
                assert answer.status == 503
                assert answer.json["error"]["code"] == "no_instance"
                async with r.client.get(r.url + "/health") as response:
                    assert response.status == 503
                    assert (await response.json())["instances"] == {"e0": "down"}
                async with r.client.get(r.url + "/health/live") as response:
                    assert response.status == 200
                await engine.start()

        run(main())

    def test_a_graceful_stop_lets_requests_end(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(chunk_s=0.05)) as r:
                idle = await r.chat("warm")
                assert idle.whole
                tasks = [asyncio.create_task(r.chat(f"u{k}", stream=True)) for k in range(5)]
                await asyncio.sleep(0.1)
                drained = asyncio.create_task(r.service.drain())
                await asyncio.sleep(0.02)
                with pytest.raises(OSError, match=r"Connect"):
                    await asyncio.open_connection("127.0.0.1", int(r.url.rsplit(":", 1)[1]))
                assert all(answer.whole for answer in await asyncio.gather(*tasks))
                assert await drained
                assert r.loads() == [(0, 0, 0)]

        run(main())

    def test_a_stop_does_not_wait_for_ever(self) -> None:
        async def main() -> None:
            config = {"timeouts": {"drain_s": 0.2}}
            async with rig(FakeEngine(lambda seen: "hang"), config=config) as r:
                task = asyncio.create_task(r.chat("u"))
                await asyncio.sleep(0.1)
                assert not await r.service.drain()
                await r.service.stop()
                assert (await task).error
                assert r.loads() == [(0, 0, 0)]

        run(main())

    def test_it_listens_on_loopback_unless_told(self) -> None:
        from smetric_model.live.router.config import RouterConfig

        assert RouterConfig().listen.host == "127.0.0.1"
