"""From the rows of ``run.py`` to the map: its table, the tables and figures of ``docs/map.md``.

``python benchmarks/advantage/report.py``: writes ``data/reproduction/map.parquet`` (a line a
point), ``OUT/tables.md`` and ``docs/figures/map-*.png``.  The decision rule needs
scikit-learn (extra ``bench``).

A simulated verdict takes the mean of the seeds' paired differences; its noise is the larger of the
point's own standard error and the median one of its third of loads (two or three seeds tell little
of their own spread).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from design import AGES, PARAMETERS, PEAK_LOADS, PEAKS, POLICIES

from smetric_model.advantage import COORDINATES, relative_advantage, verdict
from smetric_model.reproduction.table import read_rows

ROOT = Path(__file__).resolve().parents[2]
BASELINES = POLICIES[1:]
VERDICTS = ("win", "tie", "lose", "none")
_BESIDE = (
    "local_ratio", "global_ratio", "recomputed_ratio", "fetch_mean_s",
    "imbalance_processed_tokens_60s_mean", "migrated_evicted_ratio", "return_to_previous_ratio",
    "nic_in_utilisation_ratio",
    "kv_utilisation_ratio", "ttft_p50_s", "tpot_p90_s",
)  # fmt: skip


def pairs(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One line a point, seed and verb, with each policy's share of the offered tokens."""
    lines = []
    for row in rows:
        for verb in ("simulate", "predict"):
            answer = row.get(verb)
            if not answer or "error" in answer:
                continue
            by_policy = answer["rows"]
            offered = max(p.get("total_tps", 0.0) for p in by_policy.values())
            line = {
                "kind": row["point"]["kind"], "number": row["point"]["number"],
                "line": row["point"]["line"], "seed": row["seed"], "verb": verb,
                "rate_rps": row["rate_rps"], "offered_tps": offered,
                **{k: row["point"][k] for k in PARAMETERS},
                **{f"at_{k}": v for k, v in answer.get("coordinates", {}).items()},
            }  # fmt: skip
            for policy in POLICIES:
                line[policy] = by_policy[policy].get("total_within_slo_tps", np.nan)
                line[f"steady_{policy}"] = by_policy[policy]["steady"]
            best = max(BASELINES, key=lambda p: -1 if np.isnan(line[p]) else line[p])
            for name in _BESIDE:
                own, other = by_policy["smetric"].get(name), by_policy[best].get(name)
                line[f"more_{name}"] = np.nan if None in (own, other) else own - other
            line |= {f"part_{k}": v for k, v in answer.get("mechanisms", {}).items()}
            line["mechanism"] = answer["mechanism"]
            lines.append(line)
    return pd.DataFrame(lines)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """One line a point and verb: means over seeds, verdict, best baseline, advantage."""
    keys = ["kind", "number", "line", "verb"]
    result = []
    for key, group in table.groupby(keys, sort=False):
        means = group[list(POLICIES)].mean()
        known = means[list(BASELINES)].dropna()
        line = dict(zip(keys, key, strict=True)) | {"seeds": len(group)}
        line |= {k: group[k].iloc[0] for k in PARAMETERS}
        line |= {"rate_rps": group["rate_rps"].iloc[0]}
        numeric = [c for c in group if c.startswith(("at_", "more_", "part_"))]
        line |= group[numeric].mean().to_dict()
        line |= {f"served_{p}": means[p] / group["offered_tps"].mean() for p in POLICIES}
        if known.empty or np.isnan(means["smetric"]):
            result.append(line | {"baseline": "", "advantage_ratio": np.nan, "noise": np.nan})
            continue
        best = str(known.idxmax())
        values = [
            relative_advantage(row["smetric"], row[best], row["offered_tps"])
            for _, row in group.iterrows()
            if not np.isnan(row[best])
        ]
        line["baseline"] = best
        line["advantage_ratio"] = float(np.mean(values))
        line["advantages"] = values
        line["noise"] = (
            float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
        )
        best_served = max(means["smetric"], means[best]) / group["offered_tps"].mean()
        line["best_served"] = float(best_served)
        line["mechanism"] = group["mechanism"].iloc[0]
        result.append(line)
    found = pd.DataFrame(result)
    third = pd.cut(found["load"], [0, 0.7, 0.9, 9])
    simulated = found["verb"] == "simulate"
    pooled = found[simulated].groupby(third, observed=True)["noise"].median()
    usual = third.map(pooled).astype(float)
    found["noise_ratio"] = np.where(simulated, np.fmax(found["noise"], usual), 0.0)
    found["verdict"] = [
        verdict(a, s, noise_ratio=n if np.isfinite(n) else 0.0) if isinstance(a, list) else "none"
        for a, s, n in zip(found["advantages"], found["best_served"], found["noise_ratio"],
                           strict=True)
    ]  # fmt: skip
    return found.drop(columns=["advantages", "noise"])


