"""Mutated trace files: small files of every format, damaged at random, and an oracle.

:func:`check` writes one mutated file and demands that it either loads right or raises
``TraceError`` naming the file (and, for formats of lines, the line).
"""

from __future__ import annotations

import gzip
import json
import random
import signal
from pathlib import Path

import numpy as np
import zstandard

from smetric_model.errors import SpecError, TraceError
from smetric_model.workload import (
    dispatch_balance,
    hit_curve,
    infer_sessions,
    load_trace,
    origin_shares,
    reuse_origin,
    session_table,
    turn_table,
    with_poisson_starts,
    working_set,
    write_trace,
)
from smetric_model.workload.reference import reused_blocks
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.summary import summarise

SECONDS = 20
HUGE = [
    10**9,
    10**12,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
    1e308,
    -1,
    -(2**63),
    0,
    0.5,
    "NaN",
]
WRONG = [None, True, "", "7", [], {}, [[]], {"a": 1}, 1.5, -3, "x" * 300]


def _paths(rng: random.Random, count: int) -> list[list[int]]:
    paths: list[list[int]] = []
    fresh = 0
    for _ in range(count):
        base = rng.choice(paths)[: rng.randint(0, 9)] if paths and rng.random() < 0.7 else []
        length = rng.randint(1, 6)
        paths.append(base + list(range(fresh, fresh + length)))
        fresh += length
    return paths


