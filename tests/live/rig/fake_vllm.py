"""A stand-in for ``vllm serve`` on real sockets: prefix cache, events, counters, times of a model.

Run as a program with vLLM's own options.  A prompt takes a fixed time and one per new token, a
decode step a fixed time; blocks are kept least recently used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections import OrderedDict

import msgspec
import zmq

PREFILL_S, TOKEN_S, STEP_S = 0.002, 4e-6, 0.002


class Engine:
    def __init__(self, blocks: int, block: int, events: int):
        self.blocks, self.block = blocks, block
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.queries = self.hits = self.prompt = self.generated = 0
        self.publisher = zmq.Context.instance().socket(zmq.PUB)
        self.publisher.bind(f"tcp://127.0.0.1:{events}")
        self.sequence = 0
        self.lock = asyncio.Lock()

    def publish(self, events: list[object]) -> None:
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self.publisher.send_multipart([b"kv", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    def keys(self, prompt: list[int]) -> list[int]:
        found, parent = [], 0
        for start in range(0, len(prompt) // self.block * self.block, self.block):
            parent = hash((parent, *prompt[start : start + self.block])) & (2**62 - 1)
            found.append(parent)
        return found

    def take(self, prompt: list[int]) -> int:
        """Tokens cached; the prompt's blocks are cached afterwards."""
        keys = self.keys(prompt)
        known = 0
        while known < len(keys) and keys[known] in self.cache:
            known += 1
        hit = min(known * self.block, len(prompt) - 1) // self.block * self.block
        for number, key in enumerate(keys):
            if key not in self.cache:
                parent = keys[number - 1] if number else None
                tokens = prompt[number * self.block : (number + 1) * self.block]
                self.publish([["BlockStored", [key], parent, tokens, self.block, None, "GPU"]])
            self.cache[key] = None
            self.cache.move_to_end(key)
        while len(self.cache) > self.blocks - 1:
            gone, _ = self.cache.popitem(last=False)
            self.publish([["BlockRemoved", [gone], "GPU"]])
        self.queries += len(prompt)
        self.hits += hit
        self.prompt += len(prompt)
        return hit

    def metrics(self) -> str:
        return (
            f"vllm:prefix_cache_queries_total{{e='0'}} {self.queries}\n"
            f"vllm:prefix_cache_hits_total{{e='0'}} {self.hits}\n"
            f"vllm:prompt_tokens_total{{e='0'}} {self.prompt}\n"
            f"vllm:generation_tokens_total{{e='0'}} {self.generated}\n"
            f'vllm:cache_config_info{{num_gpu_blocks="{self.blocks}"}} 1.0\n'
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ")[1]
                length = 0
                for line in head.split("\r\n"):
                    if line.lower().startswith("content-length:"):
                        length = int(line.split(":")[1])
                body = await reader.readexactly(length)
                if path == "/v1/completions":
                    await self.complete(json.loads(body), writer)
                else:
                    text = self.metrics().encode() if path == "/metrics" else b"{}"
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
                    )
                    await writer.drain()
        writer.close()

    async def complete(self, asked: dict[str, object], writer: asyncio.StreamWriter) -> None:
        prompt, count = asked["prompt"], asked["max_tokens"]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        async with self.lock:
            hit = self.take(prompt)
            await asyncio.sleep(PREFILL_S + TOKEN_S * (len(prompt) - hit))
        for number in range(count):
            if number:
                await asyncio.sleep(STEP_S)
            token = 16 + (sum(prompt[-8:]) + number) % 4000
            self.generated += 1
            self.send(writer, {"choices": [{"index": 0, "text": "w", "token_ids": [token]}]})
            await writer.drain()
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": hit},
        }
        self.send(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()

    def send(self, writer: asyncio.StreamWriter, data: object) -> None:
        event = b"data: " + json.dumps(data).encode() + b"\n\n"
        writer.write(b"%x\r\n" % len(event) + event + b"\r\n")


def end_with(process: int) -> None:
    """End this process soon after another one: a test run that is killed ends nothing itself."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while True:
                os.kill(process, 0)
                time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--num-gpu-blocks-override", type=int)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--kv-events-config", type=json.loads)
    parser.add_argument("--fail", default="")
    parser.add_argument("--end-with", type=int)
    options, _ = parser.parse_known_args()
    end_with(options.end_with)
    if options.fail == "oom":
        print("RuntimeError: out of memory: tried to allocate 12 GiB", flush=True)
        sys.exit(1)
    if options.fail == "hang":
        await asyncio.sleep(600)
    events = int(options.kv_events_config["endpoint"].rsplit(":", 1)[1])
    engine = Engine(options.num_gpu_blocks_override, options.block_size, events)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", options.port, limit=1 << 24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
