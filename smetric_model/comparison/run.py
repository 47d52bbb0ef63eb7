"""``compare``: rows of the schema side by side, with differences to a baseline."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.comparison.notes import notes_of
from smetric_model.comparison.paper import paper_table
from smetric_model.comparison.read import Item, rows_of
from smetric_model.comparison.statistics import Difference, Test, difference, holm, interval
from smetric_model.errors import SpecError
from smetric_model.schema import Column, imbalance_schema_column, load_schema

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HEADLINES", "Comparison", "compare"]

#: compared unless others are asked for
HEADLINES = (
    "arrival_rate_rps",
    "unservable_ratio",
    "within_slo_ratio",
    "total_tps",
    "computed_prompt_tps",
    "output_tps",
    "total_within_slo_tps",
    *(f"{q}_{s}_s" for q in ("ttft", "tpot", "e2e") for s in ("mean", "p50", "p90", "p99")),
    "queue_mean_s",
    "local_ratio",
    "global_ratio",
    "peer_ratio",
    "recomputed_ratio",
    "imbalance_processed_tokens_60s_mean",
    "return_to_first_ratio",
    "return_to_previous_ratio",
    "compute_utilisation_ratio",
    "kv_utilisation_ratio",
)
_IDENTITY = ("scenario", "verb", "policy")


@dataclass(frozen=True, eq=False)
class Comparison:
    """What :func:`compare` found.

    Attributes
    ----------
    table : DataFrame
        One line a condition, quantity and name: ``condition``, ``group``, ``quantity``, ``unit``,
        ``name``, ``count``, ``mean``, ``spread`` (standard deviation over seeds), ``low``, ``high``
        (interval of the mean), ``difference``, ``relative_difference``, ``difference_low``,
        ``difference_high``, ``test``, ``p_value``, ``p_holm``, ``verdict`` (baseline, higher,
        lower, tie, untested).
    names : tuple of str
        What is compared, the baseline first.
    by : tuple of str
        Columns whose values make the names.
    conditions : tuple of str
        Swept keys in which rows of one name differ; compared apart.
    confidence : float
        Of the intervals; a difference whose corrected p exceeds 1 − confidence is a tie.
    notes : tuple of str
        What makes the compared unlike, beyond their names.
    paper : DataFrame or None
        The paper's figures beside ours (:func:`~smetric_model.comparison.paper.paper_table`), where
        they were asked for.
    """

    table: pd.DataFrame
    names: tuple[str, ...]
    by: tuple[str, ...]
    conditions: tuple[str, ...]
    confidence: float
    notes: tuple[str, ...] = field(default=())
    paper: pd.DataFrame | None = None

    @property
    def baseline(self) -> str:
        """Name that the others are compared with."""
        return self.names[0]

    def to_dict(self) -> dict[str, Any]:
        """Content ready for JSON.

        Returns
        -------
        dict
        """
        paper = {} if self.paper is None else {"paper": self.paper.to_dict("records")}
        return paper | {
            "by": list(self.by),
            "baseline": self.baseline,
            "names": list(self.names),
            "conditions": list(self.conditions),
            "confidence": self.confidence,
            "notes": list(self.notes),
            "rows": self.table.astype(object).to_dict("records"),
        }


def compare(
    items: Item | Iterable[Item] | Mapping[str, Item],
    by: str | Sequence[str] | None = None,
    baseline: str | None = None,
    *,
    quantities: Sequence[str] | None = None,
    confidence: float = 0.95,
    test: Test = "t",
    paper: str | None = None,
) -> Comparison:
    """Lay outcomes side by side.

    Parameters
    ----------
    items : Outcome, DataFrame, path, or several of them
        Rows of the schema; files as the verbs and ``sweep`` write them; a mapping gives names.
    by : str or sequence of str, optional
        Columns whose values are compared.  By default those of scenario, verb and policy that
        differ; where none does, the swept keys that do, or the sources.
    baseline : str, optional
        Name that the others are compared with; by default the first.
    quantities : sequence of str, optional
        Columns of the schema, or patterns such as ``ttft_*``; by default the headlines.
    confidence : float, default 0.95
        Of the intervals and of the verdicts.
    test : {"t", "wilcoxon"}
        Paired t, or Welch's where seeds differ; or the signed ranks, and Mann-Whitney's.
    paper : str, optional
        Set-up of the SMetric paper (``colocated-30b`` ...) whose figures stand beside.

    Returns
    -------
    Comparison

    Raises
    ------
    SpecError
        If there is nothing to compare, or a column, name or quantity is not known.

    Notes
    -----
    p values are corrected by Holm's method over the quantities of each name and condition.

    Examples
    --------
    >>> from smetric_model import Scenario, compare, predict
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> larger = scenario.replace(**{"cluster.instances": 64, "name": "larger"})
    >>> answers = {"now": predict(scenario), "larger": predict(larger)}
    >>> shown = compare(answers, quantities=["ttft_p*"])
    >>> shown.names, sorted(set(shown.table["quantity"]))
    (('now', 'larger'), ['ttft_p50_s', 'ttft_p90_s', 'ttft_p95_s', 'ttft_p99_s'])
    """
    import pandas as pd

    if not 0 < confidence < 1:
        raise SpecError(f"compare: confidence = {confidence}: between 0 and 1")
    if test not in ("t", "wilcoxon"):
        raise SpecError(f"compare: test = {test!r}: one of t, wilcoxon")
    rows = rows_of(items)
    keys = _by(rows, by)
    rows = rows.assign(_name=_joined(rows, keys))
    names = list(dict.fromkeys(rows["_name"]))
    if baseline is not None:
        if baseline not in names:
            raise SpecError(f"compare: baseline {baseline!r} is none of {', '.join(names)}")
        names = [baseline, *(name for name in names if name != baseline)]
    conditions = _conditions(rows, keys)
    told = [""] * len(rows)
    if conditions:
        told = [
            ", ".join(
                f"{key} = {_text(value)}" for key, value in zip(conditions, line, strict=True)
            )
            for line in rows[conditions].itertuples(index=False, name=None)
        ]
    rows = rows.assign(_condition=told)
    columns = _quantities(rows, quantities)
    lines: list[dict[str, Any]] = []
    for condition in dict.fromkeys(rows["_condition"]):
        chosen = rows[rows["_condition"] == condition]
        for name in names:
            part = chosen[chosen["_name"] == name]
            if not part.empty:
                base = chosen[chosen["_name"] == names[0]]
                made = [_line(c, part, base, name == names[0], confidence, test) for c in columns]
                adjusted = holm(np.array([line["p_value"] for line in made]))
                for line, p_holm in zip(made, adjusted, strict=True):
                    line |= {"condition": condition, "name": name, "p_holm": float(p_holm)}
                    line["verdict"] = _verdict(line, name == names[0], confidence)
                lines += made
    order = [
        "condition",
        "group",
        "quantity",
        "unit",
        "name",
        "count",
        "mean",
        "spread",
        "low",
        "high",
        "difference",
        "relative_difference",
        "difference_low",
        "difference_high",
        "test",
        "p_value",
        "p_holm",
        "verdict",
    ]
    table = pd.DataFrame(lines, columns=order)
    table = table[table.groupby("quantity")["count"].transform("sum") > 0]
    position = {column.name: k for k, column in enumerate(columns)}
    first = {c: k for k, c in enumerate(dict.fromkeys(rows["_condition"]))}
    table = table.sort_values(
        ["condition", "quantity"],
        key=lambda s: s.map(first if s.name == "condition" else position),
        kind="stable",
        ignore_index=True,
    )
    notes = notes_of(rows, names, keys, conditions)
    beside = None if paper is None else paper_table(rows, paper)
    return Comparison(
        table, tuple(names), tuple(keys), tuple(conditions), confidence, tuple(notes), beside
    )


def _by(rows: pd.DataFrame, by: str | Sequence[str] | None) -> list[str]:
    if by is not None:
        keys = [by] if isinstance(by, str) else list(by)
        for key in keys:
            if key not in rows:
                close = get_close_matches(key, list(rows.columns), n=3)
                hint = f"did you mean {' or '.join(close)}" if close else "policy, verb, source ..."
                raise SpecError(f"compare: by = {key!r}: no such column; {hint}")
        return keys
    varied = [key for key in _IDENTITY if key in rows and len(set(map(_text, rows[key]))) > 1]
    if varied:
        return varied
    if len(set(rows["source"])) > 1:
        return ["source"]
    swept = [str(key) for key in rows if "." in str(key) and len(set(map(_text, rows[key]))) > 1]
    return swept[:1] or ["source"]


def _joined(rows: pd.DataFrame, keys: list[str]) -> list[str]:
    lines = rows[keys].itertuples(index=False, name=None)
    return [" / ".join(map(_text, line)) for line in lines]


def _conditions(rows: pd.DataFrame, keys: list[str]) -> list[str]:
    """Swept keys, and what else tells rows apart, in which rows of one name differ."""
    candidates = [key for key in rows if "." in str(key) or key in _IDENTITY]
    found = []
    for key in candidates:
        if key in keys:
            continue
        texts = rows[key].map(_text)
        if (texts.groupby(rows["_name"]).agg(lambda s: len(set(s))) > 1).any():
            found.append(str(key))
    # policy stands twice in a sweep over router.policy
    if "policy" in found and "router.policy" in rows:
        found.remove("policy")
    return found


def _quantities(rows: pd.DataFrame, wanted: Sequence[str] | None) -> list[Column]:
    known = dict(load_schema())
    for name in rows:
        if str(name).startswith("imbalance_") and name not in known:
            known[str(name)] = imbalance_schema_column(str(name))
    numbers = {
        name: column
        for name, column in known.items()
        if column.kind == "number" and name in rows and name not in ("seed", "warmup_s", "window_s")
    }
    if wanted is None:
        return [numbers[name] for name in HEADLINES if name in numbers]
    chosen: dict[str, Column] = {}
    for pattern in wanted:
        hits = fnmatch.filter(numbers, pattern)
        if not hits:
            close = get_close_matches(pattern, numbers, n=3)
            hint = f"did you mean {' or '.join(close)}" if close else "docs/schema.md lists them"
            raise SpecError(f"compare: no quantity is called {pattern!r}; {hint}")
        chosen |= {name: numbers[name] for name in hits}
    return [column for name, column in numbers.items() if name in chosen]


def _line(
    column: Column,
    part: pd.DataFrame,
    base: pd.DataFrame,
    is_baseline: bool,
    confidence: float,
    test: Test,
) -> dict[str, Any]:
    values = part[column.name].to_numpy(float)
    values = values[np.isfinite(values)]
    low, high = interval(values, confidence)
    mean = float(values.mean()) if values.size else math.nan
    line: dict[str, Any] = {
        "group": column.group,
        "quantity": column.name,
        "unit": column.unit,
        "count": int(values.size),
        "mean": mean,
        "spread": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        "low": low,
        "high": high,
    }
    left = _by_seed(base, column.name, "baseline")
    right = _by_seed(part, column.name, "other")
    found = Difference(math.nan)
    if not is_baseline and left and right:
        found = difference(left, right, confidence, test)
    start = float(np.mean(list(left.values()))) if left else math.nan
    if found.pairs:
        start = float(np.mean([left[seed] for seed in left if seed in right]))
    return line | {
        "difference": found.mean,
        "relative_difference": found.mean / abs(start) if start else math.nan,
        "difference_low": found.low,
        "difference_high": found.high,
        "test": found.test,
        "p_value": found.p_value,
    }


def _by_seed(rows: pd.DataFrame, name: str, side: str) -> dict[Hashable, float]:
    """Value by seed; where a seed stands twice, or is not known, by what no other side has."""
    values = rows[name].to_numpy(float)
    seeds = rows["seed"].to_numpy(float) if "seed" in rows else np.full(len(rows), np.nan)
    good = np.isfinite(values)
    values, seeds = values[good], seeds[good]
    if not np.isfinite(seeds).all() or len(set(seeds)) < len(seeds):
        return {(side, k): float(v) for k, v in enumerate(values)}
    return {float(s): float(v) for s, v in zip(seeds, values, strict=True)}


def _verdict(line: dict[str, Any], is_baseline: bool, confidence: float) -> str:
    if is_baseline:
        return "baseline"
    if math.isnan(line["p_holm"]):
        return "untested"
    if line["p_holm"] > 1 - confidence or line["difference"] == 0:
        return "tie"
    return "higher" if line["difference"] > 0 else "lower"


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
