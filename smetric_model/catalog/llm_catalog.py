"""LLMs by catalog name or by path."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from smetric_model.catalog._lookup import unknown
from smetric_model.catalog.llm import Llm
from smetric_model.catalog.llm_config import llm_from_config
from smetric_model.datafiles import load_toml
from smetric_model.errors import SpecError

__all__ = ["catalog_names", "load"]

_FILE = "llms.toml"


@cache
def _facts() -> dict[str, dict[str, Any]]:
    return load_toml(_FILE)


def catalog_names() -> list[str]:
    """Names in ``data/llms.toml``."""
    return list(_facts())


def _keys(name: str, seen: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """Return configuration keys and source of an entry, its ``like`` entry below it."""
    where = f"data/{_FILE}, [{name!r}]"
    if name in seen or name not in _facts():
        raise SpecError(f"{where}: 'like' names no other entry")
    entry = dict(_facts()[name])
    source = entry.pop("source", None)
    if not source:
        raise SpecError(f"{where}: key 'source' is missing")
    base = entry.pop("like", None)
    if base is None:
        return entry, source
    below, _ = _keys(base, (*seen, name))
    return below | entry, source


@cache
def _from_catalog(name: str) -> Llm:
    config, source = _keys(name)
    return llm_from_config(config, name, f"data/{_FILE}, [{name!r}]", source)


def _read(path: Path) -> Llm:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise SpecError(f"{path}: the folder holds no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(f"{file}:{error.lineno}: is no JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{file}: is no JSON: not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    return llm_from_config(config, str(path), str(file))


def load(name_or_path: str) -> Llm:
    """Do the work of :func:`smetric_model.catalog.llm.get_llm`."""
    name = name_or_path
    if name in _facts():
        return _from_catalog(name)
    path = Path(name).expanduser()
    if name and path.exists():
        return _read(path)
    short = name.rsplit("/", 1)[-1]
    if name.count("/") == 1 and short in _facts():
        return _from_catalog(short)
    if name.endswith(".json") or name.count("/") > 1 or name.startswith((".", "~")):
        raise SpecError(f"{name}: no such file or folder (a path to a Hugging Face config.json)")
    raise unknown(
        "LLM", name, _facts(), " A path to a Hugging Face config.json, or to its folder, works too."
    )
