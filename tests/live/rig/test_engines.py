"""The rig, with stand-ins on real sockets: what is started is ended, what fails is told."""

from __future__ import annotations

import os
import signal
import time

import pytest
from click.testing import CliRunner
from fake_environment import make_environment

from smetric_model.cli.engines import command
from smetric_model.errors import LiveError, SpecError
from smetric_model.live.rig import EnginesSpec, Rig
from smetric_model.live.rig.engines import read_metrics


def spec(python, **changes):
    return EnginesSpec(
        **{"python": str(python), "blocks": 64, "max_context_tokens": 2048, "ready_s": 20.0}
        | changes
    )


@pytest.fixture
def rig(fake_python, tmp_path):
    one = Rig(spec(fake_python), tmp_path / "rig")
    yield one
    one.down()


def test_up_serves_and_down_leaves_nothing(rig):
    rig.up()
    assert [line["alive"] for line in rig.status()] == [True, True]
    assert read_metrics(rig.endpoints[0].url)["num_gpu_blocks"] == 64
    pids = [pid for one in rig.processes for pid in one.members()]
    rig.down()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert Rig.found(rig.folder) is None


def test_another_process_ends_what_this_one_started(rig):
    rig.up()
    found = Rig.found(rig.folder)
    assert found is not None
    with pytest.raises(LiveError, match="run there already"):
        Rig(rig.spec, rig.folder).up()
    found.down()
    assert rig.gone() == ["v0", "v1"]


def test_a_process_of_the_same_id_is_not_ended(rig):
    rig.up()
    mine = rig.processes[0]
    other = type(mine)(mine.name, mine.pid, mine.began + 1, mine.log)
    assert not other.alive
    assert mine.alive


def test_a_killed_engine_is_told_by_name(rig):
    rig.up()
    os.kill(rig.processes[1].pid, signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(LiveError, match=r"v1 has ended .*killed"):
        rig.check()


@pytest.mark.parametrize(
    ("fail", "words"), [("oom", "out of memory"), ("hang", "not ready after 2 s")]
)
def test_an_engine_that_does_not_start(fake_python, tmp_path, fail, words):
    limit = 2.0 if fail == "hang" else 20.0
    rig = Rig(spec(fake_python, arguments=["--fail", fail], ready_s=limit), tmp_path / "rig")
    with pytest.raises(LiveError, match=words):
        rig.up()
    assert rig.processes == []
    assert Rig.found(rig.folder) is None


def test_without_vllm_the_install_lines(tmp_path):
    python = make_environment(tmp_path / "bare", ())
    with pytest.raises(LiveError, match="vllm not found") as told:
        Rig(spec(python), tmp_path / "rig").up()
    assert "pip install vllm==" in str(told.value)
    assert "make live-environment" in str(told.value)


def test_the_tier_needs_its_package(fake_python, tmp_path):
    with pytest.raises(LiveError, match="lmcache not found"):
        Rig(spec(fake_python, tier={"kind": "lmcache"}), tmp_path / "rig").up()


def test_endpoints_are_used_and_left_alone(rig, tmp_path):
    rig.up()
    points = [{"url": one.url, "kv_events": one.kv_events} for one in rig.endpoints]
    other = Rig(spec(rig.spec.python, endpoints=points), tmp_path / "other")
    other.up()
    other.down()
    assert rig.gone() == []
    nobody = [{"url": "http://127.0.0.1:9", "kv_events": "tcp://127.0.0.1:9"}] * 2
    with pytest.raises(LiveError, match="no engine answers"):
        Rig(spec(rig.spec.python, endpoints=nobody), tmp_path / "none").up()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks": 2}, "vLLM would not start"),
        ({"tier": {"kind": "lmcache", "chunk_tokens": 48}}, "multiple"),
        ({"tier": {"bytes": 8_000_000}}, "1.6e"),
        ({"endpoints": [{"url": "a", "kv_events": "b"}]}, "1 endpoints"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_specifications(changes, words):
    with pytest.raises(SpecError, match=words):
        EnginesSpec(**changes)


def test_status_of_a_folder_without_engines(tmp_path):
    result = CliRunner().invoke(command, ["status", "--folder", str(tmp_path)])
    assert isinstance(result.exception, LiveError)
