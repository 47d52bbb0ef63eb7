"""Time of one decision of the router: 60k tokens, 32 instances, exact and approximate hits.

Index lookup and policy; tokenisation apart, cold and cached, where a tokenizer is given:
``router_decision.py [FOLDER_OF_A_TOKENIZER]``.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from smetric_model.live.router.approximate import ApproximateIndex
from smetric_model.live.router.config import InstanceSection
from smetric_model.live.router.decide import Decider
from smetric_model.live.router.exact import ExactIndex, ExactPrompt
from smetric_model.live.router.fleet import Fleet
from smetric_model.live.router.http_server import Incoming
from smetric_model.live.router.kv_wire import BlocksStored
from smetric_model.live.router.question import ask
from smetric_model.live.router.tokenise import Tokeniser
from smetric_model.routing.registry import make_policy

TOKENS, INSTANCES, BLOCK = 60_000, 32, 16


def microseconds(function: Callable[[], Any], repeats: int = 40) -> str:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(1e6 * (time.perf_counter() - start))
    return f"median {statistics.median(times):8.1f} us, least {min(times):8.1f} us"


def body(words: int) -> dict[str, Any]:
    chance = random.Random(1)
    vocabulary = [f"word{k}" for k in range(3000)]
    messages = []
    for turn in range(61):
        text = " ".join(chance.choice(vocabulary) for _ in range(words // 61))
        messages.append({"role": "assistant" if turn % 2 else "user", "content": text})
    return {"model": "m", "messages": messages}


def main() -> None:
    fleet = Fleet()
    instances = [
        fleet.add(InstanceSection(name=f"i{k}", url=f"http://h:{k + 1}")) for k in range(INSTANCES)
    ]
    chance = random.Random(0)
    tokens = [chance.randrange(150_000) for _ in range(TOKENS)]
    exact = ExactIndex()
    for k, item in enumerate(instances):  # each holds another length of the prompt
        exact.live |= item.bit
        held = TOKENS * (k + 1) // INSTANCES // BLOCK * BLOCK
        names = list(range(held // BLOCK))
        exact.stored(item.bit, BlocksStored(names, None, tokens[:held], BLOCK, "GPU"))
    data = array("I", tokens).tobytes()
    print(f"{TOKENS} tokens, {INSTANCES} instances, blocks of {BLOCK}")
    print("keys of the prompt's blocks  ", microseconds(lambda: ExactPrompt(data).keys(BLOCK)))
    prompt = ExactPrompt(data)
    prompt.keys(BLOCK)
    print("exact lookup                 ", microseconds(lambda: exact.hits(prompt, instances)))
    approximate = ApproximateIndex(256_000_000)
    request = Incoming(
        b"POST", b"/v1/chat/completions", [], json.dumps(body(TOKENS * 4 // 8)).encode()
    )
    print(
        f"reading a body of {len(request.body) // 1000} kB     ", microseconds(lambda: ask(request))
    )
    question = ask(request)
    for item in instances:
        approximate.learn(question.chain, item.bit)
    print(
        "approximate lookup           ",
        microseconds(lambda: approximate.hits(question.chain, -1)),
    )
    for name in ("smetric", "lmetric"):
        for compiled in (True, False):
            both = Decider(
                make_policy(name), approximate=approximate, exact=exact, compiled=compiled
            )
            alone = Decider(make_policy(name), approximate=approximate, compiled=compiled)
            how = "compiled" if compiled else "readable"
            print(
                f"decision {name:8s} {how} exact      ",
                microseconds(lambda d=both: d.choose(question, instances, (), prompt)),
            )
            print(
                f"decision {name:8s} {how} approximate",
                microseconds(lambda d=alone: d.choose(question, instances)),
            )
    if len(sys.argv) > 1:
        tokeniser = Tokeniser(sys.argv[1])
        for word in ("cold", "cached"):
            start = time.perf_counter()
            made = asyncio.run(tokeniser.prompt(question, exact, 60.0))
            seconds = time.perf_counter() - start
            count = 0 if made is None else made.tokens
            print(f"tokenising {count} tokens, {word:6s}: {1e3 * seconds:.1f} ms")
        tokeniser.close()


if __name__ == "__main__":
    main()
