"""Read ``quantization_config``: how the checkpoint's quantised weights are stored, and which are.

Supported methods: ``fp8`` (block-wise or per tensor), ``fbgemm_fp8``, ``awq``, ``gptq``,
``compressed-tensors`` (one group of linear layers) and ``modelopt`` FP8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from smetric_model.catalog.llm import Quantisation
from smetric_model.errors import SpecError

__all__ = ["QuantisedCheckpoint", "parse_quantisation"]

_METHODS = ("fp8", "fbgemm_fp8", "awq", "gptq", "compressed-tensors", "modelopt")


@dataclass(frozen=True)
class QuantisedCheckpoint:
    """What ``quantization_config`` says.

    Parameters
    ----------
    quantisation : Quantisation
        How quantised matrices are stored.
    kept : callable
        ``kept(module_name)``: whether the module stays in the activation type.
    kv_dtype : str or None
        Type of the KV cache if the file names one.
    """

    quantisation: Quantisation
    kept: Callable[[str], bool]
    kv_dtype: str | None = None


def _names(value: Any, where: str) -> list[str]:
    """Turn a list of module names, or nothing, into a list."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SpecError(f"{where}: must be a list of module names, is {value!r}")
    return value


def _matcher(patterns: Iterable[str], where: str) -> Callable[[str], bool]:
    """Build the test for modules left alone.

    A pattern is a whole module name, a dotted part of one, or ``re:`` and a regular expression.
    What stands before ``layers.`` differs between checkpoints of one model and is ignored.
    """
    exact: list[str] = []
    regexes: list[re.Pattern[str]] = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                regexes.append(re.compile(pattern[3:]))
            except re.error as error:
                raise SpecError(f"{where}: {pattern!r} is no regular expression: {error}") from None
            continue
        start = pattern.find("layers.")
        if re.search(r"mtp|visual|vision|audio", pattern[: max(start, 0)]):
            continue  # towers and draft layers number their layers too, and are not counted here
        cut = pattern[max(start, 0) :]
        if re.search(r"\.experts\.\d", cut):
            raise SpecError(
                f"{where}: {pattern!r} leaves a single expert unquantised; only whole groups of "
                "experts can be modelled"
            )
        exact.append(re.sub(r"\bshared_expert\b", "shared_experts", cut).strip("."))
    bounded = tuple(f".{name}." for name in exact)

    def kept(module: str) -> bool:
        padded = f".{module}."
        if any(name in padded for name in bounded):
            return True
        full = f"model.{module}".replace("experts.*", "experts.0")
        return any(regex.match(full) or regex.match(module) for regex in regexes)

    return kept


def _element(bits: Any, kind: str, where: str) -> str:
    dtype = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4"}.get((bits, kind))
    if dtype is None:
        raise SpecError(
            f"{where}: {bits!r}-bit {kind} weights are not supported; 8-bit float, 8-bit int or "
            "4-bit int"
        )
    return dtype


def _integer(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{where}: key {key!r} must be a whole number, is {value!r}")
    return value


def _block(value: Any, where: str) -> tuple[int, int]:
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(isinstance(side, int) and side > 0 for side in value)
    ):
        raise SpecError(f"{where}: must be two whole numbers > 0, is {value!r}")
    return value[0], value[1]


def _grouped(config: Mapping[str, Any], method: str, bits: int, where: str) -> Quantisation:
    """AWQ and GPTQ: fp16 scale and packed zero point per group of inputs of one output."""
    key = (
        "q_group_size" if "group_size" not in config and "q_group_size" in config else "group_size"
    )
    group = _integer(config, key, where)
    # GPTQ stores zero points also where they are all equal; AWQ only if zero_point is set
    zero = bits / 8 if method == "gptq" or config.get("zero_point", True) else 0.0
    return Quantisation(_element(bits, "int", where), (1, max(group, 0)), 2.0, zero, method)


