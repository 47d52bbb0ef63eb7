from __future__ import annotations

import pickle

import pytest

from smetric_model.catalog.gpu import Gpu, get_gpu, gpu_names
from smetric_model.errors import SpecError


def test_memory_is_what_the_driver_reports() -> None:
    assert get_gpu("H20").memory_bytes == 97_871 * 2**20


def test_h20_figures_of_the_data_sheet() -> None:
    h20 = get_gpu("H20")
    assert h20.memory_bandwidth_bytes_per_s == 4.0e12
    assert h20.flops["bf16"] == 148e12
    assert h20.flops["fp8"] == 296e12


@pytest.mark.parametrize("name", ["H20", "H20-3e", "H100", "H200", "H800", "A100", "L40S"])
def test_promised_gpus_are_there_and_have_a_source(name: str) -> None:
    assert get_gpu(name).source


@pytest.mark.parametrize("name", gpu_names())
def test_eight_bit_formats_run_twice_as_fast_as_sixteen_bit(name: str) -> None:
    flops = get_gpu(name).flops
    for dtype in {"fp8", "int8"} & set(flops):
        assert flops[dtype] == pytest.approx(2 * flops["bf16"], rel=0.02)


def test_a100_has_no_native_fp8() -> None:
    assert "fp8" not in get_gpu("A100").flops


def test_unknown_name_lists_what_is_known_and_guesses() -> None:
    with pytest.raises(SpecError, match=r"'H2O' is not known\. Did you mean 'H20'\?.*H100"):
        get_gpu("H2O")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_bytes", 0),
        ("memory_bandwidth_bytes_per_s", -1.0),
        ("pcie_bytes_per_s", 0.0),
        ("nvlink_bytes_per_s", -1.0),
        ("flops", {"fp8": 1e12}),
        ("flops", {"bf16": 0.0}),
        ("flops", {"bf16": 1e12, "fp7": 1e12}),
    ],
)
def test_impossible_figures_are_refused(key: str, value: object) -> None:
    good = {
        "name": "X",
        "memory_bytes": 2**30,
        "memory_bandwidth_bytes_per_s": 1e12,
        "flops": {"bf16": 1e12},
        "nvlink_bytes_per_s": 0.0,
        "pcie_bytes_per_s": 1e9,
    }
    Gpu(**good)  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        Gpu(**good | {key: value})  # type: ignore[arg-type]


def test_specs_are_frozen_hashable_and_travel_to_other_processes() -> None:
    h20 = get_gpu("H20")
    with pytest.raises(TypeError):
        h20.flops["bf16"] = 1.0  # type: ignore[index]
    assert pickle.loads(pickle.dumps(h20)) == h20
    assert hash(pickle.loads(pickle.dumps(h20))) == hash(h20)
