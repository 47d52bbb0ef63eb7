"""Write the tables of docs/reproduction.md, and its figure, from data/reproduction.

Each stands between ``<!-- made: NAME -->`` and ``<!-- made -->``; what is around them is written by
hand.  A test holds the page equal to what is made here.

    python tools/reproduction_page.py            # rewrites the page and the figure
    python tools/reproduction_page.py --check    # says whether the page is as made; changes nothing
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from smetric_model.datafiles import data_dir
from smetric_model.reproduction import claims_table, load_parameters, read_results, score
from smetric_model.reproduction.report import claims_markdown, deciding_markdown, score_markdown
from smetric_model.reproduction.sensitivity import deciding, sensitivity_figure, sensitivity_table

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "reproduction.md"
FIGURE = DOCS / "figures" / "reproduction_sensitivity.png"
#: the preset under which the assumptions were varied
SENSITIVITY_PRESET = "bailian-trace-1-medium"


def parts() -> dict[str, str]:
    """Markdown of each part of the page, from the shipped rows."""
    table = read_results()
    workload = pd.read_csv(data_dir() / "reproduction" / "workload.csv")
    parameters = load_parameters()
    claims = claims_table(table, workload, parameters.operating, presets=parameters.presets)
    decisive = deciding(sensitivity_table(table, SENSITIVITY_PRESET, parameters.operating))
    return {
        "loads": loads_markdown(table, parameters.presets),
        "score": score_markdown(score(claims)),
        "deciding": deciding_markdown(decisive),
        "claims": claims_markdown(claims),
    }


def loads_markdown(table: pd.DataFrame, presets: tuple[str, ...]) -> str:
    """Write what 1.0x is, and how many rows there are."""
    lines = [  # the same for all policies, tiers and seeds
        "| set-up | " + " | ".join(name.rsplit("-", 1)[-1] for name in presets) + " | rows |",
        "|---|" + "---|" * (len(presets) + 1),
    ]
    for setup, part in table.groupby("setup", sort=False):
        sweep = part[part["study"] == "sweep"]
        cells = []
        for preset in presets:
            rows = sweep[(sweep["preset"] == preset) & (sweep["load"] == 1)]
            cells.append(f"{rows['rate_rps'].iloc[0]:.3g}")
        lines.append(f"| {setup} | {' | '.join(cells)} | {len(part):,} |")
    return "\n".join(lines) + "\n"


def filled(page: str, made: Mapping[str, str]) -> str:
    """``page`` with each part between its marks replaced.

    Raises ``ValueError`` where the marks and the parts do not match one to one.
    """
    pattern = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- made -->)", re.DOTALL)
    names = [found[2] for found in pattern.finditer(page)]
    if sorted(names) != sorted(made):
        raise ValueError(f"marks for {sorted(names)}, parts {sorted(made)}")
    return pattern.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", page)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="Change nothing.")
    given = options.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old, parts())
    if given.check:
        print(f"{PAGE}: {'as made' if new == old else 'differs from what is made'}")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    table = sensitivity_table(read_results(), SENSITIVITY_PRESET)
    sensitivity_figure(table).savefig(FIGURE, dpi=120)
    print(f"{PAGE} and {FIGURE} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
