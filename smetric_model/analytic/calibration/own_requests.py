r"""Fit efficiencies to requests timed on engines of one's own.

The rows are few and of one's own choosing, so that they seldom identify every number.  Each number
therefore starts from the fitted ones of the catalog, is expected within a factor of about two of
them, and moves as far as the rows ask for: the mode of a posterior, whose spread says what the rows
have told.  A number they say nothing about stays where it was, and its provenance says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from smetric_model.analytic.calibration.engine_fit import EngineFit, Parameter, Prior, fit_rows
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.catalog.gpu import Gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm
from smetric_model.errors import SpecError

__all__ = ["fit_requests", "hardly_told", "is_requests", "read_requests"]

#: column -> what stands in for it where the file has none; None: it has to be there
_COLUMNS: dict[str, object] = {
    "engine": "vllm",
    "llm": None,
    "weight_dtype": "",
    "kv_dtype": "",
    "tp": 1,
    "mode": "graph",
    "prompt_tokens": None,
    "hit_tokens": 0,
    "hit_tier": "local",
    "output_tokens": 1,
    "concurrency": 1,
    "quantity": None,
    "value_s": None,
}
_CHOICES = {
    "engine": ("vllm", "sglang"),
    "mode": ("graph", "eager"),
    "hit_tier": ("local", "dram", "rdma"),
    "quantity": ("ttft_s", "tpot_s", "e2e_s"),
}
#: column -> its least value
_WHOLE = {"tp": 1, "prompt_tokens": 1, "hit_tokens": 0, "output_tokens": 1, "concurrency": 1}
#: expected of a row: 5 % of noise and form
_ROW_SD = 0.05
#: expected of a number, on its logarithm: a factor of two
_NUMBER_SD = float(np.log(2.0))
#: of which so much has to be gone for the rows to have told it
_TOLD = 0.8
_SAME = {"fp16": "bf16", "int8": "fp8", "fp32": "bf16"}
_BEST = {"compute": 0.97, "bandwidth": 0.95}


def is_requests(path: str | Path) -> bool:
    """Whether a file is a table of requests of one's own, by its header."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        names = {name.strip().strip('"') for name in file.readline().split(",")}
    return {"quantity", "value_s"} <= names


