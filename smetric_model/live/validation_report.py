"""The report of a validation: one page with figures, one table, the raw data as Parquet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.live.compare import (
    QUANTITIES,
    comparison,
    cpu_table,
    speed_ratios,
    speed_table,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from smetric_model.live.validation import Validation

#: change of the engines' speed above which errors of latencies are told to be doubtful
LARGEST_DRIFT = 0.05

__all__ = [
    "LEGEND",
    "agreement_figure",
    "calibration_figure",
    "narrow_rows",
    "report_rows",
    "speed_sentence",
    "summary_sentence",
    "write_validation_report",
]


def _shown(value: float, column: str) -> str:
    if math.isnan(value):
        return "–"
    if column.endswith("_s"):
        return f"{value * 1e3:.1f} ms"
    return f"{value:.3f}" if column.endswith("_ratio") else f"{value:,.0f}"


def _error(value: float, column: str) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:+.3f}" if column.endswith("_ratio") else f"{value:+.1%}"


def _allowed(value: float, column: str) -> str:
    return _error(value, column).replace("+", "±")


def report_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return columns and lines of the comparison for people.

    What is allowed is the target, or two standard errors where these are more.

    Parameters
    ----------
    table : DataFrame
        Of :func:`smetric_model.live.compare.comparison`.
    """
    columns = [
        *("policy", "quantity", "measured", "CV", "simulated", "error", "allowed", "verdict"),
        *("predicted", "error", "allowed", "verdict", "bound"),
    ]
    rows = []
    for one in table.to_dict("records"):
        column = one["quantity"]
        rows.append(
            [
                one["policy"],
                QUANTITIES[column][1].removesuffix(" [s]"),  # cells name their unit
                _shown(one["measured"], column),
                "–" if math.isnan(one["cv"]) else f"{one['cv']:.1%}",
                _shown(one["simulated"], column),
                _error(one["simulated_error"], column),
                _allowed(one["simulated_allowed"], column),
                one["simulated_verdict"],
                _shown(one["predicted"], column),
                _error(one["predicted_error"], column),
                _allowed(one["predicted_allowed"], column),
                one["predicted_verdict"],
                _shown(one["bound"], column),
            ]
        )
    return columns, rows


#: what a table of a terminal's width says of a verdict
MARKS = {"within": "", "outside": "*", "too noisy": "~", "one repeat": "1", "no target": ""}
LEGEND = (
    "*: outside its target; ~: too noisy to judge; 1: one repeat is not judged;"
    " errors of ratios are differences."
)


