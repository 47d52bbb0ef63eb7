"""The least that aiohttp can do as a proxy, for comparison with the router's own connections.

Usage: ``router_aiohttp.py PORT ENGINE_URL...``.  Round robin, bytes through; no decision, no
timeouts, no retries, no metrics.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import aiohttp
from aiohttp import web


async def main(port: int, engines: list[str]) -> None:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, skip_auto_headers=["Accept"]
    )
    turn = itertools.cycle(engines)
    dropped = {"host", "content-length", "transfer-encoding", "connection"}

    async def forward(request: web.BaseRequest) -> web.StreamResponse:
        chunks = [chunk async for chunk in request.content.iter_any()]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in dropped}
        async with session.request(
            request.method, next(turn) + request.raw_path, data=b"".join(chunks), headers=headers
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in dropped}
            response = web.StreamResponse(status=answer.status, headers=kept)
            response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    server = web.Server(forward)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))
