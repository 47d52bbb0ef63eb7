"""Tree, reuse, origin and LRU curve of a million requests of about 60k tokens.

    python benchmarks/trace_scale.py [--requests 1000000] [--tail floor|ceil]

The requests are drawn as runs of block ids, a batch at a time; no list of all block ids exists.
Then a smaller trace of the same kind is done block by block, compiled and in plain Python, for the
ratio.  Every session is a system prompt (one of three) and a history that grows, is rewound (2 % of
turns) or compacted (1 %).  ``--tail ceil`` gives each prompt a partly filled last block of its own,
as Mooncake has; the tree then parts at every turn.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pandas as pd
from numba import njit

from smetric_model.workload.curves import lru_curve
from smetric_model.workload.origin import origin_shares, reuse_origin
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.reference import prefixes
from smetric_model.workload.reuse import last_touches
from smetric_model.workload.trace import LoadReport, Trace

BLOCK_TOKENS = 16
MEAN_TURNS = 33
SYSTEM_BLOCKS = np.array([900, 600, 300])
BLOCKS_PER_TURN = 120
BATCH = 20_000


@njit(cache=True)
def draw(session, framework, events, sizes, state_first, state_count, runs, next_id, ceil, out):
    """Runs of a batch of requests, given each session's history so far."""
    offsets, first, count, blocks = out
    at = 0
    for index in range(session.size):
        offsets[index] = at
        s = session[index]
        kind = events[index]
        if kind < 0.01:
            runs[s] = 0  # compaction
        elif kind < 0.03 and runs[s] > 2:
            runs[s] -= 2  # rewind
        elif runs[s] == state_first.shape[1]:
            runs[s] = 0
        state_first[s, runs[s]] = next_id
        state_count[s, runs[s]] = sizes[index]
        next_id += sizes[index]
        runs[s] += 1
        first[at] = 10_000 * framework[s]
        count[at] = SYSTEM_BLOCKS[framework[s]]
        total = count[at]
        at += 1
        for run in range(runs[s]):
            first[at] = state_first[s, run]
            count[at] = state_count[s, run]
            total += count[at]
            at += 1
        if ceil:
            first[at] = next_id  # the partly filled block is this request's alone
            count[at] = 1
            next_id += 1
            total += 1
            at += 1
        blocks[index] = total
    offsets[session.size] = at
    return next_id


