"""Compiled runs: decode steps in a row, in closed form, and what they produce."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._heaps import set_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import overlap
from smetric_model.simulate._state import STEPS
from smetric_model.simulate.steps import run_ticks

__all__ = [
    "credit",
    "cut_run",
    "next_edge",
    "settle_run",
    "steps_by",
    "ticks_of",
    "wait_ticks",
]


@part
def ticks_of(p, instance, steps):
    s, w = tables(p)
    batch = s.instance[instance].decoding_count
    row = w.instance[instance].decode + batch
    return run_ticks(
        w.decode[row].base,
        w.decode[row].per_token,
        w.decode[row].least,
        batch,
        s.instance[instance].context,
        steps,
    )


@part
def steps_by(p, instance, tick):
    """First step of the run that ends at ``tick`` or later; the last one if none does."""
    s, _ = tables(p)
    low, high = 1, s.instance[instance].run_steps
    left = tick - s.instance[instance].step_start
    while low < high:
        middle = (low + high) >> 1
        if ticks_of(p, instance, middle) >= left:
            high = middle
        else:
            low = middle + 1
    return low


@part
def wait_ticks(p, instance, now):
    """How long a request that comes now waits for decode steps under way to be scheduled."""
    s, w = tables(p)
    batch = s.instance[instance].decoding_count
    kind = w.instance[instance].kind
    if batch == 0 or w.model[kind].wait_steps <= 0.0:
        return 0
    context = s.instance[instance].context
    if s.instance[instance].step_start >= 0 and s.instance[instance].step_is_run:
        context += batch * (steps_by(p, instance, now + 1) - 1)
    row = w.instance[instance].decode + batch
    step = run_ticks(
        w.decode[row].base,
        w.decode[row].per_token,
        w.decode[row].least,
        batch,
        context,
        1,
    )
    return int(w.model[kind].wait_steps * float(step))


@part
def cut_run(p, instance, now):
    """End a run with the step in progress; one that ends right now has ended already."""
    s, _ = tables(p)
    if not s.instance[instance].step_is_run or s.instance[instance].run_steps == 1:
        return
    steps = steps_by(p, instance, now + 1)
    if steps < s.instance[instance].run_steps:
        s.instance[instance].run_steps = steps
        tick = s.instance[instance].step_start + ticks_of(p, instance, steps)
        set_timer(p, instance, tick, instance)


@part
def next_edge(p, now):
    """Next moment at which a bin, or the window, begins or ends; −1 after the last."""
    _, w = tables(p)
    if now < w.window.start:
        return w.window.start
    if now >= w.window.end:
        return -1
    edge = w.window.start + ((now - w.window.start) // w.window.bin_ticks + 1) * w.window.bin_ticks
    return min(edge, w.window.end)


@part
def credit(p, table, instance, now, tokens):
    _, w = tables(p)
    if w.window.start <= now < w.window.end:
        table[instance, (now - w.window.start) // w.window.bin_ticks] += tokens


@part
def settle_run(p, instance, now):
    """Take in the steps of a run that are done: what remains of it is the step in progress."""
    s, _ = tables(p)
    if (
        s.instance[instance].step_start < 0
        or not s.instance[instance].step_is_run
        or s.instance[instance].run_steps == 1
    ):
        return
    done = steps_by(p, instance, now + 1) - 1
    if done > 0:
        start, batch = s.instance[instance].step_start, s.instance[instance].decoding_count
        later = start + ticks_of(p, instance, done)
        s.instance[instance].busy_ticks += overlap(p, start, later)
        s.instance[instance].step_start = later
        s.instance[instance].decode_steps += done
        s.instance[instance].context += batch * done
        s.count[STEPS] += done
        credit(p, s.generated_tokens, instance, start, batch * done)
    s.instance[instance].run_steps = 1
    tick = s.instance[instance].step_start + ticks_of(p, instance, 1)
    set_timer(p, instance, tick, instance)
