"""Make data/reproduction/profiles.parquet: distributions and minute loads for the figures.

    python tools/make_profiles.py [--results RESULTS | --anchors ANCHORS] [--out OUT]

What 1.0x load is comes from the result table (``smetric-model reproduce``), or from the
``anchors.json`` that a run of it keeps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from smetric_model.errors import SpecError
from smetric_model.reproduction.parameters import load_parameters
from smetric_model.reproduction.profiles import anchors_of, make_profiles, write_profiles
from smetric_model.reproduction.table import read_results

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, help="result table [the shipped one]")
    parser.add_argument("--anchors", type=Path, help="anchors.json of a run")
    parser.add_argument("--out", type=Path, default=Path("data/reproduction/profiles.parquet"))
    options = parser.parse_args()
    try:
        if options.anchors:
            anchors = json.loads(options.anchors.read_text())["rates_rps"]
        else:
            anchors = anchors_of(read_results(options.results))
        table = make_profiles(
            load_parameters(),
            anchors,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (SpecError, OSError) as error:
        sys.exit(str(error))
    write_profiles(table, options.out)
    print(f"written {options.out}: {len(table)} rows, {options.out.stat().st_size} bytes")
