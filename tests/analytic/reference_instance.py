"""A readable simulation of one instance, step by step, to hold the closed form against.

It works as a continuous-batching engine does:

* requests queue first come, first served, from the moment host time and fetch are over;
* a step first takes one token of every decoding sequence, then prefill chunks in order of
  admission until the token budget is spent, so that several prompts may share a step;
* a request is admitted while budget, a place among ``max_running_requests`` and KV for its prompt
  are left; the head of the queue blocks those behind it;
* a context grows by a token a step; where the pool is full the request admitted last gives its KV
  back and starts over at the head of the queue, computing what it had generated as well (its hit
  stays a hit).  With ``reserve_output`` the whole context is claimed at admission instead;
* the first token leaves at the end of the step that completes the prefill.

Tokens are counted exactly, not in blocks.  :func:`run` is plain Python over arrays; compiled by
numba it is the same function, some hundred times faster.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import cache

import numpy as np

from smetric_model.analytic import step_time
from smetric_model.analytic.step_time import StepModel, step_groups


def run(
    model,
    arrival_s,
    before_prefill_s,
    prompt_tokens,
    output_tokens,
    hit_tokens,
    pool_tokens,
    fixed_state_tokens,
    token_budget,
    max_running_requests,
    reserve_output,
):
    """Serve every request; times of first and last token, and what the engine did meanwhile."""
    n = arrival_s.size
    order = np.argsort(arrival_s + before_prefill_s, kind="mergesort")
    ready_s = arrival_s + before_prefill_s
    first_s = np.full(n, np.nan)
    last_s = np.full(n, np.nan)
    to_compute = prompt_tokens - hit_tokens  # tokens to prefill before the next sample
    cached = hit_tokens.copy()  # tokens in the KV cache
    made = np.zeros(n)  # tokens generated
    claimed = np.zeros(n)  # KV held by a running request

    running = np.empty(max_running_requests, np.int64)  # in order of admission
    returned = np.empty(max_running_requests, np.int64)  # preempted, last one first
    chunk = np.zeros(max_running_requests)
    running_count = returned_count = 0
    head = finished = preemptions = steps = 0
    clock = busy_s = held_token_s = prefilled = 0.0
    free = pool_tokens
    running_s = np.zeros(max_running_requests + 1)  # time with so many running
    decoding_s = np.zeros(max_running_requests + 1)

    while finished < n:
        # --- schedule: decodes, the prefill under way, then admissions
        budget = token_budget
        preempted_before = preemptions
        for place in range(running_count):
            if to_compute[running[place]] == 0:
                budget -= 1.0
        place = 0
        while place < running_count:
            request = running[place]
            if to_compute[request] > 0:
                chunk[place] = min(to_compute[request], max(budget, 0.0))
                budget -= chunk[place]
            else:
                chunk[place] = 0.0
                if not reserve_output:
                    if free < 1.0 and running_count > 1:
                        # out of KV: the last one admitted starts over
                        running_count -= 1
                        victim = running[running_count]
                        free += claimed[victim]
                        claimed[victim] = 0.0
                        if to_compute[victim] == 0:
                            budget += 1.0
                        to_compute[victim] = prompt_tokens[victim] + made[victim]
                        to_compute[victim] -= hit_tokens[victim]
                        cached[victim] = hit_tokens[victim]
                        returned[returned_count] = victim
                        returned_count += 1
                        preemptions += 1
                        continue  # the same place again: it may have been the victim itself
                    free -= 1.0
                    claimed[request] += 1.0
            place += 1
        # a step that had to preempt admits nobody
        while (
            budget > 0 and running_count < max_running_requests and preemptions == preempted_before
        ):
            if returned_count > 0:
                request = returned[returned_count - 1]
            elif head < n and ready_s[order[head]] <= clock:
                request = order[head]
            else:
                break
            need = prompt_tokens[request] + made[request] + fixed_state_tokens
            if reserve_output:
                need += output_tokens[request] - made[request]
            if need > free and running_count > 0:
                break
            free -= need
            claimed[request] = need
            if returned_count > 0:
                returned_count -= 1
            else:
                head += 1
            running[running_count] = request
            chunk[running_count] = min(to_compute[request], budget)
            budget -= chunk[running_count]
            running_count += 1
        if running_count == 0:
            running_s[0] += ready_s[order[head]] - clock
            decoding_s[0] += ready_s[order[head]] - clock
            clock = ready_s[order[head]]
            continue

        # --- the step
        tokens = pairs = keys = batch = context = sampled = 0.0
        for place in range(running_count):
            request = running[place]
            if to_compute[request] > 0:
                p = chunk[place]
                if p > 0:
                    tokens += p
                    pairs += p * (cached[request] + 0.5 * p)
                    keys += cached[request] + p
                    sampled += 1.0 if p == to_compute[request] else 0.0
            else:
                batch += 1.0
                context += prompt_tokens[request] + made[request]
                sampled += 1.0
        groups = step_groups(model, tokens, pairs, keys, batch, context, sampled)
        duration = 0.0
        for seconds in groups:
            duration += float(seconds)
        clock += duration
        busy_s += duration
        steps += 1
        prefilled += tokens
        running_s[running_count] += duration
        decoding_s[int(batch)] += duration
        held_token_s += duration * (pool_tokens - free)

        # --- what it brought
        kept = 0
        for place in range(running_count):
            request = running[place]
            done = False
            if to_compute[request] > 0:
                to_compute[request] -= chunk[place]
                cached[request] += chunk[place]
            if to_compute[request] == 0:
                made[request] += 1.0
                if made[request] == 1.0:
                    first_s[request] = clock
                if made[request] >= output_tokens[request]:
                    last_s[request] = clock
                    free += claimed[request]
                    claimed[request] = 0.0
                    finished += 1
                    done = True
            if not done:
                running[kept] = request
                kept += 1
        running_count = kept
    times = (first_s, last_s, running_s, decoding_s)
    return (*times, busy_s, held_token_s, prefilled, preemptions, steps)


@cache
def compiled_run():
    """Return :func:`run` compiled: same code, with the step formula compiled beside it."""
    from numba import njit

    helpers = {
        "experts_touched": njit(step_time.experts_touched),
        "padded_rows": njit(step_time.padded_rows),
    }
    formula = types.FunctionType(step_groups.__code__, {**vars(step_time), **helpers})
    copy = types.FunctionType(run.__code__, {**globals(), "step_groups": njit(formula)})
    return njit(copy)


@dataclass(frozen=True)
class Served:
    """What became of the requests, in order of the arrays given; times [s]."""

    arrival_s: np.ndarray
    output_tokens: np.ndarray
    first_s: np.ndarray
    last_s: np.ndarray
    running_s: np.ndarray  #: time with 0, 1, 2 ... requests running
    decoding_s: np.ndarray  #: time with 0, 1, 2 ... sequences decoding
    busy_s: float
    held_token_s: float
    prefilled_tokens: float
    preemptions: int
    steps: int

    @property
    def ttft_s(self):
        return self.first_s - self.arrival_s

    @property
    def e2e_s(self):
        return self.last_s - self.arrival_s

    @property
    def tpot_s(self):
        steps = self.output_tokens - 1
        return np.where(steps > 0, (self.last_s - self.first_s) / np.maximum(steps, 1), np.nan)

    @property
    def mean_running(self):
        return float(self.running_s @ np.arange(self.running_s.size) / self.running_s.sum())

    @property
    def mean_decoding(self):
        return float(self.decoding_s @ np.arange(self.decoding_s.size) / self.decoding_s.sum())


def serve(
    model: StepModel,
    arrival_s,
    prompt_tokens,
    output_tokens,
    hit_tokens,
    before_prefill_s,
    pool_tokens,
    token_budget=8192,
    max_running_requests=256,
    fixed_state_tokens=0.0,
    reserve_output=False,
    compiled=True,
) -> Served:
    """Serve requests that arrive at given times."""
    engine = compiled_run() if compiled else run
    arrays = [
        np.asarray(a, dtype=float)
        for a in (arrival_s, before_prefill_s, prompt_tokens, output_tokens, hit_tokens)
    ]
    if ((arrays[2] + arrays[3]) > pool_tokens - fixed_state_tokens).any():
        raise ValueError("a request is longer than the pool")
    if (arrays[4] >= arrays[2]).any():
        raise ValueError("a prompt needs a token to compute")
    result = engine(
        model,
        *arrays,
        float(pool_tokens),
        float(fixed_state_tokens),
        float(token_budget),
        int(max_running_requests),
        reserve_output,
    )
    return Served(arrays[0], arrays[3], *result)


def draw_rows(random, mix, count):
    """Requests in random order, each as often as any other where that divides up.

    Independent draws would make heavy-tailed mixes differ from one seed to the next.
    """
    size = mix.prompt_tokens.size
    whole = [random.permutation(size) for _ in range(count // size)]
    rest = random.choice(size, count % size, replace=False)
    return np.concatenate([*whole, rest])


def serve_poisson(model, mix, rate_rps, count, seed, pool_tokens, **engine) -> tuple:
    """Serve ``count`` requests of a mix at Poisson times; also which ones they are."""
    random = np.random.default_rng(seed)
    rows = draw_rows(random, mix, count)
    arrival = np.cumsum(random.exponential(1.0 / rate_rps, count))
    served = serve(
        model,
        arrival,
        mix.prompt_tokens[rows],
        mix.output_tokens[rows],
        mix.hit_tokens[rows],
        mix.before_prefill_s[rows],
        pool_tokens,
        **engine,
    )
    return rows, served


def saturation_rps(model, mix, rate_rps, count, seed, pool_tokens, **engine) -> float:
    """Completions per second of an engine with a backlog, at an arrival rate above what it bears.

    The backlog builds up from Poisson arrivals: requests of one length that all start together
    would stay in lockstep for ever.
    """
    random = np.random.default_rng(seed)
    rows = draw_rows(random, mix, count)
    arrival = np.cumsum(random.exponential(1.0 / rate_rps, count))
    served = serve(
        model,
        arrival,
        mix.prompt_tokens[rows],
        mix.output_tokens[rows],
        mix.hit_tokens[rows],
        np.zeros(count),
        pool_tokens,
        **engine,
    )
    seen = (served.last_s > 0.2 * arrival[-1]) & (served.last_s <= arrival[-1])
    return float(seen.sum() / (0.8 * arrival[-1]))