def confusion(found: pd.DataFrame) -> pd.DataFrame:
    """Verdicts of the closed form (columns) and of the simulation (rows), in ``space``."""
    both = _both(found)
    counts = pd.crosstab(both["verdict_simulate"], both["verdict_predict"])
    return counts.reindex(index=list(VERDICTS), columns=list(VERDICTS), fill_value=0)


def _both(found: pd.DataFrame) -> pd.DataFrame:
    space = found[found["kind"] == "space"]
    simulated = space[space["verb"] == "simulate"].set_index("number")
    predicted = space[space["verb"] == "predict"].set_index("number")
    names = ["verdict", "advantage_ratio", "baseline", "mechanism"]
    more = [c for c in predicted if c.startswith(("at_", "part_"))]
    known = simulated.drop(columns=more, errors="ignore")
    known = known.rename(columns={name: f"{name}_simulate" for name in names})
    other = predicted[names + more].rename(columns={name: f"{name}_predict" for name in names})
    return known.join(other, how="inner")


def regrets(found: pd.DataFrame, verb: str) -> pd.DataFrame:
    """Return how far each policy is from the best of the four, over the points of ``space``."""
    space = found[(found["kind"] == "space") & (found["verb"] == verb)]
    served = space[[f"served_{p}" for p in POLICIES]].dropna()
    served = served[served.max(axis=1) >= 0.01]
    best = served.max(axis=1)
    lines = {}
    for policy in POLICIES:
        lost = (best - served[f"served_{policy}"]) / np.maximum(best, 0.1)
        lines[policy] = {
            "within 2 % of the best": float((lost <= 0.02).mean()),
            "within 5 %": float((lost <= 0.05).mean()),
            "mean regret": float(lost.mean()),
            "P90": float(lost.quantile(0.9)),
            "P99": float(lost.quantile(0.99)),
            "largest": float(lost.max()),
        }
    return pd.DataFrame(lines).T