def _compressed(config: Mapping[str, Any], method: str, where: str) -> Quantisation:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        count = len(groups) if isinstance(groups, Mapping) else 0
        raise SpecError(f"{where}.config_groups: one group is supported, found {count}")
    (name, group), *_ = groups.items()
    where = f"{where}.config_groups.{name}"
    targets = group.get("targets", ["Linear"])
    if targets != ["Linear"]:
        raise SpecError(f"{where}.targets: only ['Linear'] is supported, is {targets!r}")
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise SpecError(f"{where}: key 'weights' is missing")
    bits = _integer(weights, "num_bits", f"{where}.weights")
    kind = str(weights.get("type", "int"))
    dtype = _element(bits, kind, f"{where}.weights")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy == "group":
        block = (1, _integer(weights, "group_size", f"{where}.weights"))
    elif strategy == "block":
        block = _block(weights.get("block_structure"), f"{where}.weights.block_structure")
    elif strategy in ("channel", "tensor"):
        block = (1, 0) if strategy == "channel" else (0, 0)
    else:
        raise SpecError(
            f"{where}.weights.strategy: {strategy!r} is not supported; tensor, channel, group "
            "or block"
        )
    scale = 2.0 if dtype == "int4" else 4.0
    zero = 0.0 if weights.get("symmetric", True) else bits / 8
    return Quantisation(dtype, block, scale, zero, method)


def _kv_dtype(config: Mapping[str, Any], where: str) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return _element(scheme.get("num_bits"), str(scheme.get("type", "float")), where)
    algorithm = config.get("kv_cache_quant_algo")
    if algorithm is None and scheme is None:
        return None
    if "FP8" in (str(algorithm).upper(), str(scheme).upper()):
        return "fp8"
    raise SpecError(f"{where}: KV cache scheme {algorithm or scheme!r} is not supported; FP8")


def parse_quantisation(config: Mapping[str, Any], where: str) -> QuantisedCheckpoint:
    """Read a ``quantization_config``.

    Parameters
    ----------
    config : Mapping
        The table.
    where : str
        File and key, for messages.

    Raises
    ------
    SpecError
        For a method, bit width or grouping that is not supported, or a missing key.
    """
    method = config.get("quant_method")
    ignored: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        ignored += _names(config.get(key), f"{where}.{key}")
    if method == "fp8":
        block = config.get("weight_block_size")
        shape = (0, 0) if block is None else _block(block, f"{where}.weight_block_size")
        quantisation = Quantisation("fp8", shape, 4.0, 0.0, "fp8")
    elif method == "fbgemm_fp8":
        quantisation = Quantisation("fp8", (1, 0), 4.0, 0.0, "fbgemm_fp8")
    elif method in ("awq", "gptq"):
        key = "w_bit" if "bits" not in config and "w_bit" in config else "bits"
        quantisation = _grouped(config, method, _integer(config, key, where), where)
        for pattern in config.get("dynamic") or {}:
            if not pattern.startswith("-:"):
                raise SpecError(
                    f"{where}.dynamic: {pattern!r} changes bits per module: unsupported"
                )
            ignored.append("re:" + pattern[2:])
        if config.get("lm_head"):
            raise SpecError(f"{where}.lm_head: a quantised output head is not supported")
    elif method == "compressed-tensors":
        quantisation = _compressed(config, method, where)
    elif method == "modelopt" and str(config.get("quant_algo")).upper() == "FP8":
        quantisation = Quantisation("fp8", (0, 0), 4.0, 0.0, "modelopt")
    else:
        algorithm = f" ({config['quant_algo']})" if "quant_algo" in config else ""
        raise SpecError(
            f"{where}.quant_method: {method!r}{algorithm} is not supported; {', '.join(_METHODS)} "
            "(modelopt: FP8)"
        )
    return QuantisedCheckpoint(quantisation, _matcher(ignored, where), _kv_dtype(config, where))
