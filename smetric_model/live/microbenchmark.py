"""Short measurements of running engines: prompts, decode steps, and both at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.errors import LiveError
from smetric_model.live.client import Answer, complete
from smetric_model.live.rig.tiny_model import FIRST_FILLER

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.live.rig.engines import Rig

__all__ = [
    "ALL",
    "BESIDE",
    "BESIDE_HELD_OUT",
    "DECODE",
    "DECODE_HELD_OUT",
    "FEW",
    "PREFILL",
    "PREFILL_HELD_OUT",
    "Points",
    "held_up_s",
    "microbenchmark",
    "router_cost_s",
]

#: prompt lengths [tokens]
PREFILL = (96, 256, 512, 1024, 2048, 4096)
PREFILL_HELD_OUT = (384, 1536, 3072)
#: sequences, and context of each [tokens]
DECODE = ((1, 256), (2, 256), (4, 256), (8, 256), (16, 256), (1, 2048), (4, 1024), (4, 2048))
DECODE_HELD_OUT = ((3, 512), (6, 1024), (12, 256))
#: sequences that decode beside arriving prompts, and tokens of these
BESIDE = ((1, 256), (3, 128), (3, 512), (6, 256))
BESIDE_HELD_OUT = ((2, 384),)
#: tokens of each stream of a decode measurement
_STREAM = 40
#: beside arriving prompts: prompt and output of each stream
_BESIDE_CONTEXT, _LONG_STREAM = 256, 300
#: prompts that arrive, each again with so many tokens more
_ARRIVALS, _FOLLOW_UP = 3, 96
#: pause after each prompt: its KV is still written to the tier [s]
_BETWEEN_S = 0.1
#: how long a request leaves work behind after its answer [s]
_AFTER_S = 0.05


@dataclass(frozen=True)
class Points:
    """What is measured: prompt lengths; sequences and context; sequences and arriving prompt."""

    prefill: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    beside: tuple[tuple[int, int], ...]


ALL = Points(
    (*PREFILL, *PREFILL_HELD_OUT), (*DECODE, *DECODE_HELD_OUT), (*BESIDE, *BESIDE_HELD_OUT)
)
#: enough to see whether the engines are as fast as they were
FEW = Points((256, 1024, 2048), ((1, 256), (4, 1024), (8, 256)), ())


def microbenchmark(
    rig: Rig,
    *,
    model: str,
    vocabulary: int,
    repeats: int = 3,
    seed: int = 0,
    points: Points = ALL,
    known: pd.DataFrame | None = None,
    keep: Callable[[pd.DataFrame], None] = lambda _table: None,
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
    points : Points
        What is measured.
    known : DataFrame, optional
        Of an earlier call that was interrupted: its repeats are not measured again.
    keep : callable
        Given all that is measured after each repeat.
    tell : callable
        Told what is being measured.

    Returns
    -------
    DataFrame
        A line a measurement: ``kind``, ``engine``, ``repeat``, ``tokens`` (prompt; context of
        each sequence), ``batch``, ``hit_tokens`` (as the engine says), ``context_tokens``,
        ``seconds`` and ``held_out``.  ``prefill``, ``cached`` and ``fetch`` are TTFT on an idle
        engine, ``decode`` a decode step; ``beside`` is by how much a prompt that arrives holds
        up ``batch`` sequences of ``context_tokens`` that decode, ``late`` its own TTFT then.

    Raises
    ------
    LiveError
        If an engine does not answer.
    """
    import pandas as pd

    bench = _Bench(rig, model, vocabulary, seed, points)
    table = pd.DataFrame() if known is None else known

    async def run() -> pd.DataFrame:
        nonlocal table
        await bench.warm()
        for repeat in range(int(table["repeat"].max()) + 1 if len(table) else 0, repeats):
            tell(f"measuring the engines, {repeat + 1} of {repeats}")
            table = pd.concat([table, pd.DataFrame(await bench.once(repeat))], ignore_index=True)
            keep(table)
        return table

    return asyncio.run(run())


