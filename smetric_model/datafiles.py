"""Where the facts lie: ``data/`` in a checkout, ``smetric_model/data/`` in an installed wheel."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from smetric_model.errors import SpecError

__all__ = ["data_dir", "load_toml", "read_toml"]


@cache
def data_dir() -> Path:
    """Return the directory of the packaged facts.

    Returns
    -------
    Path
        ``smetric_model/data`` of an installed wheel, else ``data`` of the checkout.

    Raises
    ------
    FileNotFoundError
        If neither exists (a broken installation).
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "data", package.parent / "data"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no data directory beside {package}: the installation is incomplete")


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of the user's.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict
        The parsed file.

    Raises
    ------
    SpecError
        If it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path}: no TOML: {error}") from None


def load_toml(relative_path: str) -> dict[str, Any]:
    """Read one TOML file of the data directory.

    Parameters
    ----------
    relative_path : str
        Path below :func:`data_dir`, such as ``"gpus.toml"``.

    Returns
    -------
    dict
        The parsed file.
    """
    with (data_dir() / relative_path).open("rb") as file:
        return tomllib.load(file)
