"""What an engine's own metrics say: running, waiting, KV cache in use.

Names are matched exactly: ``vllm:num_requests_waiting`` is also the beginning of
``vllm:num_requests_waiting_by_reason``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["EngineMetrics", "read_engine_metrics"]

_SUMMED = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_CONFIG = "vllm:cache_config_info"
_START = "process_start_time_seconds"
_NUMBER = re.compile(r'(num_gpu_blocks|block_size)="(\d+)"')


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading.

    Parameters
    ----------
    running, waiting : float
        Requests, over all engine cores.
    kv_usage_ratio : float
        KV cache in use, mean over the cores [0..1].
    kv_capacity_tokens : int or None
        Tokens the KV caches hold [tokens].
    block_tokens : int or None
        Tokens of a block [tokens].
    start_s : float or None
        When the process started [s since 1970].
    scraped_s : float
        When it was read, on the event loop's clock [s].
    """

    running: float
    waiting: float
    kv_usage_ratio: float
    kv_capacity_tokens: int | None
    block_tokens: int | None
    start_s: float | None
    scraped_s: float


def read_engine_metrics(text: str, now_s: float) -> EngineMetrics | None:
    """Read vLLM's metrics.

    Parameters
    ----------
    text : str
        The page.
    now_s : float
        Time of the reading [s].

    Returns
    -------
    EngineMetrics or None
        None if the page has none of vLLM's load metrics.
    """
    sums = dict.fromkeys(_SUMMED, 0.0)
    usage: dict[str, list[float]] = {name: [] for name in _USAGE}
    capacity: int | None = None
    block: int | None = None
    start: float | None = None
    seen = False
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        brace = line.find("{")
        name = line[:brace] if brace > 0 else line.split(" ", 1)[0]
        if name == _CONFIG:
            numbers = {key: int(value) for key, value in _NUMBER.findall(line)}
            if len(numbers) == 2:
                block = numbers["block_size"]
                capacity = (capacity or 0) + numbers["num_gpu_blocks"] * block
        elif name in sums or name in usage or name == _START:
            value = _value(line)
            if value is None:
                continue
            if name in sums:
                sums[name] += value
                seen = True
            elif name in usage:
                usage[name].append(value)
            else:
                start = value
    if not seen:
        return None
    used = next((values for values in usage.values() if values), [0.0])
    return EngineMetrics(
        sums["vllm:num_requests_running"],
        sums["vllm:num_requests_waiting"],
        sum(used) / len(used),
        capacity,
        block,
        start,
        now_s,
    )


def _value(line: str) -> float | None:
    # "name{labels} value [timestamp]"; label values may hold blanks
    rest = line.rsplit("}", 1)[-1] if "}" in line else line.split(" ", 1)[-1]
    try:
        value = float(rest.split()[0])
    except (IndexError, ValueError):
        return None
    return value if value == value and abs(value) != float("inf") else None
