"""Read the table of published H20 measurements (third party; not part of this package).

Each row becomes seconds with the shape it was measured at, so that fits and
tests compare like with like.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from smetric_model.catalog.llm import get_llm
from smetric_model.errors import SpecError

__all__ = ["engine_rows", "kernel_rows", "read_measurements"]

_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COLUMNS = (
    "id",
    "model",
    "dtype",
    "gpu",
    "n_gpus",
    "engine",
    "batch",
    "input_len",
    "output_len",
    "metric",
    "value",
    "unit",
    "notes",
)


def read_measurements(path: str | Path) -> pd.DataFrame:
    """Read a measurements file.

    Parameters
    ----------
    path : str or Path
        CSV with at least the columns id, model, dtype, gpu, n_gpus, engine, batch, input_len,
        output_len, metric, value, unit, notes.

    Returns
    -------
    DataFrame
        Text as in the file, ``value`` as float.

    Raises
    ------
    SpecError
        If columns are missing, or a value is no number.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path}: no CSV of measurements ({str(error).strip()}); columns are"
            f" {', '.join(_COLUMNS)}"
        ) from None
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise SpecError(f"{path}: missing columns {', '.join(missing)}")
    value = pd.to_numeric(table["value"], errors="coerce")
    if value.isna().any():
        row = int(np.flatnonzero(value.isna())[0])
        raise SpecError(f"{path}:{row + 2}: value {table['value'][row]!r} is not a number")
    return table.assign(value=value)


