"""The paper's claims: ``data/claims.csv``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smetric_model.errors import SpecError
from smetric_model.reproduction.tolerance import (
    ClaimedValue,
    Tolerance,
    parse_tolerance,
    parse_value,
)

__all__ = ["USES", "Claim", "load_claims"]

Use = Literal["calibrate", "predict", "context"]
#: what a claim may be used for
USES: tuple[Use, ...] = ("calibrate", "predict", "context")
_COLUMNS = (
    "id",
    "figure",
    "setting",
    "quantity",
    "policy",
    "value",
    "unit",
    "compare_to",
    "use",
    "tolerance",
)


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes
    ----------
    id, figure, setting, quantity, policy, unit, compare_to : str
        As in the file.
    text : str
        The value as the paper has it.
    value : ClaimedValue
        The same, read.
    use : str
        ``calibrate``, ``predict`` or ``context``.
    tolerance_text : str
        As in the file.
    tolerance : Tolerance
        The same, read.
    """

    id: str
    figure: str
    setting: str
    quantity: str
    policy: str
    unit: str
    compare_to: str
    text: str
    value: ClaimedValue
    use: Use
    tolerance_text: str
    tolerance: Tolerance


def load_claims(path: str | Path | None = None) -> tuple[Claim, ...]:
    """Read the claims.

    Parameters
    ----------
    path : str or Path, optional
        Another file than the shipped ``data/claims.csv``.

    Returns
    -------
    tuple of Claim

    Raises
    ------
    SpecError
        If the file is missing, or a line is not as it should be (with its id).
    """
    from smetric_model.datafiles import data_dir

    file = Path(path) if path is not None else data_dir() / "claims.csv"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}") from None
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise SpecError(f"{file}: columns {', '.join(_COLUMNS)} are needed")
    claims = []
    for row in reader:
        if row["use"] not in USES:
            raise SpecError(
                f"{file}: {row['id']}: use = {row['use']!r}: one of {', '.join(USES)} is needed"
            )
        try:
            tolerance = parse_tolerance(row["tolerance"])
        except SpecError as error:
            raise SpecError(f"{file}: {row['id']}: {error}") from None
        claims.append(
            Claim(
                **{k: row[k] for k in ("id", "figure", "setting", "quantity", "policy", "unit")},
                compare_to=row["compare_to"],
                text=row["value"],
                value=parse_value(row["value"]),
                use=row["use"],
                tolerance_text=row["tolerance"],
                tolerance=tolerance,
            )
        )
    return tuple(claims)
