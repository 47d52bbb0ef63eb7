"""Random traces for property tests: paths that share prefixes, rewind and branch."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import LoadReport, Trace

# A few ids only, so that equal content recurs at several positions and paths meet by chance.
_short = st.lists(st.integers(0, 3), max_size=12)


@st.composite
def block_paths(draw, max_requests: int = 25):
    """Paths of which many extend, cut or repeat an earlier one."""
    paths: list[list[int]] = []
    for _ in range(draw(st.integers(1, max_requests))):
        kind = draw(st.sampled_from(["fresh", "extend", "cut", "repeat"]))
        base = draw(st.sampled_from(paths)) if paths and kind != "fresh" else []
        if kind == "cut":
            base = base[: draw(st.integers(0, len(base)))]
        tail = [] if kind == "repeat" else draw(_short)
        if draw(st.booleans()) and kind != "repeat":  # a long run of consecutive ids
            first = draw(st.integers(0, 50))
            tail = tail + list(range(first, first + draw(st.integers(1, 20))))
        paths.append(base + tail)
    return paths


def trace_of(
    paths,
    block_tokens: int = 4,
    prompt_tokens=None,
    sessions=None,
    arrival_s=None,
    e2e_s=None,
    batch: int = 7,
) -> Trace:
    """Build a trace from block ids; batches exercise the builder's growth."""
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    for begin in range(0, len(paths), batch):
        part = paths[begin : begin + batch]
        offsets = np.concatenate(([0], np.cumsum([len(path) for path in part])))
        flat = np.array([block for path in part for block in path], dtype=np.int64)
        builder.add_ids([root] * len(part), flat, offsets)
    count = len(paths)
    if prompt_tokens is None:
        prompt_tokens = [max(1, len(path) * block_tokens) for path in paths]
    sessions = [-1] * count if sessions is None else list(sessions)
    turns, parents, last = [], [], {}
    for row, session in enumerate(sessions):
        turns.append(-1 if session < 0 else sum(s == session for s in sessions[:row]))
        parents.append(last.get(session, -1) if session >= 0 else -1)
        last[session] = row
    requests = pd.DataFrame(
        {
            "request_id": np.arange(count),
            "session_id": np.array(sessions, dtype=np.int64),
            "turn": np.array(turns, dtype=np.int64),
            "parent": np.array(parents, dtype=np.int64),
            "arrival_s": np.arange(count, dtype=float) if arrival_s is None else arrival_s,
            "prompt_tokens": np.array(prompt_tokens, dtype=np.int64),
            "output_tokens": np.ones(count, dtype=np.int64),
            "think_time_s": np.full(count, np.nan),
            "e2e_s": np.full(count, np.nan) if e2e_s is None else e2e_s,
            "trigger": pd.Categorical([None] * count, categories=[]),
            "model": pd.Categorical([None] * count, categories=[]),
            "source_line": np.full(count, -1),
        }
    )
    return Trace(
        requests=requests,
        tree=builder.build(),
        block_tokens=block_tokens,
        session_clock="shared",
        report=LoadReport(),
        source="test",
        format="test",
    )
