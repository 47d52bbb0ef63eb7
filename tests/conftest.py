from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines that run tests are shared: a slow example says nothing.
settings.register_profile("package", deadline=None)
settings.load_profile("package")

SKIP_REASON = "needs SMETRIC_SHARED"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``shared`` are skipped, by name, where the shared folder is not there."""
    if os.environ.get("SMETRIC_SHARED"):
        return
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(pytest.mark.skip(reason=SKIP_REASON))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of shared traces, measurements and cases; only for tests marked ``shared``."""
    return Path(os.environ["SMETRIC_SHARED"])
