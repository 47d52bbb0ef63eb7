"""Write ``data/traces/agents-small.parquet``: a small agent workload of our own making.

Not fitted to any trace; its parameters are round numbers of the size that public agent traces show
(docs/traces.md), so that ``make plan`` has something to run on.  Equal seeds give equal files.

    python tools/make_agents_small.py [--seed 0] [--out data/traces/agents-small.parquet]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from smetric_model.workload.formats._native import write
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import LoadReport, Trace

BLOCK_TOKENS = 64
SESSIONS = 260
SPAN_S = 3600.0
#: three agent frameworks: share of sessions, tokens of system prompt and tool descriptions
FRAMEWORKS = ((0.6, 14_016), (0.3, 8_512), (0.1, 5_120))
MEAN_TURNS = 16.0
FIRST_PROMPT_TOKENS = (1_500.0, 1.0)  # median, sigma of a lognormal
NEW_TOKENS = (700.0, 1.2)  # tool results and user messages on later turns
OUTPUT_TOKENS = (220.0, 1.0)
USER_RATIO = 0.15  # of later turns; the others are sent by the agent
AGENT_THINK_S = (2.5, 1.0)
USER_THINK_S = (60.0, 1.2)
REWIND_RATIO = 0.01  # a later turn drops the end of its history
COMPACTION_RATIO = 0.01  # a later turn starts again from a summary
COMPACTION_TOKENS = 4_000
MAX_PROMPT_TOKENS = 200_000
#: stated service time: prefill of new tokens, then decoding
SECONDS_PER_NEW_TOKEN = 1e-4
SECONDS_PER_OUTPUT_TOKEN = 0.025


class Blocks:
    """Block runs of one session's history, addressed by tokens; fresh blocks get fresh ids."""

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.runs: list[tuple[int, int]] = []

    def cut(self, blocks: int) -> None:
        """Keep the first ``blocks`` blocks."""
        kept: list[tuple[int, int]] = []
        for first, count in self.runs:
            if blocks <= 0:
                break
            kept.append((first, min(count, blocks)))
            blocks -= count
        self.runs = kept

    def grow(self, blocks: int) -> None:
        """Lengthen to ``blocks`` blocks."""
        missing = blocks - sum(count for _, count in self.runs)
        if missing > 0:
            self.runs.append((self.next_id, missing))
            self.next_id += missing


def make(seed: int) -> Trace:
    """Return the trace for one seed."""
    rng = np.random.default_rng(seed)

    def lognormal(median_sigma: tuple[float, float]) -> float:
        median, sigma = median_sigma
        return float(median * np.exp(sigma * rng.standard_normal()))

    next_id = 0
    system_runs = []
    for _, tokens in FRAMEWORKS:
        system_runs.append((next_id, tokens // BLOCK_TOKENS))
        next_id += tokens // BLOCK_TOKENS

    rows: list[dict[str, object]] = []
    paths: list[list[tuple[int, int]]] = []
    starts = np.sort(rng.uniform(0, SPAN_S, SESSIONS))
    for session, start in enumerate(starts):
        framework = int(rng.choice(len(FRAMEWORKS), p=[share for share, _ in FRAMEWORKS]))
        system_tokens = FRAMEWORKS[framework][1]
        blocks = Blocks(next_id)
        blocks.runs = [system_runs[framework]]
        history = system_tokens
        arrival, think, trigger = float(start), float("nan"), "user"
        context = history + max(1, round(lognormal(FIRST_PROMPT_TOKENS)))
        turns = int(rng.geometric(1 / MEAN_TURNS))
        for turn in range(turns):
            if context > MAX_PROMPT_TOKENS:
                break
            output = max(1, round(lognormal(OUTPUT_TOKENS)))
            blocks.grow(context // BLOCK_TOKENS)
            service = (context - history) * SECONDS_PER_NEW_TOKEN + (
                output * SECONDS_PER_OUTPUT_TOKEN
            )
            rows.append(
                {
                    "session_id": session,
                    "turn": turn,
                    "arrival_s": round(arrival, 3),
                    "prompt_tokens": context,
                    "output_tokens": output,
                    "think_time_s": think,
                    "e2e_s": round(service, 3),
                    "trigger": trigger,
                }
            )
            paths.append(list(blocks.runs))
            by_user = rng.random() < USER_RATIO
            think = round(lognormal(USER_THINK_S if by_user else AGENT_THINK_S), 3)
            trigger = "user" if by_user else "agent"
            arrival += round(service, 3) + think
            history = context
            event = rng.random()
            if event < COMPACTION_RATIO and context > system_tokens + 2 * COMPACTION_TOKENS:
                history = system_tokens
                context = system_tokens + COMPACTION_TOKENS
                trigger = "compaction"
            elif event < COMPACTION_RATIO + REWIND_RATIO:
                history = max(system_tokens, round(context * rng.uniform(0.5, 1.0)))
                context = history
            else:
                context += output  # the answer becomes part of the next prompt
            blocks.cut(history // BLOCK_TOKENS)
            context += max(1, round(lognormal(NEW_TOKENS)))
        next_id = blocks.next_id

    frame = pd.DataFrame(rows)
    order = np.argsort(frame["arrival_s"].to_numpy(), kind="stable")
    frame = frame.iloc[order].reset_index(drop=True)
    builder = PrefixTreeBuilder()
    chosen = [paths[index] for index in order]
    offsets = np.concatenate(([0], np.cumsum([len(path) for path in chosen])))
    flat = np.array([run for path in chosen for run in path], dtype=np.int64)
    builder.add_runs(np.full(len(chosen), builder.root(None)), flat[:, 0], flat[:, 1], offsets)

    count = len(frame)
    turn = frame.groupby("session_id").cumcount()
    rows_of = np.arange(count)
    previous = pd.Series(rows_of).groupby(frame["session_id"]).shift(1).fillna(-1)
    requests = pd.DataFrame(
        {
            "request_id": rows_of,
            "session_id": frame["session_id"],
            "turn": turn,
            "parent": previous.astype(np.int64),
            "arrival_s": frame["arrival_s"],
            "prompt_tokens": frame["prompt_tokens"],
            "output_tokens": frame["output_tokens"],
            "think_time_s": frame["think_time_s"],
            "e2e_s": frame["e2e_s"],
            "trigger": pd.Categorical(frame["trigger"]),
            "model": pd.Categorical([None] * count, categories=[]),
            "source_line": np.full(count, -1),
        }
    )
    return Trace(
        requests=requests,
        tree=builder.build(),
        block_tokens=BLOCK_TOKENS,
        session_clock="shared",
        report=LoadReport(),
        source=f"tools/make_agents_small.py --seed {seed}",
        format="synthetic",
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("data/traces/agents-small.parquet"))
    options = parser.parse_args()
    write(make(options.seed), options.out)


if __name__ == "__main__":
    main()
