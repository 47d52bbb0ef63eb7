"""Small trace files, written by the tests of the formats."""

from __future__ import annotations

import json


def write(path, rows, end="\n"):
    path.write_bytes(end.join(r if isinstance(r, str) else json.dumps(r) for r in rows).encode())
    return path


def notes(trace, action):
    return {entry.kind: entry.count for entry in trace.report if entry.action == action}


def mooncake(stamp, blocks, prompt=None, **more):
    prompt = 512 * len(blocks) if prompt is None else prompt
    row = {"timestamp": stamp, "input_length": prompt, "output_length": 5, "hash_ids": blocks}
    return row | more


ROWS = [mooncake(0, [0, 1, 2]), mooncake(3000, [0, 1, 3])]
