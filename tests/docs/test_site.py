"""The API pages cover what is public."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import smetric_model

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "docs" / "api"
DOCUMENTED = {
    name
    for page in API.glob("*.md")
    for name in re.findall(r"automodule:: (\S+)", page.read_text())
}
PACKAGES = sorted(
    p.name for p in (ROOT / "smetric_model").iterdir() if (p / "__init__.py").exists()
)


@pytest.mark.parametrize("name", [n for n in smetric_model.__all__ if n != "__version__"])
def test_the_public_face_is_listed(name):
    listed = re.findall(r"~([\w.]+)`", (API / "index.md").read_text())
    assert name in {entry.rpartition(".")[2] for entry in listed}
    home = next(entry for entry in listed if entry.endswith(f".{name}")).rpartition(".")[0]
    assert home in DOCUMENTED


@pytest.mark.parametrize("package", [p for p in PACKAGES if p != "cli"])
def test_every_package_has_pages(package):
    prefix = f"smetric_model.{package}"
    assert any(name == prefix or name.startswith(f"{prefix}.") for name in DOCUMENTED)


def test_documented_modules_exist():
    for name in DOCUMENTED:
        path = ROOT.joinpath(*name.split("."))
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), name


MODELS = ("memory", "calibration", "instance-model", "cluster-model", "stickiness", "thresholds")
MODELS += ("bound", "simulate", "synthesis")


@pytest.mark.parametrize("page", MODELS)
def test_every_model_says_where_it_holds(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert re.search(r"^## (Where it|Limits|How good)", text, re.MULTILINE)
