"""The simulator in plain Python: every step, every block, nothing skipped.

It is here to be read and to hold the compiled engine against, event by event; ``docs/simulate.md``
states the rules in words.  Caches are dictionaries of blocks in order of use.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

import numpy as np

from smetric_model.simulate.inputs import (
    DEAD_FIRST,
    FAILED,
    TIMED_OUT,
    Group,
    Inputs,
    Replay,
)
from smetric_model.simulate.reference_caches import Cache, GlobalTier
from smetric_model.simulate.reference_eviction import Future, Line, Sessions
from smetric_model.simulate.reference_faults import on_fault
from smetric_model.simulate.reference_links import Sharing, overlap
from smetric_model.simulate.reference_peers import Peers
from smetric_model.simulate.reference_pools import DecodePool
from smetric_model.simulate.reference_preemption import make_room
from smetric_model.simulate.reference_results import replay_of
from smetric_model.simulate.reference_routers import Routers
from smetric_model.simulate.reference_transfers import Transfers
from smetric_model.simulate.reference_tries import TryLog, end_try
from smetric_model.simulate.steps import run_ticks, step_ticks

__all__ = ["run"]

#: Kinds of events, in the order in which they are handled at one tick.
STEP, LINK, FETCHED, ARRIVAL, READY, EXPIRY, FAULT = range(7)


def run(inputs: Inputs) -> Replay:
    """Simulate.

    Parameters
    ----------
    inputs : Inputs
        From :func:`smetric_model.simulate.prepare.prepare`.

    Returns
    -------
    Replay
    """
    return Cluster(inputs).run()


class _Instance:
    def __init__(self, inputs: Inputs, future: Future, kind: Group):
        engine = kind.engine
        self.kind = kind
        unused = Line(inputs.tiers.local_eviction, future)
        self.cache = Cache(engine.pool_tokens, engine.cache_block_tokens, unused)
        self.waiting: deque[int] = deque()
        self.prefilling: list[int] = []  # in order of admission, those that fetch included
        self.fetching: set[int] = set()
        self.decoding: list[int] = []
        self.chunks: list[tuple[int, int]] = []  # of the step under way
        self.step_start = -1  # −1: no step under way
        self.step_end = -1
        self.step_version = 0
        self.down = False
        self.pcie = Sharing()
        self.pcie_now = 0
        self.pcie_version = 0
        self.held = 0
        self.held_since = 0

    def computing(self) -> bool:
        return bool(self.decoding) or any(r not in self.fetching for r in self.prefilling)


class Cluster:
    def __init__(self, inputs: Inputs):
        self.inputs = inputs
        fabric, nodes = inputs.fabric, inputs.nodes
        self.out = Replay.empty(inputs)
        # blocks by number: a node's blocks follow each other
        self.first_block = np.concatenate(([0], np.cumsum(nodes.end - nodes.start)))
        self.future = Future(inputs, self.path)
        self.sessions = Sessions(inputs, self.path)
        kinds = [kind for kind in inputs.kinds for _ in range(kind.instances)]
        self.instances = [_Instance(inputs, self.future, kind) for kind in kinds]
        self.node_of = inputs.node_of.tolist()
        self.pool = DecodePool(self)
        self.peers = Peers(self)
        self.released = -1
        store = Line(inputs.tiers.global_eviction, self.future)
        self.global_tier = GlobalTier(fabric.global_blocks, store)
        self.nodes_up = fabric.nodes
        self.transfers = Transfers(self)
        self.events: list[tuple[int, int, int, int]] = []  # (tick, kind, index, version)
        self.routers = Routers(self)
        self.pending = 0  # requests of the window that are not done
        self.order: list[int] = []
        n = inputs.requests.turn.size
        self.todo = [0] * n  # prompt tokens left to compute
        self.at = [0] * n  # prompt tokens in the cache
        self.found = [0] * n  # tokens in the cache when it was admitted
        self.made = [0] * n  # output tokens
        self.room = [0] * n  # tokens for which it has KV
        self.rank = [0] * n  # how many were admitted before it
        self.private = [0] * n
        self.due = [-1] * n  # when the host, or the fetch, is done with it
        self.tries = TryLog(n)
        self.counts: Counter[str] = Counter()

    def path(self, request: int) -> list[int]:
        """Block numbers of the request's cacheable blocks."""
        nodes, depth = self.inputs.nodes, int(self.inputs.nodes.blocks[request])
        return [
            int(self.first_block[node]) + k
            for node in nodes.path(request)
            for k in range(min(int(nodes.end[node]), depth) - int(nodes.start[node]))
        ]

    def push(self, tick: int, kind: int, index: int, version: int = 0) -> None:
        heapq.heappush(self.events, (tick, kind, index, version))

    def push_link(self, tick: int, index: int, version: int) -> None:
        """Let the first transfer of a link be done."""
        self.push(tick, LINK, index, version)

    def push_fetched(self, request: int) -> None:
        """Let a fetch be done when it is due."""
        self.push(self.due[request], FETCHED, request)

    # --- events ---------------------------------------------------------------------------------

    def run(self) -> Replay:
        window, out = self.inputs.window, self.out
        for request, tick in enumerate(self.inputs.requests.arrival_tick.tolist()):
            if tick >= 0:
                self.push(tick, ARRIVAL, request)
        for entry, tick in enumerate(self.inputs.faults.tick.tolist()):
            self.push(tick, FAULT, entry)
        now = 0
        while self.events:
            tick, kind, index, version = heapq.heappop(self.events)
            if kind == LINK and version != self.transfers.version(index):
                continue  # the rates have changed since
            if kind == STEP and version != self.instances[index].step_version:
                continue  # its instance has failed
            if kind == EXPIRY:
                index = self.tries.expires(index)
                if index < 0:
                    continue  # that try has ended
            if tick >= window.end and not self.pending:
                now = max(now, window.end)
                break
            if tick > window.drain_end:
                now = window.drain_end
                break
            now = tick
            self.counts["events"] += 1
            if kind == STEP:
                self.end_step(index, now)
            elif kind == LINK:
                self.transfers.on_event(index, now)
            elif kind == EXPIRY:
                left = end_try(self, index, TIMED_OUT, now)
                if left >= 0 and self.instances[left].step_start < 0:
                    self.begin_step(left, now)
                self.peers.wake(self.released, now)
            elif kind == FAULT:
                on_fault(self, index, now)
            elif kind == FETCHED and self.pool.exists and out.first_token[index] >= 0:
                self.pool.arrive(index, now)
            elif kind in (FETCHED, READY) and not self.is_due(kind, index, now):
                pass  # of a try that has ended
            elif kind == FETCHED:
                if out.first_token[index] < 0:
                    out.fetch_done[index] = now
                self.due[index] = -1
                instance = self.instances[out.instance[index]]
                instance.fetching.remove(index)
                source = self.peers.release(index, now)
                if instance.step_start < 0:
                    self.begin_step(int(out.instance[index]), now)
                self.peers.wake(source, now)
            elif kind == ARRIVAL:
                self.on_arrival(index, now)
            else:
                out.ready[index] = now
                self.due[index] = -1
                chosen = int(out.instance[index])
                if self.inputs.signals.scraped:
                    self.routers.change_load(index, now, 1, int(out.charge[index]))
                self.instances[chosen].waiting.append(index)
                if self.instances[chosen].step_start < 0:
                    self.begin_step(chosen, now)
        return replay_of(self, now)

    def is_due(self, kind: int, request: int, now: int) -> bool:
        """Whether an event of the host, or of a fetch, is of the try under way."""
        fetching = request in self.instances[self.out.instance[request]].fetching
        return self.due[request] == now and fetching == (kind == FETCHED)

    def on_arrival(self, request: int, now: int) -> None:
        data, out = self.inputs.requests, self.out
        signals = self.inputs.signals
        replica = self.tries.arrivals % signals.replicas
        self.tries.arrivals += 1
        if out.arrival[request] < 0:  # its first try
            out.arrival[request] = now
            self.order.append(request)
            if data.unservable[request]:
                self.session_over(request)
                self.next_turn(request, now)
                return
            self.sessions.arrived(request)
            self.pending += self.in_window(request)
        out.placed[request] = now
        if self.inputs.clients.timeout_ticks >= 0:
            self.tries.current[request] = len(self.tries.expiring)
            self.push(now + self.inputs.clients.timeout_ticks, EXPIRY, len(self.tries.expiring))
            self.tries.expiring.append(request)
        if not self.routers.available.any():
            out.instance[request], out.reason[request], out.charge[request] = -1, -1, 0
            end_try(self, request, FAILED, now)
            return
        self.routers.place(request, replica, now)
        chosen = self.instances[out.instance[request]]
        if chosen.down:
            end_try(self, request, FAILED, now)
            return
        self.due[request] = now + int(chosen.kind.host_ticks[request]) + self.wait_ticks(chosen)
        self.push(self.due[request], READY, request)

    def in_window(self, request: int) -> bool:
        window = self.inputs.window
        return bool(window.start <= self.out.arrival[request] < window.end)

    def next_turn(self, request: int, now: int) -> None:
        data = self.inputs.requests
        following = int(data.following[request])
        if following >= 0 and data.arrival_tick[following] < 0:
            self.push_arrival(following, now + int(data.think_ticks[following]))

    def push_arrival(self, request: int, tick: int) -> None:
        self.push(tick, ARRIVAL, request)

    # --- steps ----------------------------------------------------------------------------------

    def begin_step(self, index: int, now: int) -> None:
        """Schedule a step on an instance that runs none."""
        instance = self.instances[index]
        engine = instance.kind.engine
        self.pool.join(index, now)
        preempted = bool(engine.preempt) and make_room(self, index, now)
        budget = engine.token_budget - len(instance.decoding)
        chunks = []
        for request in instance.prefilling:
            if request not in instance.fetching and budget > 0:
                chunks.append((request, min(self.todo[request], budget)))
                budget -= chunks[-1][1]
        while (
            budget > 0
            and not preempted
            and instance.waiting
            and len(instance.prefilling) + len(instance.decoding) < engine.max_running_requests
        ):
            request = instance.waiting[0]
            if not self.admit(index, request, now):
                break
            instance.waiting.popleft()
            instance.prefilling.append(request)
            if request not in instance.fetching:
                chunks.append((request, min(self.todo[request], budget)))
                budget -= chunks[-1][1]
        self.note_changes(index, now)
        stalled = self.inputs.fabric.stall and instance.fetching
        if stalled or not (chunks or instance.decoding):
            return
        instance.chunks = chunks
        instance.step_start = now
        for request, _ in chunks:
            if self.out.first_step[request] < 0:
                self.out.first_step[request] = now
        instance.step_end = now + self.duration(instance)
        self.push(instance.step_end, STEP, index, instance.step_version)

    def stop_step(self, index: int, now: int) -> None:
        """End the step under way with nothing to show for it."""
        instance = self.instances[index]
        self.out.busy_ticks[index] += overlap(self.inputs.window, instance.step_start, now)
        instance.chunks, instance.step_start = [], -1
        instance.step_version += 1

    def decode_ticks(self, kind: Group, batch: int, context: int) -> int:
        tables = kind.decode
        base, per_token = tables.base[batch], tables.per_token[batch]
        return int(run_ticks(base, per_token, tables.least[batch], batch, context, 1))

    def batch_of(self, instance: _Instance) -> tuple[int, int]:
        """Sequences that decode, and their context together."""
        prompts = self.inputs.requests.prompt_tokens
        context = sum(int(prompts[r]) + self.made[r] for r in instance.decoding)
        return len(instance.decoding), context

    def wait_ticks(self, instance: _Instance) -> int:
        """How long a request that comes now waits for decode steps under way."""
        steps = instance.kind.model.wait_steps
        if not instance.decoding or steps <= 0:
            return 0
        return int(steps * float(self.decode_ticks(instance.kind, *self.batch_of(instance))))

    def duration(self, instance: _Instance) -> int:
        batch, context = self.batch_of(instance)
        if not instance.chunks:
            return self.decode_ticks(instance.kind, batch, context)
        tokens = pairs = keys = 0.0
        sampled = float(batch)
        for request, chunk in instance.chunks:
            cached = float(self.at[request])
            tokens += chunk
            pairs += chunk * (cached + 0.5 * chunk)
            keys += cached + chunk
            sampled += chunk == self.todo[request]
        return int(
            step_ticks(
                instance.kind.model, tokens, pairs, keys, float(batch), float(context), sampled
            )
        )

    def end_step(self, index: int, now: int) -> None:
        instance, out = self.instances[index], self.out
        out.busy_ticks[index] += overlap(self.inputs.window, instance.step_start, now)
        self.counts["steps"] += 1
        chunks, instance.chunks, instance.step_start = instance.chunks, [], -1
        for request in list(instance.decoding):
            self.made[request] += 1
            self.credit(out.generated_tokens, index, now, 1)
            if self.made[request] == self.inputs.requests.output_tokens[request]:
                instance.decoding.remove(request)
                self.complete(index, request, now)
        for request, chunk in chunks:
            self.todo[request] -= chunk
            self.at[request] += chunk
            if self.todo[request] == 0:
                instance.prefilling.remove(request)
                self.prefilled(index, request, now)
        self.pool.start_transfers(now)
        self.begin_step(index, now)

    def prefilled(self, index: int, request: int, now: int) -> None:
        """Sample the first token, make the prompt's blocks reusable."""
        data, out, instance = self.inputs.requests, self.out, self.instances[index]
        if out.first_token[request] < 0:
            out.first_token[request] = now
            reused = int(out.local_tokens[request] + out.fetched_tokens[request])
            self.credit(out.reused_tokens, index, now, reused)
            self.credit(out.computed_tokens, index, now, int(data.prompt_tokens[request]) - reused)
            self.routers.change_load(request, now, 0, -int(out.charge[request]))
        else:  # it had been preempted
            out.repeated_tokens[request] += self.at[request] - self.found[request]
        self.credit(out.generated_tokens, index, now, 1)
        path = self.path(request)
        block = self.inputs.engine.cache_block_tokens
        self.private[request] -= instance.cache.insert(path) * block
        self.made[request] += 1
        single = data.output_tokens[request] == self.made[request]
        if not single and self.pool.exists:
            self.pool.waiting.append(request)
        elif not single:
            instance.decoding.append(request)
        if not self.inputs.tiers.write_back:
            self.store(index, request, path, now)
        if single:
            self.complete(index, request, now)

    def store(self, index: int, request: int, blocks: list[int], now: int) -> None:
        """Write blocks to the global tier, the last one the oldest."""
        if self.global_tier.capacity:
            written = self.global_tier.write(blocks)
            if written and self.inputs.fabric.nodes > 1:
                tokens = written * self.inputs.engine.cache_block_tokens
                work = self.transfers.nic_work(index, tokens, self.instances[index].computing())
                self.transfers.start_write(index, work, request, now)

    def complete(self, index: int, request: int, now: int) -> None:
        self.out.done[request] = now
        self.tries.current[request] = -1
        if self.pool.holds(index):
            self.pool.release(index, request)
        else:
            self.leave(index, request, now)
        self.pending -= self.in_window(request)
        self.session_over(request)
        self.next_turn(request, now)

    def session_over(self, request: int) -> None:
        """After a session's last request, demote what only it has used."""
        for block in self.sessions.over(request):
            if self.inputs.tiers.local_eviction == DEAD_FIRST:
                for instance in self.instances:
                    instance.cache.unused.demote(block)
            if self.inputs.tiers.global_eviction == DEAD_FIRST:
                self.global_tier.blocks.demote(block)

    def leave(self, index: int, request: int, now: int) -> None:
        """Let go of the instance that the router chose."""
        self.instances[index].cache.release(self.path(request), self.private[request])
        self.routers.change_load(request, now, -1, 0)

    # --- KV -------------------------------------------------------------------------------------

    def admit(self, index: int, request: int, now: int) -> bool:
        data, out, instance = self.inputs.requests, self.out, self.instances[index]
        engine = instance.kind.engine
        path = self.path(request)
        # what it had made when it was preempted is computed again with the prompt
        prompt = int(data.prompt_tokens[request]) + self.made[request]
        held = instance.cache.hit(path)
        ahead = 0 if self.pool.exists or engine.preempt else int(data.output_tokens[request])
        total = prompt + ahead
        blocks = -(-total // engine.block_tokens)
        need = blocks * engine.block_tokens - held * engine.cache_block_tokens
        if not instance.cache.admit(path, need + engine.fixed_state_tokens):
            return False
        self.private[request] = need + engine.fixed_state_tokens
        self.room[request] = blocks * engine.block_tokens
        self.counts["admitted"] += 1
        self.rank[request] = self.counts["admitted"]
        local = self.usable(held, prompt)
        stored = self.global_tier.hit(path, held)
        fetched = self.peers.start_fetch(index, request, max(held, stored), local, now)
        if not fetched and stored > held:
            fetched = self.usable(stored, prompt) - local
            if fetched and self.transfers.start_fetch(index, request, local, fetched, now):
                self.global_tier.touch(path[:stored])
            else:
                fetched = 0
        if fetched:
            instance.fetching.add(request)
        if out.first_token[request] < 0:
            out.admitted[request] = now
            out.local_tokens[request], out.fetched_tokens[request] = local, fetched
            out.peer[request] = self.peers.source(request)
        self.found[request] = local + fetched
        self.at[request] = local + fetched
        self.todo[request] = prompt - local - fetched
        self.future.passed.add(request)
        if self.inputs.tiers.write_back:
            self.store(index, request, instance.cache.victims[::-1], now)
        return True

    def usable(self, blocks: int, prompt: int) -> int:
        """Tokens that a hit saves: whole engine blocks, and a token is left to compute."""
        engine = self.inputs.engine
        tokens = min(blocks * engine.cache_block_tokens, prompt - 1)
        return tokens // engine.block_tokens * engine.block_tokens

    def note_changes(self, index: int, now: int) -> None:
        """Note what came and went in an instance's KV, for accounts and routers."""
        self.account(index, now)
        changes = self.instances[index].cache.changes
        self.routers.index_log += [(now, index, *change) for change in changes]
        changes.clear()

    def account(self, index: int, now: int) -> None:
        """Add up the KV of running requests over time, when it has changed."""
        instance = self.instances[index]
        held = instance.kind.engine.pool_tokens - instance.cache.free - instance.cache.evictable
        if held != instance.held:
            self.add_held(index, now)
            instance.held, instance.held_since = held, now

    def add_held(self, index: int, now: int) -> None:
        instance = self.instances[index]
        inside = overlap(self.inputs.window, instance.held_since, now)
        self.out.held_token_ticks[index] += float(instance.held) * float(inside)

    def node(self, index: int) -> int:
        return int(self.node_of[index])

    # --- results --------------------------------------------------------------------------------

    def credit(self, table: np.ndarray, index: int, now: int, tokens: int) -> None:
        window = self.inputs.window
        if window.start <= now < window.end:
            table[index, (now - window.start) // window.bin_ticks] += tokens
