from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the stand-ins, for the tests beside them

from fake_environment import make_environment


@pytest.fixture
def fake_python(tmp_path):
    return make_environment(tmp_path / "environment")
