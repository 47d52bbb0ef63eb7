"""Spaces of designs: what is in them, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from smetric_model.designing.space import GIVEN, DesignSpace, default_space, read_space
from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario


def test_all_combinations_and_the_given_design_once() -> None:
    space = DesignSpace(
        {"cluster.nics_per_node": (1, 2), "router.policy": ("smetric", "bailian")},
        ({"router.policy": "lmetric"}, {"router.policy": "bailian"}),
    )
    names = [design.name for design in space.designs(Scenario())]
    assert names == [GIVEN, "Bailian", "2 NICs/node", "2 NICs/node, Bailian", "LMetric"]


def test_what_does_not_fit_stays_with_the_reason() -> None:
    large = Scenario.from_dict({"llm": {"name": "Qwen3-235B-A22B-FP8"}, "engine": {"tp": 4}})
    space = DesignSpace({"engine.tp": (1, 4, 16)})
    designs = {d.name: d for d in space.designs(large)}
    assert designs["TP 1"].scenario is None
    assert "does not fit" in designs["TP 1"].error
    assert designs["TP 16"].scenario is not None or designs["TP 16"].error
    assert designs[GIVEN].scenario is not None


def test_a_larger_tier_brings_its_memory() -> None:
    space = DesignSpace({"global_tier.bytes_per_node": (4000e9,)})
    design = space.designs(Scenario())[1]
    assert design.scenario is not None
    assert design.scenario.cluster.dram_bytes_per_node == 4000e9


def test_two_pools_by_their_share() -> None:
    space = DesignSpace({"prefill_share": (0, 0.25)})
    given, pools = space.designs(Scenario())
    assert given.name == GIVEN
    assert pools.scenario is not None
    section = pools.scenario.cluster
    assert section.serving == "disaggregated"
    assert section.prefill_instances == section.instances / 4


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"engine.gpus": ("H20",)}, "did you mean engine.gpu"),
        ({"cluster.serving": ("colocated",)}, "prefill_share"),
        ({"prefill_share": (1.0,)}, "in [0, 1)"),
        ({"prefill_share": ("half",)}, "in [0, 1)"),
        ({"workload.rate_rps": (1.0,)}, "no part of a design"),
        ({"cluster.nics_per_node": ()}, "no values"),
        ({"cluster.nics_per_node": (1, 1)}, "stands twice"),
        ({"cluster.nics_per_node": ([1],)}, "numbers, texts, booleans"),
        ({"seed": tuple(range(100)), "engine.tp": tuple(range(1, 101))}, "5,000 at most"),
    ],
)
def test_wrong_spaces_are_told_in_words(axes: dict[str, tuple[object, ...]], told: str) -> None:
    with pytest.raises(SpecError, match="space: ") as error:
        DesignSpace(axes)
    assert told in str(error.value)


def test_a_value_allowed_nowhere_is_a_mistake_of_the_space() -> None:
    with pytest.raises(SpecError, match=r"space: .*cluster\.nics_per_node = 0"):
        DesignSpace({"cluster.nics_per_node": (0,)}).designs(Scenario())


def test_files_may_have_dotted_keys_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        '[space]\n"engine.gpu" = ["H20", "H100"]\n[space.global_tier]\nbytes_per_node = [0, 1e12]\n'
    )
    assert read_space(path).axes == {
        "engine.gpu": ("H20", "H100"),
        "global_tier.bytes_per_node": (0, 1e12),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[prices]\n", r"\[space\] is needed; the file has \[prices\]"),
        ("[space]\nseed = 1\n", "a list of values is needed"),
        ("[space\n", "no TOML"),
        ('[space]\n"engine.gpuu" = ["H20"]\n', "did you mean engine.gpu"),
    ],
)
def test_wrong_files_are_told_in_words(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=told) as error:
        read_space(path)
    assert str(path) in str(error.value)


def test_the_default_space_is_around_the_given_design() -> None:
    scenario = Scenario()
    space = default_space(scenario, (3.0, 0.25))
    designs = space.designs(scenario)
    tiers = {d.scenario.global_tier.bytes_per_node for d in designs if d.scenario}
    lines = {d.scenario.cluster.nic_bytes_per_s for d in designs if d.scenario}
    policies = {d.scenario.router.policy for d in designs if d.scenario}
    assert tiers == {0.0, 500e9, 1000e9, 2000e9}
    assert lines == {12.5e9, 25e9, 50e9}
    assert policies == {"smetric", "bailian", "lmetric", "load-balance"}
    assert any(d.name == "OVERLOAD 3, HIT_RATIO 0.25" for d in designs)
    assert len({d.name for d in designs}) == len(designs)


def test_what_the_engine_would_not_start_is_no_design() -> None:
    scenario = Scenario(
        llm={"name": "Qwen3-235B-A22B-FP8"},
        engine={"tp": 4, "max_context_tokens": 40_960},
        cluster={"instances": 8},
    )
    space = DesignSpace({"engine.tp": (4, 8), "engine.ep": (1, 8)})
    errors = {design.name: design.error for design in space.designs(scenario)}
    refused = [name for name, error in errors.items() if "vLLM refuses this" in error]
    assert len(refused) == 1
    assert "TP 8" in refused[0]
    assert "ep = 8 or a smaller tp avoids it" in errors[refused[0]]
    assert not errors[GIVEN]