def read_requests(path: str | Path) -> pd.DataFrame:
    """Read requests timed on engines of one's own.

    Parameters
    ----------
    path : str or Path
        CSV with a header: ``llm`` (catalog name or ``config.json``), ``prompt_tokens``,
        ``quantity`` (``ttft_s``, ``tpot_s`` or ``e2e_s``) and ``value_s`` (what was measured
        [s]); and, where they are not as said, ``engine`` (vllm), ``weight_dtype`` and ``kv_dtype``
        (the checkpoint's), ``tp`` (1), ``mode`` (graph), ``hit_tokens`` (0), ``hit_tier``
        (local), ``output_tokens`` (1), ``concurrency`` (1: requests at the same time).  Lines
        alike but for ``value_s`` are repeats.  Other columns are ignored.

    Returns
    -------
    DataFrame
        These columns; ``id`` (line), ``group`` and ``weight``: repeats together weigh as a row.

    Raises
    ------
    SpecError
        If a column is missing, or a value is wrong (names file, line and what is allowed).
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: no CSV of requests ({str(error).strip()})") from None
    missing = [name for name, other in _COLUMNS.items() if other is None and name not in table]
    if missing:
        raise SpecError(f"{path}: missing columns {', '.join(missing)}")
    if table.empty:
        raise SpecError(f"{path}: no row under the header")
    rows = pd.DataFrame(
        {
            name: table[name].str.strip() if name in table else str(other)
            for name, other in _COLUMNS.items()
        },
        index=table.index,
    )
    for name, other in _COLUMNS.items():
        if other is not None:
            rows[name] = rows[name].where(rows[name] != "", str(other))
    for name, allowed in _CHOICES.items():
        _refuse(path, rows[name], ~rows[name].isin(allowed), f"one of {', '.join(allowed)}")
    for name in (*_WHOLE, "value_s"):
        value = pd.to_numeric(rows[name], errors="coerce")
        if name in _WHOLE:
            wrong = ~(value >= _WHOLE[name]) | (value % 1 != 0)
            _refuse(path, rows[name], wrong, f"a whole number of at least {_WHOLE[name]} is needed")
            value = value.astype(np.int64)
        else:
            wrong = ~(value > 0) | ~np.isfinite(value)
            _refuse(path, rows[name], wrong, "a time in seconds, more than 0, is needed")
        rows[name] = value
    beyond = rows["hit_tokens"] > rows["prompt_tokens"]
    _refuse(path, rows["hit_tokens"], beyond, "no more than prompt_tokens is possible")
    alone = (rows["quantity"] == "tpot_s") & (rows["output_tokens"] < 2)
    _refuse(path, rows["output_tokens"], alone, "tpot_s needs at least 2")
    alike = [name for name in _COLUMNS if name != "value_s"]
    group = rows.groupby(alike, sort=False).ngroup()
    many = group.groupby(group).transform("size")
    return rows.assign(
        id=[f"line {number + 2}" for number in range(len(rows))],
        group=[f"set-up {number + 1}" for number in group],
        weight=np.sqrt(1.0 / many),
    )


def _refuse(path: str | Path, column: pd.Series, wrong: pd.Series, allowed: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = column.iloc[row]
        shown = repr(value) if isinstance(value, str) else f"{value}"
        raise SpecError(f"{path}:{row + 2}: {column.name} = {shown}: {allowed}")


def fit_requests(
    table: pd.DataFrame,
    gpu: Gpu,
    leave_out: bool = True,
    progress: Callable[[str], None] | None = None,
) -> dict[str, EngineFit]:
    """Fit the efficiencies that requests of one's own can tell something about.

    Parameters
    ----------
    table : DataFrame
        From :func:`read_requests`.
    gpu : Gpu
        The GPU they were measured on.
    leave_out : bool
        Whether to refit without each set-up in turn.
    progress : callable, optional
        Told what is being fitted.

    Returns
    -------
    dict of str to EngineFit
        By engine; :func:`hardly_told` of a ``spread_ratio``: the rows do not tell that number.

    Raises
    ------
    SpecError
        If an LLM is not known, or does not run as stated.
    """
    return {
        str(engine): _fit(rows, gpu, str(engine), leave_out, progress)
        for engine, rows in table.groupby("engine", sort=False)
    }


def _fit(
    rows: pd.DataFrame,
    gpu: Gpu,
    engine: str,
    leave_out: bool,
    progress: Callable[[str], None] | None,
) -> EngineFit:
    rows = rows.reset_index(drop=True)
    instances = [_instance(row, gpu) for row in rows.itertuples(index=False)]
    # the checkpoint's own types, so that every row says what it was served with
    rows = rows.assign(
        weight_dtype=[str(each.weight_dtype) for each in instances],
        kv_dtype=[str(each.kv_dtype) for each in instances],
    )
    start = get_efficiencies(gpu.name, engine)
    parameters = _parameters(rows, instances)
    count = rows["group"].nunique()
    source = f"fitted on {len(rows)} requests of {count} set-ups, from {start.fitted_for}"
    found = fit_rows(
        rows,
        gpu,
        start,
        engine,
        parameters,
        source,
        leave_out and count > 1,
        Prior(_ROW_SD, _NUMBER_SD),
        progress,
    )
    said = {
        name: f"hardly told by the {len(rows)} requests: about as {start.fitted_for}"
        for name, spread in found.spread_ratio.items()
        if hardly_told(spread)
    }
    old = {
        name: f"as {start.fitted_for}: {text}"
        for name, text in start.provenance.items()
        if name not in found.spread_ratio
    }
    told = {**found.efficiencies.provenance, **old, **said}
    return replace(found, efficiencies=replace(found.efficiencies, provenance=told))


def hardly_told(spread_ratio: float) -> bool:
    """Whether a number is hardly better known with the rows than without them.

    Parameters
    ----------
    spread_ratio : float
        Standard error of its logarithm (:class:`EngineFit`).

    Returns
    -------
    bool
    """
    return spread_ratio > _TOLD * _NUMBER_SD


def _instance(row: object, gpu: Gpu) -> InstanceSpec:
    return InstanceSpec(
        llm=get_llm(row.llm),  # type: ignore[attr-defined]
        gpu=gpu,
        tp=int(row.tp),  # type: ignore[attr-defined]
        engine=row.engine,  # type: ignore[attr-defined]
        mode=row.mode,  # type: ignore[attr-defined]
        weight_dtype=row.weight_dtype or None,  # type: ignore[attr-defined]
        kv_dtype=row.kv_dtype or None,  # type: ignore[attr-defined]
    )


def _parameters(rows: pd.DataFrame, instances: list[InstanceSpec]) -> tuple[Parameter, ...]:
    """Numbers that any of the rows depends on, within what is physical."""
    weights = {_SAME.get(str(each.weight_dtype), str(each.weight_dtype)) for each in instances}
    cached = {_SAME.get(str(each.kv_dtype), str(each.kv_dtype)) for each in instances}
    sparse = any(each.llm.moe is not None for each in instances)
    names: list[str] = ["attention_compute"]
    names += [f"dense_{kind}.{dtype}" for dtype in sorted(weights) for kind in _BEST]
    if sparse:
        names += [f"expert_{kind}.{dtype}" for dtype in sorted(weights) for kind in _BEST]
    if (rows["output_tokens"] > 1).any():
        if (rows["concurrency"] > 1).any():
            names += [f"attention_bandwidth.{dtype}" for dtype in sorted(cached)]
        if (rows["concurrency"] == 1).any():
            names.append("attention_stream_bandwidth")
    found = [Parameter(name, 0.02, _BEST[_kind(name)]) for name in names]
    if (rows["mode"] == "graph").any():
        layers = [each.llm.moe is not None for each in instances]
        if not all(layers):
            found.append(Parameter("graph_s_per_dense_layer", 1e-6, 3e-3))
        if any(layers):
            found.append(Parameter("graph_s_per_moe_layer", 1e-6, 3e-3))
    if (rows["mode"] == "eager").any():
        found.append(Parameter("eager_s_per_layer", 1e-5, 1e-2))
    if (rows["tp"] > 1).any():
        found.append(Parameter("all_reduce_s", 1e-6, 1e-3))
    if rows["quantity"].isin(("ttft_s", "e2e_s")).any():
        found.append(Parameter("request_host_s", 0.0, 0.5))
        found.append(Parameter("request_host_s_per_token", 0.0, 1e-5))
    tiers = rows.loc[rows["hit_tokens"] > 0, "hit_tier"].unique()
    found += [Parameter(f"{t}_fetch_s", 0.0, 0.5) for t in ("dram", "rdma") if t in tiers]
    return tuple(found)


def _kind(name: str) -> str:
    return "compute" if "compute" in name else "bandwidth"