def make(requests: int, seed: int, ceil: bool) -> tuple[Trace, dict[str, float], list]:
    rng = np.random.default_rng(seed)
    turns = rng.geometric(1 / MEAN_TURNS, max(1, requests // MEAN_TURNS * 2))
    turns = turns[: np.searchsorted(np.cumsum(turns), requests) + 1]
    session = np.repeat(np.arange(turns.size), turns)[:requests]
    start = np.cumsum(rng.exponential(0.3, turns.size))
    gaps = rng.exponential(20.0, session.size)
    within = np.cumsum(gaps)
    firsts = np.flatnonzero(np.diff(session, prepend=-1))
    arrival_s = start[session] + within - within[firsts][session]
    order = np.argsort(arrival_s, kind="stable")
    arrival_s, session = arrival_s[order], session[order]
    framework = rng.choice(3, turns.size, p=[0.6, 0.3, 0.1])
    width = 300
    state_first = np.zeros((turns.size, width), np.int64)
    state_count = np.zeros((turns.size, width), np.int32)
    runs = np.zeros(turns.size, np.int64)
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    next_id = 100_000
    blocks = np.empty(requests, np.int64)
    drawing = building = 0.0
    kept = []
    for begin in range(0, requests, BATCH):
        size = min(BATCH, requests - begin)
        tick = time.perf_counter()
        out = (
            np.empty(size + 1, np.int64),
            np.empty(size * (width + 2), np.int64),
            np.empty(size * (width + 2), np.int64),
            blocks[begin : begin + size],
        )
        events = rng.random(size)
        sizes = 1 + rng.geometric(1 / BLOCKS_PER_TURN, size)
        part = session[begin : begin + size]
        next_id = draw(
            part, framework, events, sizes, state_first, state_count, runs, next_id, ceil, out
        )
        used = out[0][-1]
        tock = time.perf_counter()
        builder.add_runs(np.full(size, root), out[1][:used], out[2][:used], out[0])
        building += time.perf_counter() - tock
        drawing += tock - tick
        if requests <= 20_000:
            kept.append((out[0], out[1][:used].copy(), out[2][:used].copy()))
    tick = time.perf_counter()
    tree = builder.build()
    building += time.perf_counter() - tick
    del builder
    unknown = np.full(requests, -1)
    tail = rng.integers(0, BLOCK_TOKENS, requests)
    prompt = blocks * BLOCK_TOKENS + (-tail if ceil else tail)
    frame = pd.DataFrame(
        {
            "request_id": np.arange(requests),
            "session_id": _by_arrival(session),
            "turn": unknown,
            "parent": unknown,
            "arrival_s": arrival_s,
            "prompt_tokens": prompt,
            "output_tokens": np.full(requests, 200),
            "think_time_s": np.nan,
            "e2e_s": np.nan,
            "trigger": pd.Categorical.from_codes(unknown, ["user"]),
            "model": pd.Categorical.from_codes(unknown, ["one"]),
            "source_line": unknown,
        }
    )
    trace = Trace(frame, tree, BLOCK_TOKENS, "shared", LoadReport(), "generated", "generated")
    return trace, {"draw": drawing, "tree": building}, kept


def _by_arrival(session):
    old, first = np.unique(session, return_index=True)
    rank = np.zeros(old.max() + 1, np.int64)
    rank[old[np.argsort(first)]] = np.arange(old.size)
    return rank[session]


def analyse(trace: Trace) -> tuple[dict[str, float], dict[str, float]]:
    seconds, figures = {}, {}
    tick = time.perf_counter()
    touches = last_touches(trace)
    prompt = int(trace.column("prompt_tokens").sum())
    figures["ideal_reuse_ratio"] = touches.tokens.sum() / prompt
    seconds["reuse"] = time.perf_counter() - tick
    tick = time.perf_counter()
    shares = origin_shares(reuse_origin(trace, touches=touches), prompt)["reuse_ratio"]
    figures.update({f"{name}_reuse_ratio": value for name, value in shares.items()})
    seconds["origin"] = time.perf_counter() - tick
    tick = time.perf_counter()
    curve = lru_curve(trace, touches)
    sizes = np.geomspace(BLOCK_TOKENS, max(curve.largest_useful_tokens, 32), 200)
    ratios = curve.hit_ratio(sizes)
    figures["lru_hit_ratio_10_million_tokens"] = float(curve.hit_ratio(1e7))
    assert (np.diff(ratios) > -1e-9).all()
    seconds["lru_curve"] = time.perf_counter() - tick
    figures["pieces_per_request"] = touches.request.size / len(trace)
    return seconds, figures


@njit(cache=True)
def block_by_block(ids, offsets, session, prompt, block_tokens, sums, histogram):
    """Reuse, own-session origin and LRU distances, one block at a time, compiled."""
    total = offsets[-1]
    size = 1
    while size < 2 * total:
        size *= 2
    key_parent = np.empty(size, np.int64)
    key_id = np.empty(size, np.int64)
    value = np.full(size, -1, np.int64)
    producer = np.empty(total, np.int64)
    position = np.full(total, -1, np.int64)
    fenwick = np.zeros(total + 1, np.int32)
    known = 0
    clock = 0
    live = 0
    path = np.empty((np.diff(offsets)).max(), np.int64)
    for request in range(offsets.size - 1):
        above = -1
        begin, end = offsets[request], offsets[request + 1]
        hit = True
        for index in range(begin, end):
            slot = np.int64(
                (np.uint64(above) * np.uint64(0x9E3779B97F4A7C15))
                ^ (np.uint64(ids[index]) * np.uint64(0xC2B2AE3D27D4EB4F))
            ) & (size - 1)
            while value[slot] >= 0 and (key_parent[slot] != above or key_id[slot] != ids[index]):
                slot = (slot + 1) & (size - 1)
            depth = index - begin
            if value[slot] < 0:
                key_parent[slot], key_id[slot], value[slot] = above, ids[index], known
                producer[known] = session[request]
                known += 1
                hit = False
            above = value[slot]
            path[depth] = above
            if hit:
                tokens = min((depth + 1) * block_tokens, prompt[request]) - depth * block_tokens
                sums[0] += tokens
                if producer[above] == session[request]:
                    sums[1] += tokens
                older = 0
                at = position[above] + 1
                while at > 0:
                    older += fenwick[at]
                    at -= at & -at
                histogram[live - older] += tokens  # blocks touched after it
        for depth in range(end - begin - 1, -1, -1):  # the leaf first, the root last
            block = path[depth]
            if position[block] >= 0:
                at = position[block] + 1
                while at <= total:
                    fenwick[at] -= 1
                    at += at & -at
            else:
                live += 1
            position[block] = clock
            at = clock + 1
            while at <= total:
                fenwick[at] += 1
                at += at & -at
            clock += 1


def compare(requests: int, ceil: bool) -> None:
    make(50, 9, ceil)
    trace, seconds, kept = make(requests, 7, ceil)
    fast, figures = analyse(trace)
    ours = seconds["tree"] + sum(fast.values())
    paths = []
    for offsets, first, count in kept:
        for index in range(offsets.size - 1):
            part = slice(offsets[index], offsets[index + 1])
            paths.append(
                np.concatenate(
                    [np.arange(f, f + c) for f, c in zip(first[part], count[part], strict=True)]
                )
            )
    ids = np.concatenate(paths)
    offsets = np.concatenate(([0], np.cumsum([path.size for path in paths])))
    session = trace.column("session_id")
    prompt = trace.column("prompt_tokens")
    few = 20
    for part in (few, requests):
        sums = np.zeros(2, np.int64)
        histogram = np.zeros(offsets[part] + 1, np.int64)
        tick = time.perf_counter()
        block_by_block(
            ids[: offsets[part]],
            offsets[: part + 1],
            session,
            prompt,
            BLOCK_TOKENS,
            sums,
            histogram,
        )
        compiled = time.perf_counter() - tick
    reuse = sums[0] / prompt.sum()
    assert abs(reuse - figures["ideal_reuse_ratio"]) < 1e-12
    assert abs(sums[1] / sums[0] - figures["intra_reuse_ratio"]) < 1e-12
    curve = lru_curve(trace)
    for blocks in np.geomspace(1, histogram.size, 50).astype(int):
        naive = histogram[:blocks].sum()
        assert abs(curve.hit_tokens(int(blocks) * BLOCK_TOKENS) - naive) < 1e-3 * BLOCK_TOKENS
    sample = [path.tolist() for path in paths[: requests // 10]]
    tick = time.perf_counter()
    held: set[int] = set()
    for path in prefixes(sample):
        for block in path:
            if block not in held:
                break
        held.update(path)
    plain = (time.perf_counter() - tick) * ids.size / sum(map(len, sample))
    print(
        f"same work on {requests:,} requests, {ids.size:,} blocks, equal results:\n"
        f"  segments {ours:.3f} s; block by block, compiled {compiled:.3f} s: "
        f"{compiled / ours:.0f} times as long\n"
        f"  block by block in Python, reuse alone {plain:.1f} s: {plain / ours:.0f} times as long"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--tail", choices=["floor", "ceil"], default="floor")
    parser.add_argument("--small", type=int, default=4_000, help="requests of the comparison")
    options = parser.parse_args()
    ceil = options.tail == "ceil"
    warm, _, _ = make(200, 1, ceil)
    analyse(warm)
    trace, seconds, _ = make(options.requests, 0, ceil)
    drawing = seconds.pop("draw")
    prompt = trace.column("prompt_tokens")
    print(
        f"{len(trace):,} requests, {trace.sessions:,} sessions, prompts of {prompt.mean():,.0f} "
        f"tokens on average ({int(trace.tree.request_blocks.sum()):,} block references), "
        f"{trace.tree.parent.size:,} segments"
    )
    more, figures = analyse(trace)
    seconds.update(more)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print("  ".join(f"{name} {value:.2f} s" for name, value in seconds.items()))
    print(f"in all {sum(seconds.values()):.1f} s (drawing {drawing:.1f} s more), {peak:.2f} GiB")
    print("  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    compare(options.small, ceil)


if __name__ == "__main__":
    main()