class _Bench:
    def __init__(self, rig: Rig, model: str, vocabulary: int, seed: int, points: Points):
        self.rig, self.model, self.vocabulary, self.points = rig, model, vocabulary, points
        self.urls = [point.url for point in rig.endpoints]
        self.chance = np.random.default_rng([seed, 77])
        self.pool = (rig.spec.blocks or 10**6) * rig.spec.block_tokens
        longest = min(rig.spec.max_context_tokens - _STREAM - 1, self.pool // 2)
        self.sizes = [n for n in sorted(points.prefill) if n <= longest]
        self.rows: list[dict[str, Any]] = []

    def words(self, count: int) -> list[int]:
        return [int(i) for i in self.chance.integers(FIRST_FILLER, self.vocabulary, count)]

    async def ask(self, engine: int, prompt: list[int], output: int = 1) -> Answer:
        answer = await complete(self.urls[engine], prompt, output, model=self.model)
        if answer.error:
            self.rig.check()
            raise LiveError(f"{self.urls[engine]}: {answer.error}")
        return answer

    async def warm(self) -> None:
        """Ask a little: the first requests of a process are slow."""
        for engine in range(len(self.urls)):
            for n in (self.sizes[0], self.sizes[-1]):
                await self.ask(engine, self.words(n), 4)

    async def once(self, repeat: int) -> list[dict[str, Any]]:
        """Measure every point on every engine."""
        self.rows = []
        engines = range(len(self.urls))
        prompts = [[self.words(n) for n in self.sizes] for _ in engines]
        await asyncio.gather(*(self.prefills(engine, prompts[engine]) for engine in engines))
        if self.rig.spec.tier.kind != "none" and len(engines) > 1:
            await asyncio.sleep(0.5)  # writes are under way
            await asyncio.gather(
                *(self.fetches(e, prompts[(e + 1) % len(prompts)]) for e in engines)
            )
        for batch, context in self.points.decode:
            if self.fits(batch, batch * (context + _STREAM)):
                await asyncio.gather(*(self.decode(engine, batch, context) for engine in engines))
        for batch, tokens in self.points.beside:
            arriving = _ARRIVALS * (tokens + _FOLLOW_UP)
            if self.fits(batch + 1, batch * (_BESIDE_CONTEXT + _LONG_STREAM) + arriving):
                await asyncio.gather(*(self.beside(engine, batch, tokens) for engine in engines))
        return [{**row, "repeat": repeat} for row in self.rows]

    def fits(self, sequences: int, tokens: int) -> bool:
        return tokens <= 0.9 * self.pool and sequences <= self.rig.spec.max_running_requests

    def note(self, kind: str, engine: int, tokens: int, seconds: float, **more: Any) -> None:
        row = {"kind": kind, "engine": engine, "tokens": tokens, "batch": 1, "hit_tokens": 0}
        self.rows.append(row | {"context_tokens": 0, "seconds": seconds} | more)

    def note_first(self, kind: str, engine: int, answer: Answer, **more: Any) -> None:
        more = {"held_out": answer.prompt_tokens in PREFILL_HELD_OUT} | more
        more["hit_tokens"] = answer.cached_tokens
        self.note(kind, engine, answer.prompt_tokens, answer.first_s - answer.sent_s, **more)

    async def prefills(self, engine: int, prompts: list[list[int]]) -> None:
        for prompt in prompts:
            for kind in ("prefill", "cached"):
                self.note_first(kind, engine, await self.ask(engine, prompt))
                await asyncio.sleep(_BETWEEN_S)

    async def fetches(self, engine: int, prompts: list[list[int]]) -> None:
        for prompt in prompts:
            answer = await self.ask(engine, prompt)
            if answer.cached_tokens:
                self.note_first("fetch", engine, answer)
            await asyncio.sleep(_BETWEEN_S)

    async def decode(self, engine: int, batch: int, context: int) -> None:
        """Mean decode step while all sequences decode."""
        prompts = [self.words(context) for _ in range(batch)]
        for prompt in prompts:
            await self.ask(engine, prompt)
        answers = await asyncio.gather(*(self.ask(engine, one, _STREAM) for one in prompts))
        begin = max(answer.first_s for answer in answers)
        end = min(answer.last_s for answer in answers)
        steps = []
        for answer in answers:
            inside = [t for t in answer.token_times_s if begin <= t <= end]
            if len(inside) > 2:
                steps.append((inside[-1] - inside[0]) / (len(inside) - 1))
        if not steps:
            raise LiveError(f"{batch} streams never decoded together: the engine is not idle")
        held_out = (batch, context) in DECODE_HELD_OUT
        middle, step = context + _STREAM // 2, float(np.median(steps))
        self.note("decode", engine, middle, step, batch=batch, held_out=held_out)

    async def beside(self, engine: int, batch: int, tokens: int) -> None:
        """Let prompts, new ones and follow-ups, arrive beside sequences that decode."""
        prompts = [self.words(tokens) for _ in range(_ARRIVALS)]
        prompts += [prompt + self.words(_FOLLOW_UP) for prompt in prompts]
        streams = [
            asyncio.ensure_future(self.ask(engine, self.words(_BESIDE_CONTEXT), _LONG_STREAM))
            for _ in range(batch)
        ]
        try:
            await asyncio.sleep(0.15 + 0.1 * batch)  # all have begun to decode
            arrived = []
            for prompt in prompts:
                arrived.append(await self.ask(engine, prompt))
                await asyncio.sleep(_BETWEEN_S)
            answers = await asyncio.gather(*streams)
        finally:
            for stream in streams:
                stream.cancel()
        begin = max(answer.first_s for answer in answers)
        lost = held_up_s(answers[0].token_times_s, arrived, begin)
        more = {
            "batch": batch,
            "context_tokens": _BESIDE_CONTEXT + _LONG_STREAM // 2,
            "held_out": (batch, tokens) in BESIDE_HELD_OUT,
        }
        for one, seconds in zip(arrived, lost, strict=True):
            if seconds is not None:
                hit, size = one.cached_tokens, one.prompt_tokens
                self.note("beside", engine, size, seconds, **more, hit_tokens=hit)
                self.note_first("late", engine, one, **more)


def held_up_s(
    times_s: Sequence[float], arrived: Sequence[Answer], begin_s: float
) -> list[float | None]:
    """Return by how much each arriving prompt held up a sequence that decodes.

    Parameters
    ----------
    times_s : sequence of float
        When the sequence's tokens came [s].
    arrived : sequence of Answer
        To the prompts that came meanwhile, one after the other.
    begin_s : float
        Earlier tokens do not count [s].

    Returns
    -------
    list of float or None
        Time between tokens from before each prompt until after its answer, less what as many
        tokens take undisturbed (mean of the other steps) [s]; None where the sequence did not
        decode all the time, or was never undisturbed.
    """
    times = np.array([t for t in times_s if t >= begin_s])
    if times.size < 2 or not arrived:
        return [None] * len(arrived)
    gaps = np.diff(times)
    touched = [(times[1:] > one.sent_s) & (times[:-1] < one.last_s + _AFTER_S) for one in arrived]
    quiet = ~np.logical_or.reduce(touched)
    if quiet.sum() < 5:
        return [None] * len(arrived)
    step = float(gaps[quiet].mean())
    return [
        float(gaps[some].sum() - some.sum() * step)
        if times[0] < one.sent_s and one.last_s + _AFTER_S < times[-1]
        else None
        for one, some in zip(arrived, touched, strict=True)
    ]


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