def narrow_rows(table: pd.DataFrame, policy: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and lines of one policy's comparison for a terminal of 80 columns.

    Parameters
    ----------
    table : DataFrame
        Of :func:`smetric_model.live.compare.comparison`.
    policy : str
        Which lines.
    """
    columns = ["quantity", "measured", "CV", "simulated", "error", "predicted", "error"]
    rows = []
    for one in table[table["policy"] == policy].to_dict("records"):
        column = one["quantity"]
        row = [
            QUANTITIES[column][2],
            _shown(one["measured"], column),
            "–" if math.isnan(one["cv"]) else f"{one['cv']:.0%}",
        ]
        for verb in ("simulated", "predicted"):
            mark = MARKS.get(one[f"{verb}_verdict"], "")
            row += [_shown(one[verb], column), _error(one[f"{verb}_error"], column) + mark]
        rows.append(row)
    return columns, rows


def speed_sentence(validation: Validation) -> str:
    """Say how fast the engines were after the replays; empty if that was not measured."""
    speeds = speed_ratios(validation)
    if any(math.isnan(value) for value in speeds.values()):
        return ""
    prefill, decode = speeds["ttft_p50_s"] - 1, speeds["tpot_p50_s"] - 1
    text = (
        f"Measured again after the calibration, prefill took {prefill:+.1%} and decode steps"
        f" {decode:+.1%} of their time then"
    )
    if max(abs(prefill), abs(decode)) > LARGEST_DRIFT:
        return (
            f"{text}: more than {LARGEST_DRIFT:.0%}, so that errors of TTFT and TPOT are also"
            " those of a machine that has changed."
        )
    return f"{text}."


def agreement_figure(table: pd.DataFrame) -> Figure:
    """Draw measured (with the range of two standard errors), simulated and predicted.

    Parameters
    ----------
    table : DataFrame
        Of :func:`smetric_model.live.compare.comparison`.

    Returns
    -------
    Figure
        A panel a quantity, policies side by side.
    """
    from smetric_model._figure import ShownFigure
    from smetric_model.plots import COLOURS

    quantities = list(QUANTITIES)
    policies = list(dict.fromkeys(table["policy"]))
    figure = ShownFigure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(2, 4)
    for axes, column in zip(panels.ravel(), quantities, strict=True):
        part = table[table["quantity"] == column].set_index("policy")
        for x, policy in enumerate(policies):
            if policy not in part.index:
                continue
            line = part.loc[policy]
            repeats = max(int(line["repeats"]), 1)
            cv = 0.0 if math.isnan(line["cv"]) else line["cv"]
            spread = 2 * cv * line["measured"] / math.sqrt(repeats)
            axes.errorbar(
                x, line["measured"], yerr=spread, fmt="o", color=COLOURS["ink"][0], capsize=4
            )
            axes.plot(x - 0.2, line["simulated"], "s", color=COLOURS["tiers"][0])
            axes.plot(x + 0.2, line["predicted"], "^", color=COLOURS["none"][0])
        axes.set_title(QUANTITIES[column][1], fontsize=9)
        axes.set_xticks(range(len(policies)), policies, fontsize=7, rotation=20)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_xlim(-0.6, len(policies) - 0.4)
        top = axes.dataLim.ymax  # −inf without data
        axes.set_ylim(0, 1.12 * top if top > 0 else 1.0)
    return figure


def calibration_figure(points: pd.DataFrame) -> Figure:
    """Draw the calibration: measured points, and the model's error.

    Parameters
    ----------
    points : DataFrame
        ``calibration-points.parquet``.
    """
    from smetric_model._figure import ShownFigure
    from smetric_model.plots import COLOURS

    figure = ShownFigure(figsize=(10, 3.4), layout="constrained")
    left, right, both = figure.subplots(1, 3)
    styles = {
        "prefill": (left, "tiers"),
        "cached": (left, "ideal"),
        "fetch": (left, "mark"),
        "decode": (right, "none"),
        "late": (both, "tiers"),
        "beside": (both, "none"),
    }
    names = {"late": "TTFT", "beside": "decodes held up"}
    for kind, (axes, role) in styles.items():
        part = points[points["kind"] == kind]
        part = part.assign(new_tokens=part["tokens"] - part["hit_tokens"])
        if part.empty:
            continue
        colour = COLOURS[role][0]
        x = {left: "tokens", right: "batch", both: "new_tokens"}[axes]
        for held, marker in ((False, "o"), (True, "D")):
            some = part[part["held_out"] == held]
            label = names.get(kind, kind) + (", held out" if held else "")
            face = "none" if held else colour
            axes.plot(some[x], some["measured_s"], marker, color=colour, mfc=face, label=label)
        axes.plot(part[x], part["model_s"], "_", color=colour, markersize=14)
    labels = {
        left: ("prompt tokens", "TTFT, idle engine [s]"),
        right: ("sequences", "decode step [s]"),
        both: ("new tokens, beside decodes", "time [s]"),
    }
    for axes, (label, time) in labels.items():
        if axes is both:
            axes.set_ylim(bottom=0)
        else:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel(time)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    return figure


def write_validation_report(validation: Validation) -> Path:
    """Write ``report.html``, ``report.csv``, ``report.json`` and ``requests.parquet``.

    Parameters
    ----------
    validation : Validation
        With at least one replay.

    Returns
    -------
    Path
        The page.
    """
    import pandas as pd

    folder = validation.folder
    table = comparison(validation)
    results = validation.results()
    table.to_csv(folder / "report.csv", index=False)
    parts = [pd.read_parquet(result.folder / "requests.parquet") for result in results]
    pd.concat(parts, ignore_index=True).to_parquet(folder / "requests.parquet")
    content = {
        "name": validation.spec.name,
        "facts": validation.facts,
        "comparison": json.loads(table.to_json(orient="records")),
        "cpu": json.loads(cpu_table(validation).to_json(orient="records")),
        "speed": json.loads(speed_table(validation).to_json(orient="records")),
        "runs": [result.summary for result in results],
    }
    (folder / "report.json").write_text(json.dumps(content, indent=1))
    page = folder / "report.html"
    page.write_text(_page(validation, table), encoding="utf-8")
    return page


def summary_sentence(table: pd.DataFrame) -> str:
    """Say how many quantities are within their targets."""
    words = []
    for verb in ("simulated", "predicted"):
        counts = table[f"{verb}_verdict"].value_counts().to_dict() if len(table) else {}
        judged = counts.get("within", 0) + counts.get("outside", 0)
        rest = counts.get("too noisy", 0)
        words.append(
            f"{verb}: {counts.get('within', 0)} of {judged} judged quantities within their target"
            + (f", {rest} too noisy to judge" if rest else "")
        )
    return "; ".join(words) + "."


def _page(validation: Validation, table: pd.DataFrame) -> str:
    import pandas as pd
    from markupsafe import Markup

    from smetric_model.pages import filled_page
    from smetric_model.plots import svg

    folder = validation.folder
    predictions = json.loads((folder / "predictions.json").read_text())
    results = validation.results()
    points = pd.read_parquet(folder / "calibration-points.parquet")
    figures: list[dict[str, Any]] = []
    if len(table):
        figures.append(
            {
                "title": "Measured, simulated, predicted",
                "reading": "Circles: mean of the replays with two standard errors. Squares:"
                " simulated. Triangles: the closed form.",
                "svg": Markup(svg(agreement_figure(table), "agreement", "Agreement")),
            }
        )
    figures.append(
        {
            "title": "Calibration",
            "reading": "Markers: medians of the micro-benchmark (hollow: held out of the fit)."
            " Dashes: the fitted model.",
            "svg": Markup(svg(calibration_figure(points), "calibration", "Calibration")),
        }
    )
    columns, rows = report_rows(table)
    cpu = cpu_table(validation)
    tables: list[dict[str, Any]] = [
        {
            "title": "Comparison",
            "reading": "Errors are model minus measured; of ratios as a difference. Allowed: the"
            " target, or two standard errors where these are more.",
            "columns": columns,
            "rows": rows,
        },
        {
            "title": "CPU by process",
            "reading": "Cores taken inside the windows, and their share of the engines' cores."
            " Router, replayer and tier together should stay below 15 %; others: everything else"
            " on the machine.",
            "columns": ["process", "cores", "share"],
            "rows": [
                [one["process"], f"{one['cores']:.3f}", f"{one['share']:.1%}"]
                for one in cpu.to_dict("records")
            ],
        },
        _calibration_table(points),
        *_speed_tables(validation, table),
        {
            "title": "Replays",
            "reading": "Blocks by the engines' KV events; hits by their counters.",
            "columns": [
                *("policy", "replay", "requests", "failed", "blocks evicted", "local hit tokens"),
                *("external hit tokens", "hits on outputs / prompt tokens", "sent late, p99"),
            ],
            "rows": [_run_row(one.summary, one.folder) for one in results],
        },
    ]
    troubles = [
        f"{one.policy}, replay {one.repeat + 1}: {one.summary['outcome']['note']}"
        for one in results
        if not one.summary["outcome"]["valid"]
    ]
    return filled_page(
        "validation.html.j2",
        name=validation.spec.name,
        summary=summary_sentence(table),
        predicted_at=predictions["written"],
        digest=(folder / "predictions.sha256").read_text().split()[0],
        first_replay=min((one.summary["written"] for one in results), default="none"),
        largest_cv=f"{validation.spec.targets.largest_cv:.0%}",
        troubles=troubles,
        figures=figures,
        tables=tables,
        spec=(folder / "spec.json").read_text(),
    )


def _calibration_table(points: pd.DataFrame) -> dict[str, Any]:
    errors = points.assign(size=points["error_ratio"].abs())
    grouped = errors.groupby(["kind", "held_out"])["size"].agg(["count", "mean", "max"])
    return {
        "title": "Errors of the calibration",
        "reading": "Relative error of the fitted model on each kind of point.",
        "columns": ["kind", "points", "number", "mean", "largest"],
        "rows": [
            [kind, "held out" if held else "fitted", str(int(n)), f"{mean:.1%}", f"{high:.1%}"]
            for (kind, held), n, mean, high in grouped.itertuples()
        ],
    }


def _speed_tables(validation: Validation, table: pd.DataFrame) -> list[dict[str, Any]]:
    speeds = speed_table(validation)
    if speeds.empty:
        return []
    latencies = [
        one for one in table.to_dict("records") if one["quantity"] in ("ttft_p50_s", "tpot_p50_s")
    ]
    return [
        {
            "title": "The engines, measured again",
            "reading": speed_sentence(validation),
            "columns": ["kind", "tokens", "sequences", "calibration", "later", "ratio"],
            "rows": [
                [
                    *(one["kind"], f"{one['tokens']}", f"{one['batch']}"),
                    *(f"{one[name] * 1e3:.1f} ms" for name in ("calibration_s", "later_s")),
                    f"{one['ratio']:.3f}",
                ]
                for one in speeds.to_dict("records")
            ],
        },
        {
            "title": "Latencies at the speed of the replays",
            "reading": "Errors of the simulation, and what they would be had the model been as"
            " much slower or faster as the engines were half-way between calibration and the"
            " second measurement. The verdicts are of the first.",
            "columns": ["policy", "quantity", "error", "at that speed"],
            "rows": [
                [
                    *(one["policy"], QUANTITIES[one["quantity"]][1]),
                    *(
                        _error(one[name], one["quantity"])
                        for name in ("simulated_error", "simulated_error_at_speed")
                    ),
                ]
                for one in latencies
            ],
        },
    ]


def _run_row(summary: dict[str, Any], folder: Path) -> list[str]:
    import pandas as pd

    requests = pd.read_parquet(folder / "requests.parquet")
    removed = sum(one.get("removed_gpu", 0) for one in summary["kv_events"].values())
    prompt = requests["prompt_tokens"].sum()
    lag = summary["lag_p99_s"]
    return [
        summary["policy"],
        str(summary["repeat"] + 1),
        str(len(requests)),
        str(int((requests["error"] != "").sum())),
        f"{removed:,}",
        f"{summary['counters']['prefix_cache_hits_total']:,.0f}",
        f"{summary['counters']['external_prefix_cache_hits_total']:,.0f}",
        f"{requests['output_reuse_tokens'].sum() / prompt:.2%}" if prompt else "–",
        "–" if lag is None else f"{lag * 1e3:.0f} ms",
    ]
