from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from smetric_model import Scenario
from smetric_model._scenario_text import scenario_markdown
from smetric_model.analytic.demand import instance_of
from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.scenario import Dtype, RouterSection, SloSection
from smetric_model.units import dtype_bytes

ROOT = Path(__file__).resolve().parents[1]


def _models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {"": Scenario}
    for name, field in Scenario.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found[name] = field.annotation
    return found


MODELS = _models()
KEYS = [
    (section, key)
    for section, model in MODELS.items()
    for key in model.model_fields
    if key not in (*MODELS, "groups", "failures")  # lists of tables: their own tests
]
DOTTED = [f"{section}.{key}" if section else key for section, key in KEYS]


def _content(dotted: str, value: Any) -> dict[str, Any]:
    section, _, key = dotted.rpartition(".")
    return {section: {key: value}} if section else {key: value}


def _bounds(metadata: tuple[Any, ...]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for item in metadata:
        for part in getattr(item, "metadata", [item]):
            limits |= {n: getattr(part, n) for n in ("gt", "ge", "lt", "le") if hasattr(part, n)}
            if getattr(part, "allow_inf_nan", None) is False:
                limits["finite"] = True
    return limits


def _strategy(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Allowed values of a key, from its annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *extra = get_args(annotation)
        return _strategy(base, (*metadata, *extra))
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin in (Union, types.UnionType):
        return st.one_of(
            *(_strategy(part, metadata) for part in get_args(annotation) if part is not type(None))
        )
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return st.text(min_size=1)
    limits = _bounds(metadata)
    low, high = limits.get("gt", limits.get("ge")), limits.get("lt", limits.get("le"))
    if annotation is int:
        return st.integers(low, 2**63 - 1 if high is None or high == 2**63 else high)
    assert annotation is float
    return st.floats(
        low,
        high,
        exclude_min="gt" in limits,
        exclude_max="lt" in limits,
        allow_nan=False,
        allow_infinity=high is None and "finite" not in limits,
    )


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid content of a scenario file: some keys, the checks across keys met."""
    content: dict[str, Any] = {}
    for section, key in KEYS:
        if draw(st.booleans()):
            field = MODELS[section].model_fields[key]
            table = content.setdefault(section, {}) if section else content
            table[key] = draw(_strategy(field.annotation, tuple(field.metadata)))
    engine, cluster = content.setdefault("engine", {}), content.setdefault("cluster", {})
    ep = draw(st.integers(1, 4))
    engine |= {"ep": ep, "tp": ep * draw(st.integers(1, 4))}
    engine["max_context_tokens"] = engine.get("block_tokens", 16) + draw(st.integers(0, 10**6))
    cluster["gpus_per_node"] = engine["tp"] * draw(st.integers(1, 3))
    content.setdefault("global_tier", {})["bytes_per_node"] = draw(
        st.floats(0, cluster.get("dram_bytes_per_node", 1280e9))
    )
    for key in ("instances", "prefill_instances", "decode_instances"):
        cluster.pop(key, None)
    if cluster.get("serving") == "disaggregated":
        cluster["prefill_instances"] = draw(st.integers(1, 1000))
        cluster["decode_instances"] = draw(st.integers(1, 1000))
    elif draw(st.booleans()):
        cluster["instances"] = draw(st.integers(1, 1000))
    workload, slo = content.get("workload", {}), content.get("slo", {})
    if "trace" in workload and "preset" in workload:
        del workload[draw(st.sampled_from(["trace", "preset"]))]
    if slo.get("ttft_base_s") == 0 and slo.get("ttft_per_prompt_token_s") == 0:
        slo["ttft_base_s"] = 1.0
    return content


@given(contents())
def test_toml_and_dict_round_trip(content: dict[str, Any]) -> None:
    scenario = Scenario.from_dict(content)
    again = Scenario.from_dict(tomllib.loads(scenario.to_toml()))
    assert again == scenario
    assert again.to_toml() == scenario.to_toml()
    assert (hash(again), again.scenario_id) == (hash(scenario), scenario.scenario_id)
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    for section, table in content.items():
        written = scenario.to_dict()[section]
        for key, value in table.items() if isinstance(table, dict) else [(section, table)]:
            assert (written[key] if isinstance(table, dict) else written) == value


@given(contents(), st.integers(0, 2**31))
def test_replace_changes_one_key_only(content: dict[str, Any], seed: int) -> None:
    scenario = Scenario.from_dict(content)
    other = scenario.replace(seed=seed, **{"router.overload": 3.25})
    expected = scenario.to_dict()
    expected["seed"], expected["router"]["overload"] = seed, 3.25
    assert other.to_dict() == expected
    assert Scenario.from_dict(content) == scenario


@pytest.mark.parametrize("dotted", DOTTED)
def test_every_mistyped_key_is_refused_with_its_dotted_path_and_the_right_one(dotted: str) -> None:
    section, _, key = dotted.rpartition(".")
    wrongs = [key + "x", "x" + key]
    if len(key) > 2:
        wrongs += [key[:-1] + "_", key[0] + key[2:]]
    for wrong in wrongs:
        path = f"{section}.{wrong}" if section else wrong
        with pytest.raises(SpecError) as caught:
            Scenario.from_dict(_content(path, 1))
        assert str(caught.value) == f"{path} = 1: unknown key; did you mean {dotted}?"


@given(st.sampled_from(list(MODELS)), st.text(min_size=1))
def test_every_unknown_key_is_refused_in_every_section(section: str, key: str) -> None:
    if key in MODELS[section].model_fields:
        return
    with pytest.raises(SpecError) as caught:
        Scenario.from_dict({section: {key: 0}} if section else {key: 0})
    assert str(caught.value).startswith(f"{section}.{key} = 0: " if section else f"{key} = 0: ")


@pytest.mark.parametrize("dotted", DOTTED)
@pytest.mark.parametrize("value", [[1], {"a": 1}, -1, math.nan, ""])
def test_every_key_refuses_what_it_cannot_be(dotted: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        Scenario.from_dict(_content(dotted, value))
    assert str(caught.value).startswith(f"{dotted} = ")
    assert "allowed is " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dotted", "value", "allowed"),
    [
        ("engine.memory_utilisation", 0, "number in (0, 1]"),
        ("engine.memory_utilisation", 1.01, "number in (0, 1]"),
        ("engine.tp", 0, "integer >= 1"),
        ("engine.tp", 1.0, "integer >= 1"),
        ("engine.tp", True, "integer >= 1"),
        ("cluster.nic_efficiency", 0.0, 'number in (0, 1] | "measured"'),
        ("cluster.nic_bytes_per_s", math.inf, "number > 0"),
        ("workload.rate_rps", 0, 'number > 0 | "trace"'),
        ("workload.rate_rps", math.inf, 'number > 0 | "trace"'),
        ("client.timeout_s", 0, "number > 0 or inf"),
        ("client.retries", -1, "integer >= 0"),
        ("router.hit_ratio", 1.5, "number in [0, 1]"),
        ("router.hit_weight", -0.1, "number in [0, 1]"),
        ("router.overload", -0.5, "number >= 0 or inf"),
        ("router.count_self", 1, "true | false"),
        ("slo.attainment", 0.0, "number in (0, 1]"),
        ("seed", 2**63, "integer in [0, 2**63)"),
    ],
)
def test_values_outside_their_range_are_refused(dotted: str, value: Any, allowed: str) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(dotted)} = .*: allowed is ") as caught:
        Scenario.from_dict(_content(dotted, value))
    assert str(caught.value).endswith(f"allowed is {allowed}")


@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("engine.memory_utilisation", 1),
        ("cluster.nic_efficiency", 0.39),
        ("workload.rate_rps", "trace"),
        ("workload.warmup_s", 0),
        ("client.timeout_s", math.inf),
        ("router.overload", 0),
        ("router.overload", math.inf),
        ("router.hit_ratio", 0),
        ("router.hit_weight", 1),
        ("slo.tpot_s", math.inf),
        ("slo.attainment", 1),
        ("global_tier.bytes_per_node", 0),
    ],
)
def test_values_at_the_edge_of_their_range_are_taken(dotted: str, value: Any) -> None:
    section, _, key = dotted.partition(".")
    assert Scenario.from_dict(_content(dotted, value)).to_dict()[section][key] == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"engine": {"tp": 4, "ep": 3}}, "engine: ep = 3 does not divide tp = 4"),
        ({"engine": {"tp": 12}}, "engine.tp = 12 exceeds cluster.gpus_per_node = 8"),
        ({"engine": {"block_tokens": 64, "max_context_tokens": 32}}, "block_tokens = 64 exceeds"),
        ({"cluster": {"serving": "disaggregated"}}, "needs prefill_instances and decode_instances"),
        (
            {"cluster": {"serving": "disaggregated", "prefill_instances": 8}},
            "needs prefill_instances and decode_instances",
        ),
        (
            {
                "cluster": {
                    "serving": "disaggregated",
                    "instances": 32,
                    "prefill_instances": 8,
                    "decode_instances": 8,
                }
            },
            "must sum to instances = 32",
        ),
        ({"cluster": {"prefill_instances": 8}}, 'need serving = "disaggregated"'),
        ({"workload": {"trace": "a", "preset": "b"}}, "exactly one of them"),
        ({"slo": {"ttft_base_s": 0, "ttft_per_prompt_token_s": 0}}, "no request could meet it"),
        ({"global_tier": {"bytes_per_node": 2e12}}, "exceeds cluster.dram_bytes_per_node"),
    ],
)
def test_values_that_contradict_each_other_are_refused(content: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Scenario.from_dict(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pools_give_the_number_of_instances() -> None:
    pools = {"serving": "disaggregated", "prefill_instances": 8, "decode_instances": 3}
    assert Scenario.from_dict({"cluster": pools}).cluster.instances == 11


def test_an_instance_larger_than_a_node_takes_whole_nodes() -> None:
    assert Scenario.from_dict({"engine": {"tp": 16}}).engine.tp == 16
    # GPUs left over on a node stay idle: allowed, and silent.
    assert Scenario.from_dict({"engine": {"tp": 3}}).engine.tp == 3


def test_a_preset_takes_the_place_of_the_default_trace() -> None:
    assert Scenario().workload.trace == "data/traces/agents-small.parquet"
    scenario = Scenario.from_dict({"workload": {"preset": "medium"}})
    assert scenario.workload.trace is None
    with pytest.raises(SpecError, match=r"preset = 'medium'.*no trace file"):
        scenario.trace_path()
    back = scenario.replace(**{"workload.preset": None})
    assert back == Scenario()


def test_a_word_near_an_allowed_one_is_suggested() -> None:
    with pytest.raises(SpecError, match='did you mean "load-balance"'):
        Scenario.from_dict({"router": {"policy": "load_balance"}})


def test_the_start_of_a_key_and_its_unit_are_recognised() -> None:
    with pytest.raises(SpecError, match=r"workload\.rate = .*did you mean workload\.rate_rps\?"):
        Scenario.from_dict({"workload": {"rate": 8.0}})
    with pytest.raises(SpecError, match=r"did you mean slo\.tpot_s \(in seconds\)\?"):
        Scenario.from_dict({"slo": {"tpot_ms": 50}})


def test_a_key_of_another_section_is_recognised() -> None:
    with pytest.raises(SpecError, match=r"policy = .*did you mean router\.policy"):
        Scenario.from_dict({"policy": "smetric"})
    with pytest.raises(SpecError, match=r"routr: unknown section; did you mean router\?"):
        Scenario.from_dict({"routr": {}})


def test_all_problems_are_reported_in_few_lines() -> None:
    router = {"policy": "smetrik", "overlod": 3, "hit_ratio": 2}
    with pytest.raises(SpecError) as caught:
        Scenario.from_dict({"router": router, "slo": {"tpot_s": "fast"}, "llm": 3})
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("router.overlod = 3: unknown key")
    assert {line.split(" = ")[0] for line in lines[1:]} == {
        *("router.policy", "router.hit_ratio", "slo.tpot_s", "llm"),
    }
    with pytest.raises(SpecError) as caught:
        Scenario.from_dict({"router": {f"key{number}": 0 for number in range(50)}})
    lines = str(caught.value).split("\n")
    assert len(lines) == 9
    assert lines[-1] == "and 42 more"


def test_errors_hide_where_they_were_found() -> None:
    for make in (lambda: RouterSection(overload=-1), lambda: Scenario(seed=-1)):
        with pytest.raises(SpecError, match="allowed is") as caught:
            make()
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_scenarios_do_not_change() -> None:
    scenario = Scenario()
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        scenario.router.overload = 1  # type: ignore[misc]


def test_replace() -> None:
    scenario = Scenario().replace(**{"cluster.instances": np.int64(16), "workload.rate_rps": 5})
    assert scenario.cluster.instances == 16
    assert type(scenario.cluster.instances) is int
    whole = scenario.replace(router={"policy": "bailian"})
    assert whole.router == RouterSection(policy="bailian")
    assert whole.replace(router=RouterSection(overload=3)).router.overload == 3
    with pytest.raises(SpecError, match=r"^cluster\.instanses = 3: unknown key; did you mean"):
        scenario.replace(**{"cluster.instanses": 3})
    with pytest.raises(SpecError, match=r"^clutser: unknown section; did you mean cluster"):
        scenario.replace(**{"clutser.instances": 3})
    with pytest.raises(SpecError, match=r"seed\.x = 3: seed has no keys"):
        scenario.replace(**{"seed.x": 3})


CHANGES = {
    "engine.tp": 2,
    "engine.max_context_tokens": 1000,
    "cluster.dram_bytes_per_node": 2e12,
    "cluster.gpus_per_node": 4,
    "cluster.nic_efficiency": 0.5,
    "client.timeout_s": 100.0,
    "workload.trace": "other.parquet",
    "llm.weight_dtype": "fp8",
    "llm.kv_dtype": "fp8",
}


def _changed(dotted: str) -> Scenario | None:
    """Scenario that differs from the default by one key, or None where it cannot alone."""
    for value in (CHANGES.get(dotted), 7, 0.25, "other", True, False):
        try:
            scenario = Scenario().replace(**{dotted: value})
        except SpecError:
            continue
        if scenario != Scenario():
            return scenario
    section, _, key = dotted.rpartition(".")
    for word in get_args(MODELS[section].model_fields[key].annotation):
        try:
            scenario = Scenario().replace(**{dotted: word})
        except SpecError:
            continue
        if scenario != Scenario():
            return scenario
    return None


def test_the_id_changes_with_every_key_but_the_name() -> None:
    alone = {dotted: _changed(dotted) for dotted in DOTTED}
    joint = {
        "engine.ep",
        "cluster.serving",
        "cluster.prefill_instances",
        "cluster.decode_instances",
        "workload.preset",
    }
    assert {dotted for dotted, scenario in alone.items() if scenario is None} == joint
    ids = {d: s.scenario_id for d, s in alone.items() if s is not None}
    assert ids.pop("name") == Scenario().scenario_id
    assert len({*ids.values(), Scenario().scenario_id}) == len(ids) + 1
    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in ids.values())


def test_the_id_is_the_same_in_another_process_and_another_order() -> None:
    code = (
        "import sys; from smetric_model import Scenario; import smetric_model;"
        "print(Scenario.from_dict({'slo': {'tpot_s': 1}, 'seed': 3}).scenario_id)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert told == Scenario.from_dict({"seed": 3, "slo": {"tpot_s": 1.0}}).scenario_id


def test_importing_the_package_does_not_load_pydantic() -> None:
    code = "import sys, smetric_model; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Files


def test_the_file_and_the_line_stand_in_every_message(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[router]\noverlod = 2.0\nhit_ratio = 7\n")
    with pytest.raises(SpecError) as caught:
        Scenario.from_toml(path)
    first, second = str(caught.value).split("\n")
    assert first == f"{path}: router.overlod = 2.0: unknown key; did you mean router.overload?"
    assert second == f"{path}: router.hit_ratio = 7: allowed is number in [0, 1]"
    path.write_text("[router]\noverload = = 2\n")
    with pytest.raises(SpecError, match=re.escape(f"{path}:2: no valid TOML: ")):
        Scenario.from_toml(path)
    path.write_text("[router]\npolicy = [")
    with pytest.raises(SpecError, match=re.escape(f"{path}: no valid TOML: ")):
        Scenario.from_toml(path)
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(SpecError, match=re.escape(f"{path}: ") + ".*not UTF-8"):
        Scenario.from_toml(path)
    with pytest.raises(SpecError, match="no such scenario file"):
        Scenario.from_toml(tmp_path / "b.toml")
    with pytest.raises(SpecError, match="cannot be read"):
        Scenario.from_toml(tmp_path)


def test_traces_are_found_beside_the_file_then_in_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = folder / "scenario.toml"
    path.write_text('[workload]\ntrace = "data/schema.toml"\n')
    scenario = Scenario.from_toml(path)
    # Any file of the data serves as a trace here: it is only looked for.
    assert scenario.trace_path().samefile(data_dir() / "schema.toml")
    short = scenario.replace(**{"workload.trace": "schema.toml"})
    assert short.trace_path().samefile(data_dir() / "schema.toml")
    (elsewhere / "schema.toml").touch()
    assert short.trace_path().samefile(data_dir() / "schema.toml")
    (folder / "schema.toml").touch()
    assert short.trace_path() == folder.resolve() / "schema.toml"
    # Without a file the current directory takes the folder's place.
    plain = Scenario.from_dict({"workload": {"trace": "schema.toml"}})
    assert plain.trace_path() == elsewhere / "schema.toml"
    absolute = scenario.replace(**{"workload.trace": str(elsewhere / "schema.toml")})
    assert absolute.trace_path() == elsewhere / "schema.toml"
    missing = scenario.replace(**{"workload.trace": "data/none.parquet"})
    with pytest.raises(SpecError) as caught:
        missing.trace_path()
    message = str(caught.value)
    assert message.startswith(
        "workload.trace = 'data/none.parquet': no such file or folder; looked for "
    )
    assert str(folder.resolve() / "data" / "none.parquet") in message
    assert str(data_dir().parent / "data" / "none.parquet") in message


def test_where_the_file_lay_is_no_part_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(Scenario().to_toml())
    scenario = Scenario.from_toml(path)
    assert scenario == Scenario()
    assert hash(scenario) == hash(Scenario())
    assert str(tmp_path) not in scenario.to_toml()


def test_a_model_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text('[llm]\nname = "model/config.json"\n')
    scenario = Scenario.from_toml(path)
    with pytest.raises(SpecError, match=r"llm\.name = .*no such file"):
        scenario.llm_config_path()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    assert scenario.llm_config_path() == tmp_path.resolve() / "model" / "config.json"
    assert Scenario().llm_config_path() is None


def test_the_shipped_scenario_reads() -> None:
    scenario = Scenario.from_toml(data_dir() / "scenarios" / "agents-small.toml")
    assert scenario.name == "agents-small"
    assert scenario.cluster.instances * scenario.engine.tp == 4 * scenario.cluster.gpus_per_node


@pytest.mark.shared
def test_the_example_is_the_defaults(shared_dir: Path) -> None:
    path = shared_dir / "scenario.example.toml"
    example = Scenario.from_toml(path)
    # The example writes its checkpoint's own types out; left out, they follow the checkpoint, so
    # that an FP8 model is not converted to BF16 behind the user's back.
    assert example == Scenario().replace(**{"llm.weight_dtype": "bf16", "llm.kv_dtype": "bf16"})
    assert instance_of(example) == instance_of(Scenario())
    # backoff_s and the pools are named in the design, not in the example; load_indicator,
    # kv_admission, kv_pool_tokens and detection_s are ours.
    written = {f"{s}.{k}" if s else k for s, k in KEYS}
    for section, table in tomllib.loads(path.read_text()).items():
        for key in table if isinstance(table, dict) else [""]:
            written.discard(f"{section}.{key}" if key else section)
    assert written == {
        "client.backoff_s",
        "router.detection_s",
        "engine.kv_admission",
        "engine.kv_pool_tokens",
        "global_tier.eviction",
        "local_tier.eviction",
        "cluster.prefill_instances",
        "cluster.decode_instances",
        "router.load_indicator",
        "workload.preset",
    }


def test_dtypes_are_those_that_have_a_size() -> None:
    for dtype in get_args(Dtype):
        assert dtype_bytes(dtype) > 0


@given(st.floats(0, 1e6), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_the_ttft_slo_grows_with_the_prompt(tokens: float, base: float, slope: float) -> None:
    slo = SloSection(ttft_base_s=base, ttft_per_prompt_token_s=slope)
    assert slo.ttft_s(0.0) == base
    assert slo.ttft_s(tokens) == pytest.approx(base + slope * tokens)
    np.testing.assert_array_equal(slo.ttft_s(np.array([0.0, tokens])), [base, slo.ttft_s(tokens)])


def test_the_committed_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "scenario.md").read_text() == scenario_markdown()


def test_failures_are_tables_of_their_own() -> None:
    listed = [{"instance": 3, "at_s": 100.0, "down_s": 60.0}, {"node": 1, "at_s": 5.0}]
    scenario = Scenario(failures=listed)
    assert [failure.node for failure in scenario.failures] == [None, 1]
    assert math.isinf(scenario.failures[1].down_s)
    one, two = "instance = 3\nat_s = 100.0\ndown_s = 60.0", "node = 1\nat_s = 5.0"
    text = f"[[failures]]\n{one}\n[[failures]]\n{two}"
    assert Scenario.from_dict(tomllib.loads(text)) == scenario
    again = Scenario.from_dict(tomllib.loads(scenario.to_toml()))
    assert (again, again.scenario_id) == (scenario, scenario.scenario_id)
    assert scenario.replace(failures=None) == Scenario()
    assert Scenario().scenario_id == Scenario(failures=[]).scenario_id
    assert scenario.scenario_id != Scenario().scenario_id


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ({"instance": 1}, "failures.at_s: needed; allowed is number >= 0"),
        (
            {"at_s": 1.0},
            "failures: instance = None, node = None and store = None: exactly one of them",
        ),
        (
            {"at_s": 1.0, "instance": 1, "node": 0},
            "failures: instance = 1, node = 0 and store = None: exactly one of them",
        ),
        (
            {"at_s": -1.0, "node": 0},
            "failures.at_s = -1.0: allowed is number >= 0",
        ),
        (
            {"at": 1.0, "at_s": 1.0, "node": 0},
            "failures.at = 1.0: unknown key; did you mean failures.at_s?",
        ),
    ],
)
def test_a_wrong_failure_is_refused(failure: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Scenario(failures=[failure])
    assert str(caught.value) == message


def test_failures_are_a_list() -> None:
    with pytest.raises(SpecError, match="failures = 3: a list of tables is needed"):
        Scenario(failures=3)


def test_groups_are_tables_of_what_is_different() -> None:
    listed = [{"instances": 8}, {"gpu": "H100", "instances": 4, "tp": 2, "nics_per_node": 4}]
    scenario = Scenario(groups=listed)
    assert scenario.cluster.instances == 12
    text = "[[groups]]\ninstances = 8\n[[groups]]\ngpu = 'H100'\ninstances = 4\ntp = 2\n"
    assert Scenario.from_dict(tomllib.loads(text + "nics_per_node = 4")) == scenario
    again = Scenario.from_dict(tomllib.loads(scenario.to_toml()))
    assert (again, again.scenario_id) == (scenario, scenario.scenario_id)
    first, second = scenario.by_group()
    assert first == Scenario(cluster={"instances": 8})
    assert second == Scenario(
        engine={"gpu": "H100", "tp": 2}, cluster={"instances": 4, "nics_per_node": 4}
    )
    assert Scenario().by_group() == (Scenario(),)
    other = scenario.replace(groups=[{"instances": 3}])
    assert other.cluster.instances == 3
    assert scenario.replace(groups=None) == Scenario(cluster={"instances": 12})
    assert Scenario(groups=[]).scenario_id == Scenario().scenario_id != scenario.scenario_id


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"groups": [{"gpu": "H20"}]}, "groups.instances: needed; allowed is integer >= 1"),
        ({"groups": [{"instances": 0}]}, "groups.instances = 0: allowed is integer >= 1"),
        (
            {"groups": [{"instances": 2, "gpus": "H20"}]},
            'groups.gpus = "H20": unknown key; did you mean groups.gpu?',
        ),
        ({"groups": 3}, "groups = 3: a list of tables is needed"),
        (
            {"groups": [{"instances": 8}], "cluster": {"instances": 9}},
            "the groups have 8 instances, cluster.instances = 9: they must be as many (or leave"
            " cluster.instances out)",
        ),
        (
            {"groups": [{"instances": 2}, {"instances": 2, "tp": 6, "gpus_per_node": 4}]},
            "groups[1]: engine.tp = 6 exceeds cluster.gpus_per_node = 4 and is no multiple of it:"
            " an instance larger than a node takes whole nodes",
        ),
        (
            {"groups": [{"instances": 2, "tp": 2, "ep": 4}]},
            "groups[0]: engine: ep = 4 does not divide tp = 2",
        ),
    ],
)
def test_a_wrong_group_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Scenario(**content)
    assert str(caught.value) == message
