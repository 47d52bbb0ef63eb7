"""Names, parameters, defaults and reasons are one table; settings come from scenario files."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from smetric_model.errors import SpecError
from smetric_model.routing.registry import POLICIES, describe, make_policy, policy_parameters
from smetric_model.scenario_sections import Policy as ScenarioPolicy


def test_every_policy_states_source_defaults_and_reasons() -> None:
    for name in POLICIES:
        told = describe(name)
        assert told["source"]
        assert set(told) >= {"threshold", "first_turn", "needs_unprefilled_tokens"}
        for parameter in told["parameters"]:
            assert parameter["unit"]
            assert parameter["default"] is not None
            assert len(parameter["why"]) > 10


def test_settings_of_other_policies_are_left_alone() -> None:
    policy = make_policy("lmetric", {"overload": 3.0, "count_self": False, "hit_weight": 0.1})
    assert policy == POLICIES["lmetric"](count_self=False)  # type: ignore[call-arg]
    assert policy_parameters("round-robin") == ()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("smetrics", {}, "'smetrics' is not known; one of smetric, smetric-basic"),
        ("smetric", {"overlaod": 2}, "'overlaod' is not known"),
        ("smetric", {"overload": 0}, "overload is 0; more than 0 is allowed"),
        ("smetric", {"overload": math.nan}, "overload is nan"),
        ("smetric", {"overload": "2"}, "a number is allowed"),
        ("smetric", {"overload": True}, "a number is allowed"),
        ("smetric", {"hit_ratio": 1.5}, "at least 0 and at most 1"),
        ("smetric", {"overload_floor": -1}, "overload_floor is -1"),
        ("smetric", {"tie_break": "random"}, "one of least-loaded, first"),
        ("smetric", {"subtract_shared_prefix": 1}, "true or false"),
        ("smetric", {"shared_by_ratio": 0.0}, "shared_by_ratio is 0.0"),
        ("smetric", {"block_tokens": -16}, "block_tokens is -16"),
        ("bailian", {"hit_weight": 70}, "hit_weight is 70"),
        ("bailian", {"load_normalisation": "sum"}, "one of mean, max, minmax"),
        ("lmetric", {"count_self": "yes"}, "true or false"),
        ("load-balance", {"tie_break": "last"}, "one of least-loaded, first"),
        ("bounded-hash", {"overload": 0.9}, "overload is 0.9; at least 1"),
        ("smetric-slo", {"prefill_tokens_per_s": 0}, "prefill_tokens_per_s is 0"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_policy(name, settings)


def test_a_copy_checks_its_parameters() -> None:
    policy = make_policy("smetric")
    assert policy.with_parameters(overload=3.0) == make_policy("smetric", {"overload": 3.0})
    with pytest.raises(SpecError, match="has no parameter 'count_self'"):
        policy.with_parameters(count_self=True)
    with pytest.raises(SpecError, match="overload is -1"):
        policy.with_parameters(overload=-1)


def test_a_scenario_takes_every_policy_and_no_other() -> None:
    assert get_args(ScenarioPolicy) == tuple(POLICIES)


@pytest.mark.shared
def test_defaults_are_those_of_the_scenario_file(shared_dir: Path) -> None:
    text = (shared_dir / "scenario.example.toml").read_text()
    scenario = tomllib.loads(text)
    router = scenario["router"]
    names = next(line for line in text.splitlines() if line.startswith("policy")).split("#")[1]
    assert names.split() == list(POLICIES)
    slo = {key: scenario["slo"][key] for key in ("ttft_base_s", "ttft_per_prompt_token_s")}
    engine = {"block_tokens": scenario["engine"]["block_tokens"]}
    given = {**router, **slo, **engine}
    for name in POLICIES:
        for parameter in describe(name)["parameters"]:
            if parameter["name"] in given:
                assert parameter["default"] == given[parameter["name"]], (name, parameter["name"])


def test_public_names_load_on_first_use() -> None:
    import smetric_model.routing as routing

    for name in routing.__all__:
        assert getattr(routing, name) is not None
    assert set(routing.__all__) <= set(dir(routing))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = routing.nothing
