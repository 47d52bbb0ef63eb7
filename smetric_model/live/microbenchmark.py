"""Short measurements of running engines: prefill, cached prompts, decode, fetches from the tier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.errors import LiveError
from smetric_model.live.client import Answer, complete
from smetric_model.live.rig.tiny_model import FIRST_FILLER

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.live.rig.engines import Rig

__all__ = [
    "DECODE",
    "DECODE_HELD_OUT",
    "PREFILL",
    "PREFILL_HELD_OUT",
    "microbenchmark",
    "router_cost_s",
]

#: prompt lengths [tokens]
PREFILL = (96, 256, 512, 1024, 2048, 4096)
PREFILL_HELD_OUT = (384, 1536, 3072)
#: sequences, and context of each [tokens]
DECODE = ((1, 256), (2, 256), (4, 256), (8, 256), (16, 256), (1, 2048), (4, 1024), (4, 2048))
DECODE_HELD_OUT = ((3, 512), (6, 1024), (12, 256))
#: tokens of each stream of a decode measurement
_STREAM = 40


def microbenchmark(
    rig: Rig,
    *,
    model: str,
    vocabulary: int,
    repeats: int = 3,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _text: None,
) -> pd.DataFrame:
    """Measure all engines of a rig side by side, each with one kind of work at a time.

    Parameters
    ----------
    rig : Rig
        Engines that are up, and idle.
    model : str
        Name under which they serve the model.
    vocabulary : int
        Token ids are drawn below it.
    repeats : int
        Of each point.
    seed : int
        Of the prompts; no prompt comes twice.
    tell : callable
        Told what is being measured.

    Returns
    -------
    DataFrame
        A line a measurement: ``kind`` (prefill, cached, fetch, decode), ``engine``, ``repeat``,
        ``tokens`` (prompt; context of each sequence), ``batch``, ``hit_tokens`` (as the engine
        says), ``seconds`` (TTFT; one decode step) and ``held_out``.

    Raises
    ------
    LiveError
        If an engine does not answer.
    """
    import pandas as pd

    return pd.DataFrame(asyncio.run(_all(rig, model, vocabulary, repeats, seed, tell)))


async def _all(
    rig: Rig,
    model: str,
    vocabulary: int,
    repeats: int,
    seed: int,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    urls = [point.url for point in rig.endpoints]
    chance = np.random.default_rng([seed, 77])
    longest = rig.spec.max_context_tokens - _STREAM - 1
    pool = (rig.spec.blocks or 10**6) * rig.spec.block_tokens

    def words(count: int) -> list[int]:
        return [int(i) for i in chance.integers(FIRST_FILLER, vocabulary, count)]

    async def ask(engine: int, prompt: list[int], output: int = 1) -> Answer:
        answer = await complete(urls[engine], prompt, output, model=model)
        if answer.error:
            rig.check()
            raise LiveError(f"{urls[engine]}: {answer.error}")
        return answer

    def keep(kind: str, engine: int, repeat: int, tokens: int, answer: Answer) -> None:
        rows.append(
            {
                "kind": kind,
                "engine": engine,
                "repeat": repeat,
                "tokens": tokens,
                "batch": 1,
                "hit_tokens": answer.cached_tokens,
                "seconds": answer.first_s - answer.sent_s,
                "held_out": tokens in PREFILL_HELD_OUT,
            }
        )

    sizes = [n for n in sorted((*PREFILL, *PREFILL_HELD_OUT)) if n <= min(longest, pool // 2)]
    for engine in range(len(urls)):  # the first requests of a process are slow
        for n in (sizes[0], sizes[-1]):
            await ask(engine, words(n), 4)
    for repeat in range(repeats):
        tell(f"prefill and fetches, {repeat + 1} of {repeats}")
        prompts: list[list[list[int]]] = [[words(n) for n in sizes] for _ in urls]

        async def prefills(
            engine: int, repeat: int = repeat, prompts: list[list[list[int]]] = prompts
        ) -> None:
            for prompt in prompts[engine]:
                keep("prefill", engine, repeat, len(prompt), await ask(engine, prompt))
                keep("cached", engine, repeat, len(prompt), await ask(engine, prompt))

        async def fetches(
            engine: int, repeat: int = repeat, prompts: list[list[list[int]]] = prompts
        ) -> None:
            for prompt in prompts[(engine + 1) % len(urls)]:
                answer = await ask(engine, prompt)
                if answer.cached_tokens:
                    keep("fetch", engine, repeat, len(prompt), answer)

        await asyncio.gather(*(prefills(engine) for engine in range(len(urls))))
        if rig.spec.tier.kind != "none" and len(urls) > 1:
            await asyncio.sleep(0.5)  # writes are under way
            await asyncio.gather(*(fetches(engine) for engine in range(len(urls))))
    for repeat in range(repeats):
        tell(f"decode, {repeat + 1} of {repeats}")
        for batch, context in (*DECODE, *DECODE_HELD_OUT):
            if batch * (context + _STREAM) > 0.9 * pool or batch > rig.spec.max_running_requests:
                continue
            steps = await asyncio.gather(
                *(
                    _decode(partial(ask, engine), [words(context) for _ in range(batch)])
                    for engine in range(len(urls))
                )
            )
            rows += [
                {
                    "kind": "decode",
                    "engine": engine,
                    "repeat": repeat,
                    "tokens": context + _STREAM // 2,
                    "batch": batch,
                    "hit_tokens": 0,
                    "seconds": step,
                    "held_out": (batch, context) in DECODE_HELD_OUT,
                }
                for engine, step in enumerate(steps)
            ]
    return rows


async def _decode(ask: Callable[[list[int], int], Any], prompts: Sequence[list[int]]) -> float:
    """Mean time of a decode step while all sequences decode [s]."""
    for prompt in prompts:
        await ask(prompt, 1)
    answers: list[Answer] = await asyncio.gather(*(ask(prompt, _STREAM) for prompt in prompts))
    begin = max(answer.first_s for answer in answers)
    end = min(answer.last_s for answer in answers)
    steps = []
    for answer in answers:
        inside = [t for t in answer.token_times_s if begin <= t <= end]
        if len(inside) > 2:
            steps.append((inside[-1] - inside[0]) / (len(inside) - 1))
    if not steps:
        raise LiveError(f"{len(prompts)} streams never decoded together: the engine is not idle")
    return float(np.median(steps))


def router_cost_s(
    router: str, engines: Sequence[str], *, model: str, vocabulary: int, requests: int = 24
) -> float:
    """Return what a router adds to the TTFT of a short prompt on idle engines.

    Parameters
    ----------
    router : str
        Its URL; it may send each prompt to any of the engines.
    engines : sequence of str
        Their URLs.
    model, vocabulary
        As in :func:`microbenchmark`.
    requests : int
        Of each kind, one after the other, alternating.

    Returns
    -------
    float
        Difference of the medians [s].

    Raises
    ------
    LiveError
        If one is not answered.
    """

    async def measure() -> float:
        chance = np.random.default_rng()
        times: dict[bool, list[float]] = {True: [], False: []}
        for index in range(2 * requests):
            routed = index % 2 == 0
            url = router if routed else engines[index // 2 % len(engines)]
            prompt = [int(i) for i in chance.integers(FIRST_FILLER, vocabulary, 48)]
            answer = await complete(url, prompt, 1, model=model)
            if answer.error:
                raise LiveError(f"{url}: {answer.error}")
            times[routed].append(answer.first_s - answer.sent_s)
        return float(np.median(times[True]) - np.median(times[False]))

    return asyncio.run(measure())
