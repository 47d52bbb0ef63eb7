"""Replay of a prepared workload through a router: closed loop, exact lengths, real outputs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.live.client import Answer, complete
from smetric_model.live.prompts import PromptMaker
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    from smetric_model.simulate.prepare import Prepared

__all__ = ["Replayed", "replay"]


@dataclass(eq=False)
class Replayed:
    """What a replay brought.

    Attributes
    ----------
    answers : dict of int to Answer
        By row of the trace, of the requests that were sent and ended.
    start_s : float
        Time 0 of the trace on the monotonic clock [s].
    lag_s : list of float
        How late each request was sent after its due time [s].
    client_cpu_s : float
        CPU time of this process inside the window [s].
    notes : list of str
        What went wrong.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    start_s: float = 0.0
    lag_s: list[float] = field(default_factory=list)
    client_cpu_s: float = 0.0
    notes: list[str] = field(default_factory=list)


def replay(
    prepared: Prepared,
    url: str,
    *,
    model: str,
    vocabulary: int,
    salt: int,
    timeout_s: float = 60.0,
    drain_s: float = 60.0,
    at_edge: Callable[[str], None] = lambda _edge: None,
    alarm: Callable[[], str] = lambda: "",
) -> Replayed:
    """Send the requests of a prepared workload as the simulator would let them arrive.

    Sessions are closed loops where the workload is: a turn is sent a think time after the previous
    one has ended.  Arrivals go on until all requests of the window have ended.

    Parameters
    ----------
    prepared : Prepared
        The workload, from the simulation of the same scenario.
    url : str
        The router's.
    model : str
        Name under which the engines serve the model.
    vocabulary, salt : int
        As in :class:`~smetric_model.live.prompts.PromptMaker`.
    timeout_s : float
        A request that takes longer has failed [s].
    drain_s : float
        How long after the window its last requests may take [s].
    at_edge : callable
        Called with ``"begin"`` and ``"end"`` of the window, in a thread.
    alarm : callable
        Asked every second; a text ends the replay with that note.

    Returns
    -------
    Replayed
    """
    return asyncio.run(
        _Replay(prepared, url, model, vocabulary, salt, timeout_s).run(drain_s, at_edge, alarm)
    )


class _Replay:
    def __init__(
        self, prepared: Prepared, url: str, model: str, vocabulary: int, salt: int, timeout_s: float
    ):
        self.data = prepared.inputs.requests
        window = prepared.inputs.window
        self.begin_s, self.end_s = window.start / TICKS_PER_S, window.end / TICKS_PER_S
        self.url, self.model, self.timeout_s = url, model, timeout_s
        self.maker = PromptMaker(prepared.trace, vocabulary, salt)
        self.result = Replayed()
        self.in_window: set[int] = set()
        self.tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self, drain_s: float, at_edge: Callable[[str], None], alarm: Callable[[], str]
    ) -> Replayed:
        result, loop = self.result, asyncio.get_running_loop()
        result.start_s = time.monotonic() + 0.2
        arrival = self.data.arrival_tick
        for row in np.flatnonzero((arrival >= 0) & (self.data.previous < 0)).tolist():
            self._begin(self._session(row))
        if (self.data.previous >= 0)[arrival >= 0].any():  # open loop: each by its own clock
            for row in np.flatnonzero((arrival >= 0) & (self.data.previous >= 0)).tolist():
                self._begin(self._one(row, None, arrival[row] / TICKS_PER_S))
        cpu_s = 0.0
        edges = [("begin", self.begin_s), ("end", self.end_s)]
        while True:
            now = time.monotonic() - result.start_s
            if edges and now >= edges[0][1]:
                edge = edges.pop(0)[0]
                cpu_s = _own_cpu_s() - cpu_s
                await loop.run_in_executor(None, at_edge, edge)
                continue
            if not edges and (not self.in_window or now > self.end_s + drain_s):
                break
            trouble = await loop.run_in_executor(None, alarm)
            if trouble:
                result.notes.append(f"after {now:.1f} s: {trouble}")
                for edge, _ in edges:
                    cpu_s = _own_cpu_s() - cpu_s
                    await loop.run_in_executor(None, at_edge, edge)
                break
            await asyncio.sleep(max(0.01, min(0.25, edges[0][1] - now if edges else 0.25)))
        result.client_cpu_s = cpu_s
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return result

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _session(self, row: int) -> None:
        due = self.data.arrival_tick[row] / TICKS_PER_S
        before: list[int] | None = None
        generated: list[int] = []
        while row >= 0:
            prompt, generated, ended = await self._one(row, (before, generated), due)
            before = prompt
            following = int(self.data.following[row])
            if following < 0 or self.data.arrival_tick[following] >= 0:
                return
            row = following
            due = ended + self.data.think_ticks[row] / TICKS_PER_S

    async def _one(
        self, row: int, history: tuple[list[int] | None, list[int]] | None, due: float
    ) -> tuple[list[int], list[int], float]:
        before, generated = history or (None, [])
        if self.data.unservable[row]:
            await asyncio.sleep(max(0.0, self.result.start_s + due - time.monotonic()))
            return before or [], generated, due
        prompt = self.maker.prompt(row, before, generated)
        await asyncio.sleep(max(0.0, self.result.start_s + due - time.monotonic()))
        now = time.monotonic() - self.result.start_s
        self.result.lag_s.append(now - due)
        counted = self.begin_s <= now < self.end_s
        if counted:
            self.in_window.add(row)
        try:
            answer = await complete(
                self.url,
                prompt,
                int(self.data.output_tokens[row]),
                model=self.model,
                headers={
                    "x-smetric-turn": str(self.data.turn[row]),
                    "x-smetric-est-hit-tokens": str(self.data.est_hit_tokens[row]),
                },
                timeout_s=self.timeout_s,
            )
            self.result.answers[row] = answer
        finally:
            self.in_window.discard(row)
        return prompt, answer.token_ids, time.monotonic() - self.result.start_s


def _own_cpu_s() -> float:
    taken = os.times()
    return taken.user + taken.system
