"""The documentation page says what the code does."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from router_rig import FakeEngine, rig

from smetric_model.live.router.config_text import config_markdown

PAGE = Path(__file__).parents[3] / "docs" / "router.md"
FOLDER = Path(__file__).parent


def test_the_reference_of_the_configuration_is_the_models() -> None:
    """Regenerate with ``config_markdown()`` if it fails."""
    assert config_markdown() in PAGE.read_text()


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"::(test_\w+)", PAGE.read_text()))
    there = set()
    for file in FOLDER.glob("test_*.py"):
        there |= set(re.findall(r"def (test_\w+)", file.read_text()))
    assert len(named) > 25
    assert named <= there


def test_every_metric_of_the_page_is_there() -> None:
    table = PAGE.read_text().split("| metric (`smetric_router_…`)")[1].split("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    named = set(re.findall(r"`([a-z][a-z_]+)`", " ".join(cells)))
    found: set[str] = set()

    async def main() -> None:
        config = {
            "hits": {"source": "exact"},
            "instance_settings": [{"kv_events": "tcp://127.0.0.1:1"}],
            "log": {"decisions": os.devnull},
        }
        async with rig(FakeEngine(), config=config) as r:
            await r.chat("u")
            text = r.service.metrics.text().decode()
            found.update(re.findall(r"^# TYPE smetric_router_(\w+)", text, re.MULTILINE))

    asyncio.run(main())
    assert len(named) > 25
    assert {name for name in named if name not in found} == set()