def engine_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the whole-engine rows that a single request explains.

    Parameters
    ----------
    table : DataFrame
        From :func:`read_measurements`.

    Returns
    -------
    DataFrame
        Columns ``id``, ``engine`` (``vllm`` or ``sglang``), ``llm``, ``weight_dtype``, ``tp``,
        ``mode``, ``prompt_tokens``, ``hit_tokens``, ``hit_tier``, ``output_tokens``,
        ``concurrency``, ``quantity`` (``ttft_s``, ``tpot_s`` or ``e2e_s``), ``value_s``.
    """
    rows = []
    for row in table.itertuples(index=False):
        parsed = _vllm_row(row) or _sglang_row(row)
        if parsed:
            rows.append({"id": row.id, **parsed})
    return pd.DataFrame(rows)


def _vllm_row(row: object) -> dict[str, object] | None:
    name: str = row.id  # type: ignore[attr-defined]
    if not name.startswith("KVC-"):
        return None
    base: dict[str, object] = {
        "engine": "vllm",
        "llm": row.model,  # type: ignore[attr-defined]
        "weight_dtype": "bf16",
        "tp": 1,
        "mode": "graph",
        "hit_tokens": 0,
        "hit_tier": "local",
        "output_tokens": 1,
        "concurrency": 1,
        "quantity": "ttft_s",
        "value_s": row.value * _UNIT_S.get(row.unit, np.nan),  # type: ignore[attr-defined]
    }
    if match := re.fullmatch(r"KVC-(miss|gpuhit|cpuhit)-(\d+)", name):
        kind, tokens = match[1], int(match[2])
        tier = {"cpuhit": "dram"}.get(kind, "local")
        return base | {
            "mode": "eager",
            "prompt_tokens": tokens,
            "hit_tokens": 0 if kind == "miss" else tokens,
            "hit_tier": tier,
        }
    if match := re.fullmatch(r"KVC-mb1-D(\d+)-P(\d+)-ttft", name):
        return base | {"prompt_tokens": int(match[2]), "concurrency": int(match[1]) + 1}
    if match := re.fullmatch(r"KVC-int-D(\d+)-P(\d+)-r\d+", name):
        return base | {"prompt_tokens": int(match[2]), "concurrency": int(match[1]) + 1}
    if match := re.fullmatch(r"KVC-int-D(\d+)-base-r\d+", name):
        # "short context": its length is not stated
        return base | {
            "prompt_tokens": 512,
            "output_tokens": 256,
            "concurrency": int(match[1]),
            "quantity": "tpot_s",
        }
    return None


def _sglang_row(row: object) -> dict[str, object] | None:
    name: str = row.id  # type: ignore[attr-defined]
    if not name.startswith("QW-"):
        return None
    prompt, output = int(row.input_len), int(row.output_len)  # type: ignore[attr-defined]
    dtype: str = row.dtype  # type: ignore[attr-defined]
    return {
        "engine": "sglang",
        "llm": row.model,  # type: ignore[attr-defined]
        "weight_dtype": {"awq-int4": "int4", "gptq-int4": "int4"}.get(dtype, dtype),
        "tp": int(row.n_gpus),  # type: ignore[attr-defined]
        "mode": "graph",
        "prompt_tokens": prompt,
        "hit_tokens": 0,
        "hit_tier": "local",
        "output_tokens": output,
        "concurrency": 1,
        "quantity": "e2e_s",
        # the page gives (input + output) / time
        "value_s": (prompt + output) / row.value,  # type: ignore[attr-defined]
    }


def kernel_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the kernel tables: one row per kernel call.

    Parameters
    ----------
    table : DataFrame
        From :func:`read_measurements`.

    Returns
    -------
    DataFrame
        Columns ``id``, ``family`` (``gemm_fp8``, ``grouped_gemm_decode_fp8``,
        ``grouped_gemm_prefill_fp8``, ``attention_prefill``, ``attention_decode_bf16``,
        ``attention_decode_fp8``), ``value_s`` and the shape's columns (``nan`` where they do not
        apply): ``rows``, ``inputs``, ``outputs``, ``heads``, ``kv_heads``, ``head_dim``, ``batch``,
        ``context_tokens``, ``expert_params``, ``experts``, ``experts_per_token``, ``doubtful``
        (the source itself says that the row is an outlier).
    """
    patterns = (
        (r"ISK-gemm-(?P<rows>\d+)x(?P<inputs>\d+)x(?P<outputs>\d+)", "gemm_fp8"),
        (
            r"ISK-attnpre-(?P<heads>\d+)-(?P<kv_heads>\d+)-(?P<head_dim>\d+)-(?P<rows>\d+)",
            "attention_prefill",
        ),
        (
            r"ISK-attndec-(?P<heads>\d+)-(?P<kv_heads>\d+)-(?P<head_dim>\d+)-(?P<dtype>bf16|fp8)"
            r"-b(?P<batch>\d+)-s(?P<context_tokens>\d+)",
            "attention_decode",
        ),
        (
            r"ISK-gg-(?P<phase>decode|prefill)-(?P<llm>.+)-ep(?P<ep>\d+)-(?P<rows>\d+)",
            "grouped_gemm",
        ),
    )
    rows = []
    for row in table.itertuples(index=False):
        for pattern, family in patterns:
            match = re.fullmatch(pattern, str(row.id))
            if not match:
                continue
            shape: dict[str, object] = {
                key: int(text) for key, text in match.groupdict().items() if text.isdigit()
            }
            if family == "attention_decode":
                family = f"attention_decode_{match['dtype']}"
            if family == "grouped_gemm":
                family = f"grouped_gemm_{match['phase']}_fp8"
                moe = get_llm(f"Qwen3-{match['llm']}").moe
                assert moe is not None
                # the tables count the tokens of one GPU's share of the experts
                shape |= {
                    "expert_params": moe.expert_params,
                    "experts": moe.experts // int(match["ep"]),
                    "experts_per_token": moe.experts_per_token,
                }
            rows.append(
                {
                    "id": row.id,
                    "family": family,
                    "value_s": float(str(row.value)) * _UNIT_S[str(row.unit)],
                    "doubtful": "OUTLIER" in str(row.notes),
                    **shape,
                }
            )
            break
    return pd.DataFrame(rows)
