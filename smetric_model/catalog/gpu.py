"""GPUs: memory, bandwidths and dense peak FLOP rates, from ``data/gpus.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from smetric_model.catalog._lookup import find
from smetric_model.datafiles import load_toml, read_toml
from smetric_model.errors import SpecError
from smetric_model.units import MIB, dtype_bytes

__all__ = ["Gpu", "get_gpu", "gpu_names", "gpu_table"]


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Parameters
    ----------
    name : str
        Catalog name.
    memory_bytes : int
        Device memory as the driver reports it [bytes].
    memory_bandwidth_bytes_per_s : float
        Peak device-memory bandwidth [bytes/s].
    flops : Mapping[str, float]
        Dense peak per data type, multiply and add counted as two [FLOP/s]; only the types that
        the tensor cores run natively.
    nvlink_bytes_per_s : float
        NVLink, all links together, one direction [bytes/s]; 0 where there is none.
    pcie_bytes_per_s : float
        PCIe, one direction [bytes/s].
    source : str
        Where the figures come from.

    Raises
    ------
    SpecError
        If a figure is not positive or a data type is unknown.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    flops: Mapping[str, float]
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "memory_bandwidth_bytes_per_s", "pcie_bytes_per_s"):
            if not getattr(self, field) > 0:
                raise SpecError(
                    f"GPU {self.name!r}: {field} = {getattr(self, field)!r}, must be > 0"
                )
        if self.nvlink_bytes_per_s < 0:
            raise SpecError(
                f"GPU {self.name!r}: nvlink_bytes_per_s = {self.nvlink_bytes_per_s!r}, must be >= 0"
            )
        if "bf16" not in self.flops and "fp16" not in self.flops:
            raise SpecError(
                f"GPU {self.name!r}: flops needs bf16 or fp16, has {sorted(self.flops)}"
            )
        for dtype, value in self.flops.items():
            dtype_bytes(dtype)
            if not value > 0:
                raise SpecError(f"GPU {self.name!r}: flops.{dtype} = {value!r}, must be > 0")
        object.__setattr__(self, "flops", MappingProxyType(dict(self.flops)))

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.memory_bandwidth_bytes_per_s))

    def __reduce__(self) -> tuple[Any, ...]:
        # a mapping proxy does not pickle, and specs travel to worker processes
        return (
            Gpu,
            (
                self.name,
                self.memory_bytes,
                self.memory_bandwidth_bytes_per_s,
                dict(self.flops),
                self.nvlink_bytes_per_s,
                self.pcie_bytes_per_s,
                self.source,
            ),
        )


@cache
def _catalog() -> dict[str, Gpu]:
    return {
        name: _gpu_of(name, facts, f"data/gpus.toml, [{name}]")
        for name, facts in load_toml("gpus.toml").items()
    }


def _gpu_of(name: str, facts: Any, where: str) -> Gpu:
    if not isinstance(facts, dict):
        raise SpecError(f"{where}: there is no such table")
    try:
        return Gpu(
            name=name,
            memory_bytes=int(facts["memory_mib"]) * MIB,
            memory_bandwidth_bytes_per_s=float(facts["memory_bandwidth_bytes_per_s"]),
            flops={dtype: float(value) for dtype, value in facts["flops"].items()},
            nvlink_bytes_per_s=float(facts["nvlink_bytes_per_s"]),
            pcie_bytes_per_s=float(facts["pcie_bytes_per_s"]),
            source=facts["source"],
        )
    except KeyError as error:
        raise SpecError(f"{where}: key {error} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{where}: {error}") from None


def gpu_names() -> list[str]:
    """Names of the GPUs in the catalog."""
    return list(_catalog())


def get_gpu(name: str) -> Gpu:
    """Return a GPU of the catalog.

    Parameters
    ----------
    name : str
        Such as ``"H20"``; or the path of a TOML file (ends in ``.toml``) whose table ``[gpu]``
        has the keys of ``data/gpus.toml``.

    Raises
    ------
    SpecError
        For an unknown name; the message lists the known ones.  For a file that is missing or
        wrong.
    """
    if name.endswith(".toml"):
        return _gpu_of(name, read_toml(name).get("gpu"), f"{name}, [gpu]")
    gpu: Gpu = find("GPU", name, _catalog(), " Or the path of a .toml with a table [gpu].")
    return gpu


def gpu_table(name: str) -> dict[str, Any]:
    """Return the table that describes a GPU, as the catalog or a file of one's own has it.

    Parameters
    ----------
    name : str
        As for :func:`get_gpu`.

    Returns
    -------
    dict
        Ready for a TOML writer.

    Raises
    ------
    SpecError
        As :func:`get_gpu`.
    """
    get_gpu(name)
    facts: dict[str, Any]
    facts = read_toml(name)["gpu"] if name.endswith(".toml") else load_toml("gpus.toml")[name]
    return facts