def against_each(table: pd.DataFrame) -> pd.DataFrame:
    """Return simulated verdicts of SMetric against each baseline, over ``space``."""
    space = table[(table["kind"] == "space") & (table["verb"] == "simulate")]
    lines = {}
    for other in BASELINES:
        verdicts, gains = [], []
        for _, rows in space.groupby("number"):
            values = [
                relative_advantage(row["smetric"], row[other], row["offered_tps"])
                for _, row in rows.iterrows()
            ]
            noise = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            served = rows[["smetric", other]].mean().max() / rows["offered_tps"].mean()
            verdicts.append(verdict(values, served, noise_ratio=float(noise)))
            gains.append(float(np.mean(values)))
        counts = pd.Series(verdicts).value_counts()
        lines[other] = {v: int(counts.get(v, 0)) for v in VERDICTS} | {
            f"P{q}": float(np.quantile(gains, q / 100)) for q in (5, 25, 50, 75, 95)
        }
    return pd.DataFrame(lines).T


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Advantage of the closed form less that of the simulation, on the same trace."""
    space = table[table["kind"] == "space"]
    wide = {}
    for verb in ("simulate", "predict"):
        part = space[space["verb"] == verb].set_index(["number", "seed"])
        part = part[part[list(POLICIES)].notna().all(axis=1)]
        best = part[list(BASELINES)].max(axis=1)
        wide[verb] = (part["smetric"] - best) / np.maximum(best, 0.1 * part["offered_tps"])
        wide[f"load_{verb}"] = part["load"]
    joined = pd.DataFrame({k: wide[k] for k in ("simulate", "predict")}).dropna()
    joined["error"] = joined["predict"] - joined["simulate"]
    joined["load"] = wide["load_simulate"]
    return joined


def _markdown(table: pd.DataFrame, digits: int = 3) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.{digits}f}".rstrip("0").rstrip(".") or "0"
        return str(value)

    table = table.reset_index()
    head = "| " + " | ".join(map(str, table.columns)) + " |\n|" + "---|" * table.shape[1] + "\n"
    return head + "".join(
        "| " + " | ".join(cell(v) for v in row) + " |\n" for row in table.itertuples(index=False)
    )


def marginals(space: pd.DataFrame) -> pd.DataFrame:
    """Simulated verdicts by third of each parameter."""
    lines = []
    for name in PARAMETERS:
        if name == "history":
            groups = [(value, part) for value, part in space.groupby("history")]
        else:
            cuts = pd.qcut(space[name].rank(method="first"), 3, labels=False)
            groups = [
                (f"{part[name].min():.3g} to {part[name].max():.3g}", part)
                for _, part in space.groupby(cuts)
            ]
        for label, part in groups:
            shares = part["verdict"].value_counts(normalize=True)
            lines.append(
                {"parameter": name, "values": label, "points": len(part)}
                | {v: float(shares.get(v, 0.0)) for v in VERDICTS}
                | {"median advantage": float(part["advantage_ratio"].median()),
                   "P90": float(part["advantage_ratio"].quantile(0.9)),
                   "P10": float(part["advantage_ratio"].quantile(0.1))}
            )  # fmt: skip
    return pd.DataFrame(lines).set_index("parameter")


def rule(both: pd.DataFrame) -> str:
    """Return a shallow tree fitted to the simulated verdicts, and how good it is."""
    from sklearn.model_selection import cross_val_score
    from sklearn.tree import DecisionTreeClassifier, export_text

    data = both[both["verdict_simulate"] != "none"]
    names = [f"at_{name}" for name in COORDINATES]
    features = data[names].astype(float).fillna(0.0)
    features.columns = list(COORDINATES)
    tree = DecisionTreeClassifier(
        max_depth=3, min_samples_leaf=max(8, len(data) // 30), random_state=0
    )
    score = cross_val_score(tree, features, data["verdict_simulate"], cv=5)
    tree.fit(features, data["verdict_simulate"])
    text = export_text(tree, feature_names=list(features.columns), decimals=2, show_weights=True)
    usual = data["verdict_simulate"].value_counts(normalize=True).max()
    return (
        f"{len(data)} points, classes {list(tree.classes_)}; cross-validated accuracy"
        f" {score.mean():.2f} ± {score.std():.2f}; always the most frequent: {usual:.2f}\n\n"
        f"```\n{text}```\n"
    )


def peaks(table: pd.DataFrame) -> pd.DataFrame:
    """Each policy's most tokens within SLO over the loads, and SMetric's advantage there."""
    part = table[(table["kind"] == "peaks") & (table["verb"] == "simulate")]
    lines = []
    for name in PEAKS:
        rows = part[part["line"] == name]
        if rows["load"].nunique() < len(PEAK_LOADS):
            continue
        means = rows.groupby("load")[list(POLICIES)].mean()
        best = means.max()
        other = best[list(BASELINES)].idxmax()
        by_seed = rows.set_index(["load", "seed"])
        own = by_seed.loc[means["smetric"].idxmax()]["smetric"]
        theirs = by_seed.loc[means[other].idxmax()][other]
        gains = own / theirs - 1
        lines.append(
            {"cluster": name, "best other": other,
             **{f"{p} [k/s]": best[p] / 1e3 for p in POLICIES},
             "at its own peak": best["smetric"] / best[other] - 1,
             "seeds": gains.size}
        )  # fmt: skip
    return pd.DataFrame(lines).set_index("cluster")


def ages(table: pd.DataFrame) -> pd.DataFrame:
    """Share of the offered tokens within SLO by what the router knows."""
    part = table[(table["kind"] == "ages") & (table["verb"] == "simulate")]
    lines = []
    for name, rows in part.groupby("line", sort=False):
        cluster, _, what = str(name).partition(": ")
        best = rows[list(BASELINES)].mean().idxmax()
        gain = (rows["smetric"] - rows[best]) / np.maximum(rows[best], 0.1 * rows["offered_tps"])
        lines.append(
            {"cluster": cluster, "router knows": what,
             **{p: (rows[p] / rows["offered_tps"]).mean() for p in POLICIES},
             "best other": best, "advantage": gain.mean(),
             "seeds": gain.size}
        )  # fmt: skip
    assert len(lines) <= len(AGES) * 4
    return pd.DataFrame(lines).set_index("cluster")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/advantage"))
    options = parser.parse_args(arguments)
    rows = read_rows(options.out / "rows.jsonl")
    table = pairs(rows)
    found = points(table)
    both = _both(found)
    wrong = errors(table)
    simulated = found[(found["kind"] == "space") & (found["verb"] == "simulate")]
    predicted = found[(found["kind"] == "space") & (found["verb"] == "predict")]
    cpu = {k: sum(r.get(f"{k}_cpu_s", 0.0) for r in rows) for k in ("simulate", "predict", "trace")}
    text = [f"rows {len(rows)}, CPU [s] { ({k: round(v) for k, v in cpu.items()}) }\n"]
    in_both = predicted[predicted["number"].isin(simulated["number"])]
    for name, part in (
        ("simulated", simulated),
        ("predicted", predicted),
        ("predicted, of those simulated", in_both),
    ):
        quantiles = part["advantage_ratio"].quantile([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
        text.append(
            f"{name}: {len(part)} points, {part['verdict'].value_counts().to_dict()}; advantage"
            f" {quantiles.round(3).to_dict()}; best {part['baseline'].value_counts().to_dict()}\n"
        )
    for verb in ("simulate", "predict"):
        text += [f"\n## Regret ({verb})\n", _markdown(regrets(found, verb))]
    text += ["\n## Against each (simulated)\n", _markdown(against_each(table))]
    text += ["\n## Confusion (rows simulated, columns predicted)\n", _markdown(confusion(found))]
    size = wrong["error"].abs()
    by_load = size.groupby(pd.cut(wrong["load"], [0, 0.7, 0.9, 9]), observed=True)
    text += ["\n## Error of the advantage on the same trace\n",
             _markdown(by_load.describe(percentiles=[0.5, 0.9])[["count", "50%", "90%", "max"]]),
             f"\nall: median {size.median():.4f}, P90 {size.quantile(0.9):.4f}; mean error"
             f" {wrong['error'].mean():+.4f}\n"]  # fmt: skip
    large = wrong[wrong["simulate"].abs() > 0.05]
    same = float((np.sign(large["simulate"]) == np.sign(large["predict"])).mean())
    text += [f"|simulated| > 5 %: {len(large)} pairs, same sign in {same:.0%}\n"]
    for verb, part in (("simulate", simulated), ("predict", predicted)):
        decided = part[part["verdict"].isin(["win", "lose"])]
        text += [f"\n## Against whom ({verb})\n",
                 _markdown(pd.crosstab(decided["verdict"], decided["baseline"]))]  # fmt: skip
    text += ["\n## Mechanisms of the closed form\n",
             _markdown(pd.crosstab(predicted["mechanism"].replace("", "(tie or none)"),
                                   predicted["verdict"]))]  # fmt: skip
    beside = [f"more_{n}" for n in _BESIDE]
    text += ["\n## What SMetric has more of than the best baseline, medians (simulated)\n",
             _markdown(simulated.groupby("verdict")[beside].median().T)]  # fmt: skip
    text += ["\n## By parameter (simulated)\n", _markdown(marginals(simulated), 2)]
    for name, make in (("Peaks", peaks), ("Ages", ages)):
        if (table["kind"] == name.lower()).any():
            text += [f"\n## {name}\n", _markdown(make(table))]
    try:
        text += ["\n## Rule\n", rule(both)]
    except ImportError:
        text += ["\n## Rule\n\nneeds scikit-learn\n"]
    odd = both[both["verdict_simulate"] != both["verdict_predict"]]
    columns = ["verdict_simulate", "verdict_predict", "advantage_ratio_simulate",
               "advantage_ratio_predict", "baseline_simulate", "load", "tier_ratio",
               "context_factor", "history", "frameworks", "output_factor", "tpot_s",
               "nic_bytes_per_s", "think_factor"]  # fmt: skip
    order = (odd["advantage_ratio_simulate"] - odd["advantage_ratio_predict"]).abs()
    text += ["\n## Where the closed form is wrong\n", _markdown(odd.loc[order.sort_values(
        ascending=False).index, columns].head(25))]  # fmt: skip
    (options.out / "tables.md").write_text("\n".join(text), encoding="utf-8")
    path = ROOT / "data/reproduction/map.parquet"
    path.parent.mkdir(exist_ok=True)
    small = found.copy()
    floats = small.select_dtypes("float64").columns
    small[floats] = small[floats].astype("float32")
    small.to_parquet(path, compression="zstd", index=False)
    from figures import draw

    draw(found, wrong, ROOT / "docs/figures")
    print(f"written {path} ({path.stat().st_size} bytes), {options.out / 'tables.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