def base_rows(name: str, rng: random.Random) -> list[str]:
    """Lines of a small valid file."""
    paths = _paths(rng, rng.randint(2, 14))
    rows: list[object] = []
    if name == "mooncake":
        for k, path in enumerate(paths):
            rows.append(
                {
                    "timestamp": 3000 * (k // 2),
                    "input_length": 512 * len(path) - rng.randint(0, 511),
                    "output_length": rng.randint(0, 900),
                    "hash_ids": path,
                }
            )
    elif name == "tair":
        for k, path in enumerate(paths):
            rows.append(
                {
                    "timestamp": 1780722000040.479 + 37.5 * k,
                    "input_length": 256 * len(path),
                    "output_length": 1,
                    "block_ids": [2**62 + block for block in path],
                }
            )
    elif name == "bailian":
        for k, path in enumerate(paths):
            rows.append(
                {
                    "chat_id": k,
                    "parent_chat_id": rng.choice([-1, k - 1, rng.randint(-1, 20)]),
                    "timestamp": round(0.125 * k, 3),
                    "input_length": 16 * len(path),
                    "output_length": rng.randint(1, 900),
                    "type": "text",
                    "turn": rng.randint(1, 3),
                    "hash_ids": path,
                }
            )
    elif name == "weka":
        for start in range(0, len(paths), 5):
            requests: list[dict[str, object]] = [
                {
                    "t": 7.0 * k,
                    "type": rng.choice("ns"),
                    "model": "opus",
                    "in": 64 * len(path) + rng.randint(0, 63),
                    "out": rng.randint(0, 900),
                    "hash_ids": path,
                    "api_time": 2.5,
                }
                for k, path in enumerate(paths[start : start + 5])
            ]
            if rng.random() < 0.4:
                requests.append({"t": 50.25, "type": "subagent", "requests": [dict(requests[0])]})
            rows.append({"id": f"s{start}", "block_size": 64, "requests": requests})
    elif name == "lmcache":
        for k, path in enumerate(paths):
            rows.append(
                {
                    "timestamp": 1760428436442742 + 10**6 * rng.randint(0, 50),
                    "input": "".join(f"{block:>64}" for block in path),
                    "output": "done",
                    "session_id": str(k % 3),
                }
            )
    elif name == "azure":
        rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        rows += [
            f"2023-11-16 18:17:{k:02d}.9799600,{rng.randint(1, 9000)},{rng.randint(1, 900)}"
            for k in range(len(paths))
        ]
    elif name == "servegen":
        rows = [f"{600 * k},{rng.random():.3f},1.2,Gamma,0.7,2.0" for k in range(len(paths) // 3)]
        rows += [f"{600 * len(paths)},0,0,,0,0"]
    elif name == "smetric":
        rows = [{"smetric_trace": 1, "block_tokens": 32, "session_clock": "shared"}]
        for k, path in enumerate(paths):
            rows.append(
                {
                    "arrival_s": 0.5 * k,
                    "session_id": f"s{k % 3}",
                    "prompt_tokens": 32 * len(path),
                    "output_tokens": 9,
                    "block_first": [path[0], *path[1:]],
                    "block_count": [1] * len(path),
                }
            )
    return [row if isinstance(row, str) else json.dumps(row) for row in rows]


FORMATS = ["mooncake", "tair", "bailian", "weka", "lmcache", "azure", "servegen", "smetric"]


def _change_value(value: object, rng: random.Random, depth: int = 0) -> object:
    """Replace one value somewhere inside a parsed line."""
    if isinstance(value, dict) and value and (depth == 0 or rng.random() < 0.8):
        key = rng.choice(list(value))
        action = rng.random()
        changed = dict(value)
        if action < 0.15:
            del changed[key]
        elif action < 0.25:
            changed[rng.choice(["extra", "t", "timestamp"])] = rng.choice(WRONG)
        else:
            changed[key] = _change_value(value[key], rng, depth + 1)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = rng.randrange(len(value))
        return [*value[:index], _change_value(value[index], rng, depth + 1), *value[index + 1 :]]
    return rng.choice(HUGE + WRONG)


def mutate(rows: list[str], rng: random.Random) -> bytes:
    """Damage the lines of a file in one to three ways."""
    for _ in range(rng.randint(1, 3)):
        if not rows:
            break
        kind = rng.randrange(7)
        index = rng.randrange(len(rows))
        if kind == 0:
            rng.shuffle(rows)
        elif kind == 1:
            rows.insert(index, rng.choice([rows[index], "", "\0", "{}", "null", "[" * 5000]))
        elif kind == 2:
            other = base_rows(rng.choice(FORMATS), rng)
            rows.insert(index, rng.choice(other))
        elif kind == 3:
            del rows[index]
        elif kind in (4, 5):
            try:
                changed = _change_value(json.loads(rows[index]), rng)
            except (ValueError, RecursionError):
                fields = rows[index].split(",")
                fields[rng.randrange(len(fields))] = str(rng.choice(HUGE + WRONG))
                rows[index] = ",".join(fields)
            else:
                rows[index] = json.dumps(changed)
        else:
            rows[index] = rows[index][: rng.randrange(len(rows[index]) + 1)]
    return rng.choice(["\n", "\n", "\r\n"]).join(rows).encode("utf-8", "replace")


def damage(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut or repeat bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not out:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(4)
        if kind < 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at:]
        else:
            out[at:at] = out[at : at + rng.randint(1, 40)]
    return bytes(out)


def make(seed: int, folder: Path) -> tuple[Path, str]:
    """Write mutated file number ``seed``."""
    rng = random.Random(seed)
    name = rng.choice([*FORMATS, "parquet"])
    if name == "parquet":
        source = folder / f"{seed}.jsonl"
        source.write_text("\n".join(base_rows("smetric", rng)))
        path = folder / f"{seed}.parquet"
        write_trace(load_trace(source), path)
        source.unlink()
        path.write_bytes(damage(path.read_bytes(), rng))
        return path, name
    path = folder / (f"{seed}-trace.csv" if name == "servegen" else f"{seed}.trace")
    data = mutate(base_rows(name, rng), rng)
    if rng.random() < 0.3:
        data = damage(data, rng)
    container = rng.random()
    if container < 0.15:
        data = gzip.compress(data, 1)
    elif container < 0.3:
        data = zstandard.compress(data)
    if container < 0.3 and rng.random() < 0.4:
        data = damage(data, rng)
    path.write_bytes(data)
    if name == "servegen":
        table = '{"0": {"input_tokens": "{224: 0.25, 90: 0.75}", "output_tokens": "{10: 1.0}"}}'
        text = table.encode()
        if rng.random() < 0.3:
            text = damage(text, rng)
        path.with_name(f"{seed}-dataset.json").write_bytes(text)
    return path, name


class TooSlowError(Exception):
    """A file took longer than :data:`SECONDS`."""


def _alarm(*_: object) -> None:
    raise TooSlowError


def _invariants(trace) -> None:
    arrival_s, prompt = trace.column("arrival_s"), trace.column("prompt_tokens")
    rows = np.arange(len(trace))
    assert len(trace) > 0
    assert np.isfinite(arrival_s).all()
    assert (np.diff(arrival_s) >= 0).all()
    assert ((prompt >= 1) & (prompt <= 10**9)).all()
    assert ((trace.column("output_tokens") >= 0) & (trace.column("output_tokens") <= 10**9)).all()
    assert (trace.column("parent") < rows).all()
    assert (trace.column("request_id") == rows).all()
    think = trace.column("think_time_s")
    assert (np.isnan(think) | (think >= 0)).all()
    summarise(trace)
    if trace.tree is not None:
        most = -(-prompt // trace.block_tokens)
        assert (trace.tree.request_blocks <= most).all()
        _analyses(trace)


def _analyses(trace) -> None:
    """Every analysis must stand what loads, or say which value is out of range."""
    reused = ideal_reuse(trace).sum()
    trace = infer_sessions(trace).trace if trace.sessions is None else trace
    origin = reuse_origin(trace)
    assert origin.iloc[:, :3].to_numpy().sum() == reused
    origin_shares(origin, int(trace.column("prompt_tokens").sum()))
    assert len(turn_table(trace)) == len(trace)
    assert session_table(trace)["turns"].sum() == len(trace)
    if trace.session_clock != "shared":
        trace = with_poisson_starts(trace, 1.0)
    curve = hit_curve(trace)
    assert (np.diff(curve["lru_hit_ratio"]) > -1e-9).all()
    assert (np.diff(curve["optimal_hit_ratio"]) > -1e-9).all()
    for analysis in (working_set, lambda t: dispatch_balance(t, 2)):
        try:
            analysis(trace)
        except SpecError as error:
            assert "windows" in str(error)  # noqa: PT017


def _oracle(trace, path: Path) -> None:
    """Read Mooncake, tair, Bailian and Weka files again, slowly, and compare."""
    if trace.format not in ("mooncake", "tair", "bailian", "weka"):
        return
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    elif raw[:4] == b"\x28\xb5\x2f\xfd":
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(raw)
    key = {"tair": "block_ids"}.get(trace.format, "hash_ids")
    requests = []
    for document, line in enumerate(raw.split(b"\n")):
        if not line.strip().strip(b"\xef\xbb\xbf"):
            continue
        row = json.loads(line)
        if trace.format == "weka":
            stack = list(row["requests"])
            while stack:
                item = stack.pop()
                if item.get("type") == "subagent":
                    stack.extend(item.get("requests") or [])
                else:
                    scope = document if row.get("hash_id_scope") != "global" else None
                    ids = item.get("hash_ids") or []
                    requests.append((item["in"], [(scope, item.get("model"), b) for b in ids]))
        else:
            requests.append((row["input_length"], row.get(key) or []))
    requests = [(int(prompt), ids) for prompt, ids in requests if prompt > 0]
    assert sorted(prompt for prompt, _ in requests) == sorted(trace.column("prompt_tokens"))
    if trace.tree is None:
        return
    # The order of arrival is the trace's: total reuse of whole blocks does not depend on it.
    size = trace.block_tokens
    paths = [ids[: -(-prompt // size)] for prompt, ids in requests]
    distinct = sum(map(len, paths)) - sum(reused_blocks(paths))
    assert trace.tree.distinct_blocks == distinct
    blocks = np.minimum(-(-ideal_reuse(trace) // size), trace.tree.request_blocks)
    assert trace.tree.request_blocks.sum() - blocks.sum() == distinct


def check(seed: int, folder: Path) -> str:
    """Load mutated file ``seed``; returns what happened, raises where that is wrong."""
    path, name = make(seed, folder)
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        trace = load_trace(path)
        _invariants(trace)
    except TraceError as wrong:
        error = wrong
    else:
        error = None
    try:
        # What can be read of it must be sound, too.
        _invariants(load_trace(path, on_error="skip"))
    except TraceError:
        assert error is not None, f"{seed}: skipping broken lines made it worse"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if error is not None:
        assert error.path is not None, f"{seed}: an error without a file: {error}"
        assert len(str(error)) < 2000
        where = "line" if error.line is not None else "file"
        return f"{name}: TraceError naming the {where}"
    _oracle(trace, path)
    return f"{name}: loaded"
