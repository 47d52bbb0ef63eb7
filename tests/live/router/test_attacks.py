"""Bytes that no well-meaning client or engine sends, over real sockets."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from router_rig import FakeEngine, Rig, rig
from test_http import received, served

from smetric_model.cli.route import command
from smetric_model.errors import SpecError
from smetric_model.live.router.target import clean_path, origin_form

CHAT = b'{"user":"u","messages":[{"role":"user","content":"hi"}]}'
_SHORT = aiohttp.ClientTimeout(total=3)
TOKEN = "a-token-of-sixteen"


async def raw(r: Rig, *parts: bytes, pause_s: float = 0.02, wait_s: float = 0.3) -> bytes:
    """Send bytes in parts; return all that comes until the end, or until nothing comes."""
    reader, writer = await asyncio.open_connection(r.service.config.listen.host, port(r))
    got = b""
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        while True:
            piece = await asyncio.wait_for(reader.read(1 << 20), wait_s)
            if not piece:
                return got
            got += piece
    except (TimeoutError, ConnectionError):
        return got
    finally:
        writer.transport.abort()


def port(r: Rig) -> int:
    return int(r.url.rsplit(":", 1)[1])


def post(*headers: bytes, body: bytes = CHAT, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"\r\n".join((b"POST %s HTTP/1.1" % path, b"Host: h", *headers, b"", body))


LENGTH = b"Content-Length: %d" % len(CHAT)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT), CHAT)
SMUGGLED = {
    "length and chunks": post(LENGTH, b"Transfer-Encoding: chunked", body=CHUNKS),
    "chunks and length": post(b"Transfer-Encoding: chunked", LENGTH, body=CHUNKS),
    "two lengths": post(LENGTH, b"Content-Length: 3"),
    "the same length twice": post(LENGTH, LENGTH),
    "lengths in a list": post(b"Content-Length: %d, %d" % (len(CHAT), len(CHAT))),
    "length with a sign": post(b"Content-Length: +%d" % len(CHAT)),
    "length below zero": post(b"Content-Length: -1"),
    "length in hex": post(b"Content-Length: 0x10"),
    "length beyond 64 bits": post(b"Content-Length: 1" + b"0" * 40),
    "length of nothing": post(b"Content-Length:"),
    "not chunked last": post(b"Transfer-Encoding: chunked, identity", body=CHUNKS),
    "compressed": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "nearly chunked": post(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "chunked with a tab": post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "chunked twice": post(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKS
    ),
    "chunked and other": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=CHUNKS),
    "folded chunked": post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS),
    "folded header": post(LENGTH, b"X-A: b\r\n c"),
    "space before the colon": post(b"Content-Length : %d" % len(CHAT)),
    "NUL in a value": post(LENGTH, b"X-A: b\x00c"),
    "CR in a value": post(LENGTH, b"X-A: b\rX-B: c"),
    "no colon": post(LENGTH, b"X-A"),
    "no name": post(LENGTH, b": x"),
    "chunk size with a sign": post(b"Transfer-Encoding: chunked", body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size in 0x": post(b"Transfer-Encoding: chunked", body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk longer than told": post(b"Transfer-Encoding: chunked", body=b"2\r\nhello\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": post(
        b"Transfer-Encoding: chunked", body=b"1" + b"0" * 30 + b"\r\nx\r\n"
    ),
    "version 9": b"POST / HTTP/9.9\r\nHost: h\r\n\r\n",
    "version 0.9": b"GET /\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200,
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
    "unknown method": b"BREW /pot HTTP/1.1\r\nHost: h\r\n\r\n",
}


class TestSmuggling:
    def test_what_two_parsers_could_read_differently_is_refused(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                for what, data in SMUGGLED.items():
                    got = await raw(r, data + b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
                    assert got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505")), (
                        what,
                        got,
                    )
                    assert got.count(b"HTTP/1.1 ") == 1, (what, got)
                    assert b"connection: close" in got, what
                    assert json.loads(got.split(b"\r\n\r\n", 1)[1])["error"]["code"], what
                    assert r.engines[0].requests == [], what
                assert r.loads() == [(0, 0, 0)]
                assert (await r.chat()).whole

        asyncio.run(main())

    def test_refused_paths_cannot_be_written_otherwise(self) -> None:
        targets = [
            b"/sleep",
            b"/sleep#x",
            b"/sleep/?a#b",
            b"http://h/sleep",
            b"http://h?p=/sleep",
            b"http://h#/sleep",
            b"HTTP://h//sleep",
            b"//sleep",
            b"/%73leep",
            b"/v1/../sleep",
            b"/v1/%2e%2e/sleep",
            b"/./sleep",
            b"/sleep/x",
            b"/router/status#x",
        ]

        async def main() -> None:
            async with rig(FakeEngine()) as r:
                for target in targets:
                    await raw(r, b"POST %s HTTP/1.1\r\nHost: h\r\n\r\n" % target, wait_s=0.1)
                told = [seen.target for seen in r.engines[0].requests]
                assert told == ["/?p=/sleep"], told  # which they are

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("target", "path", "forwarded"),
        [
            (b"/a%20b/../c?x=/y#z", b"/c", b"/a%20b/../c?x=/y"),
            (b"https://h:1", b"/", b"/"),
            (b"https://h:1/a", b"/a", b"/a"),
            (b"*", b"*", b"*"),
            (b"/a?u=http://x/y", b"/a", b"/a?u=http://x/y"),
        ],
    )
    def test_targets(self, target: bytes, path: bytes, forwarded: bytes) -> None:
        assert clean_path(target) == path
        assert origin_form(target) == forwarded

    def test_tenants_cannot_leave_their_salt_behind(self) -> None:
        config = {"tenants": {"header": "authorization", "secret": "0123456789abcdef"}}

        async def main() -> None:
            async with rig(FakeEngine(), config=config) as r:
                key = b"Authorization: a"
                for path in (
                    b"/v1/chat/completions",
                    b"/v1/chat/complet%69ons",
                    b"/v1/chat/completions#x",
                    b"http://h/v1/chat/completions",
                    b"/inference/v1/generate",
                    b"/v1/embeddings",
                ):
                    await raw(r, post(LENGTH, key, path=path), wait_s=0.15)
                for seen in r.engines[0].requests:
                    assert "cache_salt" in seen.json, seen.target
                assert len(r.engines[0].requests) == 4
                async with r.client.post(
                    r.url + "/tokenize", json={"prompt": "a"}, headers={"authorization": "a"}
                ) as answer:
                    assert answer.status == 200

        asyncio.run(main())


class TestClients:
    def test_trailers_and_extensions_without_end_are_cut_off(self) -> None:
        head = post(b"Transfer-Encoding: chunked", body=b"")
        for tail in (b"0\r\nX-A: ", b"0\r\n" + b"X-A: b\r\n" * 100, b"5;a="):
            _, written, _ = served(head + tail + b"x" * 20_000, list(range(0, 20_000, 500)))
            assert b"HTTP/1.1 431" in written, tail[:20]

    def test_a_body_in_chunks_of_a_byte_is_one_body(self) -> None:
        head = post(b"Transfer-Encoding: chunked", body=b"")
        data = head + b"".join(b"1\r\n%c\r\n" % byte for byte in CHAT * 8) + b"0\r\n\r\n"
        seen, _, _ = served(data, [])
        assert seen[0].body == CHAT * 8
        assert type(seen[0].body) is bytes

    def test_slow_senders_hold_nothing_and_end(self) -> None:
        config = {"timeouts": {"request_s": 0.4, "keep_alive_s": 0.4}}

        async def main() -> None:
            async with rig(FakeEngine(), config=config) as r:
                slow = [
                    raw(r, *[b"G"] + [b"x"] * 60, pause_s=0.05, wait_s=2),
                    raw(r, post(LENGTH, body=b""), *[b"{"] * 60, pause_s=0.05, wait_s=2),
                    raw(r, b"GET / HTTP/1.1\r\n", *[b"A: b\r\n"] * 60, pause_s=0.05, wait_s=2),
                ]
                started = asyncio.get_running_loop().time()
                tasks = [asyncio.create_task(one) for one in slow]
                assert (await r.chat()).whole
                await asyncio.sleep(1.5)
                assert not r.service.server.connections - {
                    c for c in r.service.server.connections if c.current is None
                }
                assert len(r.service.server.connections) <= 1  # the well-meaning one
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                assert asyncio.get_running_loop().time() - started < 4

        asyncio.run(main())

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), FakeEngine()) as r:
                many = b"".join(
                    post(b"Content-Length: %d" % len(body), body=body)
                    for body in (CHAT.replace(b'"u"', b'"u%d"' % k, 1) for k in range(20))
                )
                got = await raw(r, many)
                answers = [
                    json.loads(p.split(b"\r\n\r\n", 1)[1]) for p in got.split(b"HTTP/1.1 ")[1:]
                ]
                assert [one["id"] for one in answers] == [f"u{k}" for k in range(20)]
                await r.settle()
                assert r.loads() == [(0, 0, 0)] * 2

        asyncio.run(main())

    def test_an_upgrade_is_answered_without(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                for more in (b"Upgrade: h2c", b"Upgrade: websocket"):
                    got = await raw(r, post(LENGTH, b"Connection: Upgrade", more))
                    assert got.startswith(b"HTTP/1.1 200"), got
                    got = await raw(
                        r,
                        b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
                        + more
                        + b"\r\n\r\n",
                    )
                    assert got.startswith(b"HTTP/1.1 200"), got
                assert all("upgrade" not in seen.headers for seen in r.engines[0].requests)

        asyncio.run(main())

    def test_expect_and_http_1_0(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                got = await raw(r, post(LENGTH, b"Expect: 100-continue", body=b""), CHAT)
                assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
                old = post(LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
                got = await raw(r, old)
                assert got.startswith(b"HTTP/1.1 200")
                assert b"connection: close" in got
                stream = b'{"user":"u","stream":true}'
                old = post(b"Content-Length: %d" % len(stream), body=stream)
                got = await raw(r, old.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
                assert b"chunked" not in got
                assert got.endswith(b"data: [DONE]\n\n")

        asyncio.run(main())


class Raw:
    """An engine that answers with given bytes as soon as a head has come."""

    def __init__(self, answer: bytes, *, close: bool = False, read_body: bool = True):
        self.answer, self.close, self.read_body = answer, close, read_body
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b" /health" in head or b" /metrics" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                if self.read_body:
                    lengths = [x for x in head.lower().split(b"\r\n") if b"content-length" in x]
                    await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
                writer.write(self.answer)
                await writer.drain()
                if self.close:
                    return
                if not self.read_body:
                    await asyncio.sleep(3600)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def against(engine: Raw, check: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        number = server.sockets[0].getsockname()[1]
        one = {"name": "e0", "url": f"http://127.0.0.1:{number}"}
        async with rig(config={"instances": [one], "timeouts": {"first_byte_s": 1.0}}) as r:
            await check(r)
            await r.settle()
            assert r.loads() == [(0, 0, 0)]
        server.close()

    asyncio.run(main())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class TestEngines:
    def test_an_answer_before_the_upload_has_ended(self) -> None:
        """It is passed on, and the connection is not used again: the body still stands in it."""
        engine = Raw(b"HTTP/1.1 413 X\r\ncontent-length: 3\r\n\r\nbig", read_body=False)

        async def check(r: Rig) -> None:
            for _ in range(2):
                async with r.client.post(r.url + "/x", data=io.BytesIO(b"x" * 9_000_000)) as answer:
                    assert (answer.status, await answer.read()) == (413, b"big")
            assert next(iter(r.service.fleet)).pool.idle == 0

        against(engine, check)

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nrubbish",
            b"HTTP/1.1 101 Switching\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nrubbish",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000,
            b"HTTP/1.1 20000 OK\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
        ],
    )
    def test_what_is_no_answer_is_a_502(self, answer: bytes) -> None:
        async def check(r: Rig) -> None:
            got = await raw(r, post(LENGTH, b"Connection: close"), wait_s=3)
            assert got.startswith(b"HTTP/1.1 502"), got[:200]
            assert got.count(b"HTTP/1.1 ") == 1

        against(Raw(answer, close=True), check)

    def test_a_second_answer_is_not_mixed_with_the_first(self) -> None:
        second = b"HTTP/1.1 500 Bad\r\ncontent-length: 3\r\n\r\nbad"
        for more in (second, second[:12], b"HTTP/1.1 100 Continue\r\n\r\n"):
            sink, pipe, idle = received(OK + more, [])
            assert (sink.status, bytes(sink.body), sink.ends) == (200, b"ok", ["end"])
            assert pipe.closed
            assert idle == 0

    def test_early_hints_and_trailers(self) -> None:
        answer = (
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n"
            b"transfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n2\r\nok\r\n0\r\nx-t: 1\r\n\r\n"
        )

        async def check(r: Rig) -> None:
            got = await raw(r, post(LENGTH))
            assert got.startswith(b"HTTP/1.1 200")
            assert got.endswith(b"2\r\nok\r\n0\r\n\r\n")
            assert b"link" not in got

        against(Raw(answer), check)

    def test_kept_connections_that_an_engine_closes_cost_nothing(self) -> None:
        """The engine closes each connection right after its answer, and says nothing of it."""
        engine = Raw(OK, close=True)

        async def check(r: Rig) -> None:
            async def one() -> None:
                async with r.client.post(r.url + "/x", data=b"{}") as answer:
                    assert (answer.status, await answer.read()) == (200, b"ok")

            for _ in range(30):
                await asyncio.gather(*(one() for _ in range(4)))
            assert r.metric("attempt_failures_total", instance="e0", cause="unreachable") == 0

        against(engine, check)

    def test_events_of_megabytes_and_any_text_pass(self) -> None:
        async def main() -> None:
            engine = FakeEngine(lambda seen: "huge")
            async with rig(engine) as r:
                answer = await r.chat(
                    "\u00fc\U0001f600\ud83d".encode("utf-8", "replace").decode(), stream=True
                )
                assert answer.whole
                assert len(answer.body) > 3_000_000
                body = rb'{"user":"u","messages":[{"role":"user","content":"\ud83d \u0000"}]}'
                got = await raw(r, post(b"Content-Length: %d" % len(body), body=body), wait_s=2)
                assert got.startswith(b"HTTP/1.1 200")
                assert r.engines[0].requests[-1].body == body
                body = b'{"user":"u","messages":[{"role":"user","content":"\xff\xfe"}]}'
                got = await raw(r, post(b"Content-Length: %d" % len(body), body=body))
                assert r.engines[0].requests[-1].body == body
                body = b"[" * 100_000
                got = await raw(r, post(b"Content-Length: %d" % len(body), body=body))
                assert r.engines[0].requests[-1].body == body

        asyncio.run(main())


class TestOperators:
    def test_odd_bodies_for_the_admin_are_400(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine(), config={"admin": {"token": TOKEN}}) as r:
                headers = {"authorization": f"Bearer {TOKEN}"}
                for body in (
                    '{"self": 1}',
                    '{"name": "x", "url": "http://h:0"}',
                    '{"name": "x", "url": "http://%s:1"}' % ("a" * 70),
                    '{"name": "x", "url": "http://[::1"}',
                    '{"name": "x", "url": "http://h:1", "kv_events": "tcp://h"}',
                    '{"name": "x", "url": "http://h:1", "kv_events": "tcp://*:5557"}',
                    '{"name": 1, "url": []}',
                    "",
                    "null",
                    "{" * 5000,
                ):
                    async with r.client.post(
                        r.url + "/router/instances", data=body, headers=headers, timeout=_SHORT
                    ) as answer:
                        assert answer.status == 400, body
                        assert (await answer.json())["error"]["code"] == "bad_instance"
                for wrong in ("", "Bearer", f"bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \u00fc"):
                    got = await raw(
                        r,
                        b"GET /router/status HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                        b"Authorization: %s\r\n\r\n" % wrong.encode(),
                    )
                    assert got.startswith(b"HTTP/1.1 401"), wrong

        asyncio.run(main())

    def test_a_defect_leaves_no_client_waiting(self) -> None:
        async def main() -> None:
            async with rig(FakeEngine()) as r:
                r.service.metrics.text = lambda: 1 / 0  # type: ignore[method-assign]
                got = await raw(r, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
                assert got.startswith(b"HTTP/1.1 500"), got
                assert (await r.chat()).whole

        asyncio.run(main())

    def test_instances_come_and_go_under_load(self) -> None:
        async def main() -> None:
            extra = [await FakeEngine(chunk_s=0.002).start() for _ in range(3)]
            config = {"admin": {"token": TOKEN}}
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with rig(FakeEngine(chunk_s=0.002), config=config) as r:
                stop = asyncio.Event()
                answers = []

                async def client(number: int) -> None:
                    while not stop.is_set():
                        answers.append(await r.chat(f"c{number}", stream=bool(number % 2)))

                tasks = [asyncio.create_task(client(k)) for k in range(16)]
                for turn in range(12):
                    one = extra[turn % 3]
                    body = {"name": f"n{turn % 3}", "url": one.url}
                    url = r.url + "/router/instances"
                    async with r.client.post(url, json=body, headers=headers) as told:
                        assert told.status == 201
                    await asyncio.sleep(0.05)
                    url += f"/n{turn % 3}"
                    async with r.client.delete(url, headers=headers) as told:
                        assert told.status == 200
                stop.set()
                await asyncio.gather(*tasks)
                await r.settle()
                assert all(answer.whole for answer in answers)
                assert {answer.instance for answer in answers} >= {"e0", "n0", "n1", "n2"}
                assert r.loads() == [(0, 0, 0)]
            for one in extra:
                await one.stop()

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("self = 1", "self"),
            ("listen = 5", "listen = 5"),
            ("policy = 'smetric'", "policy = 'smetric'"),
            ("instances = 3", "instances = 3"),
            ("[instances]\nname = 'a'\nurl = 'http://h:1'", "instances = {"),
            ("[[instances]]\nname = 'a'\nurl = 'http://h:0'", "1 to 65535"),
            ("[[instances]]\nname = 'a'\nurl = 'http://h:99999'", "1 to 65535"),
            ("[[instances]]\nname = 'a'\nurl = 'http://[::1'", "instances[0].url"),
            (
                "[[instances]]\nname = 'a'\nurl = 'http://h:1'\nkv_events = 'tcp://*:5557'",
                "instances[0].kv_events",
            ),
            ("[listen]\nbacklog = 99999999999", "listen.backlog"),
            ("[listen]\nport = '80'", "listen.port = '80'"),
            ("[timeouts]\nidle_s = nan", "timeouts.idle_s = nan"),
            ("[retry]\non_status = [200]", "retry.on_status[0] = 200"),
            ("[policy]\nname = 5", "policy.name = 5"),
            ("[policy]\noverload = 'x'", "overload"),
            ("[policy]\nself = 1", "self"),
            ("[hits]\nsource = 'guess'", "hits.source = 'guess'"),
            ("[log]\nlevel = 'loud'", "log.level = 'loud'"),
            ("a = 1\na = 2", "no valid TOML"),
            ("port = 0x", "no valid TOML"),
        ],
    )
    def test_wrong_files_are_one_clear_line(self, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "router.toml"
        file.write_text(text)
        options = ["--config", str(file), "--check"]
        for more in ([], ["--instance", "http://h:1", "--host", "::1", "--decisions", "x"]):
            result = CliRunner().invoke(command, options + more)
            assert isinstance(result.exception, SpecError), (result.exception, text)
            lines = str(result.exception).splitlines()
            assert any(message in line for line in lines), lines
            assert all(str(file) in line for line in lines), lines
