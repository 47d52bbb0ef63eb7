from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from smetric_model.designing import DesignPlan
    from smetric_model.planning import Plan
    from smetric_model.scenario import Scenario

# Machines that run tests are shared: a slow example says nothing.
# CI tries the same examples each time; elsewhere every run tries new ones.
settings.register_profile(
    "package",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("package")

SKIP_REASON = "needs SMETRIC_SHARED"


#: half a minute and more each: begun first, so that test processes side by side end together
LONGEST = (
    "notebooks/",
    "live/rig/test_interrupts.py",
    "live/rig/test_validation.py",
    "docs/test_code_blocks.py",
    "reproduction/",
    "planning/test_capacity.py",
    "operations/",
    "live/router/",
)


def _length(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    places = [place for place, start in enumerate(LONGEST) if path.startswith(start)]
    return places[0] if places else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``shared`` are skipped, by name, where the shared folder is not there."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_length)
    if os.environ.get("SMETRIC_SHARED"):
        return
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(pytest.mark.skip(reason=SKIP_REASON))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of shared traces, measurements and cases; only for tests marked ``shared``."""
    return Path(os.environ["SMETRIC_SHARED"])


@pytest.fixture(scope="session")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve growing sessions of five turns, and one request too long for any instance."""
    lines = []
    for turn in range(5):
        for session in range(12):
            blocks = 4 * (turn + 1) + session
            lines.append(
                {
                    "timestamp": 1000 * (40 * turn + (3 + turn) * session),
                    "input_length": 512 * blocks,
                    "output_length": 40 + 9 * session,
                    "hash_ids": [1000 * session + block for block in range(blocks)],
                }
            )
    lines.append(
        {
            "timestamp": 200_000,
            "input_length": 512 * 600,
            "output_length": 10,
            "hash_ids": [90_000 + block for block in range(600)],
        }
    )
    path = tmp_path_factory.mktemp("traces") / "small.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def small_scenario(small_trace: Path) -> Scenario:
    """Two nodes of one instance."""
    from smetric_model.scenario import Scenario

    return Scenario.from_dict(
        {
            "name": "small",
            "workload": {"trace": str(small_trace), "rate_rps": 0.8},
            "cluster": {"instances": 2, "gpus_per_node": 1},
            "engine": {"max_running_requests": 32},
        }
    )


@pytest.fixture(scope="session")
def small_plan(small_scenario: Scenario) -> Plan:
    """A real plan of perfect placement, quickly made."""
    from smetric_model.planning import plan

    return plan(small_scenario)


@pytest.fixture(scope="session")
def search_scenario() -> Scenario:
    """The shipped workload at a low rate on small nodes, a short window: a few instances."""
    from smetric_model.datafiles import data_dir
    from smetric_model.scenario import Scenario

    shipped = Scenario.from_toml(data_dir() / "scenarios" / "agents-small.toml")
    return shipped.replace(
        **{
            "name": "search",
            "workload.rate_rps": 0.8,
            "workload.window_s": 300.0,
            "workload.warmup_s": 300.0,
            "cluster.instances": 6,
            "cluster.gpus_per_node": 2,
        }
    )


@pytest.fixture(scope="session")
def small_search(search_scenario: Scenario) -> DesignPlan:
    """A real search over few designs, simulated and bounded."""
    from smetric_model.designing import DesignSpace, plan

    space = DesignSpace(
        {"global_tier.bytes_per_node": (0, 1000e9, 2000e9)},
        ({"router.policy": "load-balance"}, {"engine.gpu": "L40S"}),
    )
    return plan(search_scenario, space=space, check=2, seeds=3)
