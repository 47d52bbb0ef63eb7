"""What all scripts share: looks; and the options and loading of Figures 5 to 9."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError, TraceError
from smetric_model.workload import Trace, infer_sessions, load_trace, with_poisson_starts

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: What the paper reports, drawn beside as grey marks.
PAPER = "#555555"
SHIPPED = data_dir() / "traces" / "agents-small.parquet"


class Look(NamedTuple):
    """How a policy is drawn: its name, and colour and marker that tell it apart without colour."""

    name: str
    color: str
    marker: str
    line: Any
    hatch: str


#: Colours of Okabe and Ito, which those with any colour vision tell apart.
POLICIES = {
    "smetric": Look("SMetric", "#0072B2", "o", "-", ""),
    "smetric-basic": Look("SMetric (basic)", "#56B4E9", "v", (0, (5, 2)), ".."),
    "bailian": Look("Bailian", "#D55E00", "s", (0, (4, 1.5, 1, 1.5)), "//"),
    "lmetric": Look("LMetric", "#009E73", "^", (0, (2, 1.2)), "\\\\"),
    "load-balance": Look("load balance", "#E69F00", "D", (0, (1, 1.2)), "xx"),
    "dynamo": Look("Dynamo", "#CC79A7", "P", (0, (6, 1.5, 1, 1.5, 1, 1.5)), "++"),
}


@dataclass(frozen=True)
class Named:
    """A trace and what to call it."""

    name: str
    trace: Trace
    inferred: bool


def parser(description: str, figure: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every figure has."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "traces", nargs="*", type=Path, default=[SHIPPED],
        help="trace files of any known format [the shipped synthetic one]",
    )  # fmt: skip
    result.add_argument("--out", type=Path, default=Path("out") / f"{figure}.png")
    result.add_argument(
        "--session-rate",
        type=float,
        default=0.05,
        metavar="RPS",
        help="Poisson session starts for traces whose sessions share no clock [0.05]",
    )
    result.add_argument("--seed", type=int, default=0)
    return result


def load(options: argparse.Namespace, *, sessions: bool = True, clock: bool = False) -> list[Named]:
    """Load the traces; infer sessions and lay them on one clock where needed."""
    result = []
    for path in options.traces:
        trace = load_trace(path, seed=options.seed)
        inferred = sessions and trace.sessions is None
        if inferred:
            trace = infer_sessions(trace).trace
        if clock and trace.session_clock != "shared":
            trace = with_poisson_starts(trace, options.session_rate, options.seed)
        name = path.name.split(".")[0]
        result.append(Named(name, trace, inferred))
    return result


def label(named: Named) -> str:
    """Return the name of a trace, with a note where its sessions are inferred."""
    return named.name + ("\n(sessions inferred)" if named.inferred else "")


def figure(columns: int = 1, width: float = 5.2, height: float = 3.4) -> tuple[Figure, Sequence]:
    """Return a figure and its axes, styled alike."""
    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.color": "#e0e0e0", "grid.linewidth": 0.6, "axes.axisbelow": True}
    )  # fmt: skip
    made, axes = plt.subplots(1, columns, figsize=(width * columns, height), squeeze=False)
    return made, axes[0]


def save(made: Figure, path: Path) -> None:
    """Write the figure and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if made.get_layout_engine() is None:
        made.tight_layout()
    made.savefig(path, dpi=160)
    print(f"written {path}")


def run(main: Callable[[], None]) -> None:
    """Run a script; a trace that cannot be drawn is one line on stderr."""
    try:
        main()
    except (TraceError, SpecError, OSError) as error:
        sys.exit(str(error))
