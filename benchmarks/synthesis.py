"""Presets against the paper's claims, the effect of sampling, the fit's distances, the speed.

    python benchmarks/synthesis.py [PART ...] [--seeds 5] [--out out]

Parts: ``claims``, ``sensitivity``, ``sampling``, ``fit``, ``speed``; without a name, all of them.
``fit`` needs the shared Weka file (``$SMETRIC_SHARED``).  Tables are written as CSV beside what is
printed; ``fit`` also draws ``synthesis_fit.png``.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

from smetric_model.reproduction.workload import INSTANCES, execution_times
from smetric_model.workload import dispatch_balance, load_trace
from smetric_model.workload.synthesis import generate, load_preset, preset_names, preset_parameters
from smetric_model.workload.synthesis_distributions import Constant, LogNormal
from smetric_model.workload.synthesis_scaling import thin
from smetric_model.workload.synthesis_statistics import traffic_statistics

#: claim -> (what, claimed for trace 1 and 2, tolerance, relative?); None: context or no tolerance
CLAIMS = {
    "C01": ("ideal_reuse_ratio", (0.80, 0.80), 0.03, False),
    "C02": ("intra_reuse_ratio", (0.67, 0.67), 0.03, False),
    "C03": ("system_reuse_ratio", (0.18, None), 0.03, False),
    "C04": ("system_reuse_ratio", (None, 0.20), 0.03, False),
    "C05": ("soon_reuse_ratio", (0.90, 0.90), 0.03, False),
    "C06": ("first_turn_ratio", (0.03, 0.03), None, False),
    "C07": ("requests_per_instance_and_minute", (43.0, None), None, False),
    "C08": ("requests_per_instance_and_minute", (None, 48.0), None, False),
    "C09": ("imbalance_median", (1.7, None), 0.20, True),
    "C10": ("imbalance_median", (None, 1.5), 0.20, True),
}


def one_run(name: str, seed: int) -> dict[str, float]:
    """Everything the claims need, of one preset and seed."""
    trace = load_preset(name, seed=seed)
    result = traffic_statistics(trace)
    service = execution_times(trace)
    table = dispatch_balance(trace, INSTANCES, service_s=service)
    # the first minutes fill the cluster, the last window is cut
    full = table[table["start_s"] >= 300.0].iloc[:-1]
    stated = dispatch_balance(trace, INSTANCES)
    stated = stated[stated["start_s"] >= 300.0].iloc[:-1]
    start = load_preset(name, seed=seed, window_s=900.0)
    return result | {
        "requests_per_instance_and_minute": float(full["requests_per_instance"].mean()),
        "least_requests_per_instance_and_minute": float(full["requests_per_instance"].min()),
        "execution_s_mean": float(service.mean()),
        "imbalance_median": float(full["imbalance_processed_tokens"].median()),
        "imbalance_worst": float(full["imbalance_processed_tokens"].max()),
        "imbalance_inflight_median": float(full["imbalance_inflight_tokens"].median()),
        "imbalance_inflight_worst": float(full["imbalance_inflight_tokens"].max()),
        "imbalance_median_recorded_times": float(stated["imbalance_processed_tokens"].median()),
        "compaction_ratio": float((trace.requests["trigger"] == "compaction").mean()),
        "user_ratio": float((trace.requests["trigger"] == "user").mean()),
        "ideal_reuse_ratio_15_min": traffic_statistics(start)["ideal_reuse_ratio"],
    }


def claims(seeds: int, out: Path) -> None:
    """C01 to C10 of every preset."""
    rows, all_runs = [], []
    for name in preset_names():
        number = int(name.split("-")[2]) - 1
        runs = pd.DataFrame([one_run(name, seed) for seed in range(seeds)])
        all_runs.append(runs.assign(preset=name, seed=range(seeds)))
        for claim, (quantity, claimed, tolerance, relative) in CLAIMS.items():
            if claimed[number] is None:
                continue
            value, target = runs[quantity].mean(), claimed[number]
            off = abs(value - target) / (target if relative else 1.0)
            verdict = "context" if tolerance is None else "agrees" if off <= tolerance else "not"
            rows.append(
                {
                    "preset": name,
                    "claim": claim,
                    "quantity": quantity,
                    "claimed": target,
                    "mean": value,
                    "sd": runs[quantity].std(ddof=1),
                    "low": runs[quantity].min(),
                    "high": runs[quantity].max(),
                    "verdict": verdict,
                }
            )
    table = pd.DataFrame(rows)
    table.to_csv(out / "synthesis_claims.csv", index=False)
    runs = pd.concat(all_runs)
    runs.to_csv(out / "synthesis_runs.csv", index=False)
    print(table.round(4).to_string(index=False))
    print(
        runs.groupby("preset").mean(numeric_only=True).drop(columns="seed").round(4).T.to_string()
    )


def sampling(seeds: int, out: Path) -> None:
    """Reuse of thinned traces: whole families, or sessions torn from their subagents."""
    rows = []
    for name in ("bailian-trace-1-medium",):
        for seed in range(seeds):
            whole = load_preset(name, seed=seed)
            short = load_preset(name, seed=seed, window_s=900.0)
            for window, trace in (("2 h", whole), ("15 min", short)):
                for share in (1.0, 0.5, 0.2, 0.1, 0.05):
                    for families in (True, False):
                        part = thin(trace, share, seed, keep_forks=families)
                        rows.append(
                            {
                                "preset": name,
                                "window": window,
                                "share": share,
                                "families": "whole" if families else "torn",
                            }
                            | traffic_statistics(part)
                        )
    table = pd.DataFrame(rows).groupby(["preset", "window", "families", "share"]).mean()
    columns = ["requests", "ideal_reuse_ratio"]
    columns += [f"{kind}_reuse_ratio" for kind in ("intra", "system", "other")]
    table = table[columns].sort_index(ascending=False)
    table.to_csv(out / "synthesis_sampling.csv")
    print(table.round(4).to_string())


def fit_weka(seeds: int, out: Path) -> None:
    """Fit the shared Weka file, generate, compare and draw."""
    from smetric_model.workload.synthesis_compare import marginals
    from smetric_model.workload.synthesis_fit import fit

    shared = os.environ.get("SMETRIC_SHARED")
    if not shared:
        print("fit: skipped, SMETRIC_SHARED is not set")
        return
    trace = load_trace(Path(shared) / "traces" / "weka-claude-code-120.jsonl.gz")
    result = fit(trace, name="weka-claude-code-120")
    result.parameters.to_toml(out / "weka-claude-code-120.toml")
    # how far two random halves of the trace's sessions are from each other
    result.distances.insert(1, "ks_of_halves", pd.Series(halves(trace, 20)))
    result.distances.to_csv(out / "synthesis_fit.csv")
    print(result.distances.round(3).to_string())
    for note in result.notes:
        print(f"note: {note}")
    draw(marginals(trace), marginals(result.generated), result.distances, out / "synthesis_fit.png")


#: One change at a time of what the presets leave free; not calibrated anew.
VARIANTS = {
    "as it is": {},
    "no rewrites": {"history.rewrite_ratio": 0.0},
    "rewrites from the start of the history, half as many": {
        "history.kept_ratio": Constant(0.0),
        "history.rewrite_ratio": 0.198,
    },
    "rewrites alike in all sessions": {"history.rewrite_spread": 0.0},
    "some sessions rewrite always, the others never": {"history.rewrite_spread": 0.95},
    "rewrites put back three quarters": {"history.replaced_ratio": 0.75},
    "answers stripped from later prompts": {"sessions.answer_kept_ratio": 0.0},
    "context limit twice as high": {"sessions.context_limit_tokens": Constant(133_000.0)},
    "turns: sigma 1.4, same mean": {"sessions.turns": LogNormal(24.3, 1.4, high=2_000.0)},
    "turns: a third": {"sessions.turns": LogNormal(12.9, 1.0, high=1_000.0)},
    "no subagents": {"forks.spawn_ratio": 0.0},
    "2 prompts instead of 20": {"frameworks.count": 1},
    "user's median 45 s instead of 150 s": {"think.human_s": LogNormal(45.0, 1.2, high=7_200.0)},
    "blocks of 16 tokens": {"block_tokens": 16},
    "blocks of 512 tokens": {"block_tokens": 512},
}


def sensitivity(seeds: int, out: Path) -> None:
    """What each free assumption of the medium preset does, one at a time."""
    start = preset_parameters("bailian-trace-1-medium")
    rows = {}
    for label, changes in VARIANTS.items():
        runs = [traffic_statistics(generate(start.replace(**changes), seed=s)) for s in range(2)]
        rows[label] = pd.DataFrame(runs).mean()
    cold = traffic_statistics(generate(start, seed=0, start="cold"))
    rows["no session in progress at the start"] = pd.Series(cold)
    columns = [
        "prompt_tokens_mean",
        "ideal_reuse_ratio",
        "intra_reuse_ratio",
        "system_reuse_ratio",
        "other_reuse_ratio",
        "first_turn_ratio",
        "soon_reuse_ratio",
    ]
    table = pd.DataFrame(rows).T[columns]
    table.to_csv(out / "synthesis_sensitivity.csv")
    print(table.round(3).to_string())


def halves(trace, times: int) -> dict[str, float]:
    """Median KS distance between random halves of the sessions."""
    from smetric_model.workload.synthesis_compare import ks_distance, marginals

    rng = np.random.default_rng(0)
    session = trace.column("session_id")
    rows = []
    for _ in range(times):
        side = rng.permutation(trace.sessions) < trace.sessions // 2
        one, two = (
            marginals(trace.take(np.flatnonzero(side[session] == s))) for s in (True, False)
        )
        rows.append({n: ks_distance(one[n][0], two[n][0], one[n][1], two[n][1]) for n in one})
    return pd.DataFrame(rows).median().to_dict()


def draw(one, two, distances, path: Path) -> None:
    """Distribution functions side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(14, 6), layout="constrained")
    for axis, name in zip(axes.flat, one, strict=True):
        for label, (values, weights), color in (
            ("Weka file, 120 sessions", one[name], "#2166ac"),
            ("generated", two[name], "#b2182b"),
        ):
            order = np.argsort(values)
            share = np.cumsum(weights[order]) / weights.sum()
            axis.step(np.maximum(values[order], 0.1), share, where="post", color=color, label=label)
        axis.set_xscale("log")
        axis.set_xlabel(name)
        axis.set_title(f"KS {distances.loc[name, 'ks']:.3f}", fontsize=10)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 0].set_ylabel("share")
    axes[1, 0].set_ylabel("share")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")


def speed(seeds: int, out: Path) -> None:
    """One million requests of long prompts."""
    parameters = preset_parameters("bailian-trace-1-long")
    generate(parameters, rate_rps=1.0, window_s=600.0)  # compile
    rate = 1_050_000 / parameters.window_s
    begin, busy = time.perf_counter(), time.process_time()
    trace = generate(parameters, rate_rps=rate)
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(trace):,} requests of {trace.column('prompt_tokens').mean():,.0f} tokens, "
        f"{trace.tree.parent.size:,} segments, {trace.tree.distinct_blocks:,} distinct blocks: "
        f"{took:.1f} s ({busy:.1f} s of CPU), peak memory {peak:.1f} GiB"
    )


def main() -> None:
    """Command line."""
    parts = {
        "claims": claims,
        "sensitivity": sensitivity,
        "sampling": sampling,
        "fit": fit_weka,
        "speed": speed,
    }
    parser = argparse.ArgumentParser(description="Presets, sensitivity, sampling, fit and speed.")
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="which [all]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.parts or parts:
        print(f"-- {name}", flush=True)
        parts[name](options.seeds, options.out)


if __name__ == "__main__":
    main()
