r"""What a cluster costs an hour, from prices that the user gives.

.. math:: C = \mathrm{GPUs}\,c_{gpu} + \mathrm{nodes}\,c_{node}
              + \mathrm{GB}\,c_{mem} + \mathrm{Gbit/s}\,c_{nic}

with the global tier's GB and the line rate of all NICs.  Without prices the unit is the GPU-hour
and everything else is free: no price is invented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.space import read_table
from smetric_model.errors import SpecError
from smetric_model.units import GB, GBPS_BYTES_PER_S

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario

__all__ = ["Bill", "Prices", "bill_of", "read_prices"]

_NUMBERS = ("host_memory_gb_hour", "nic_gbps_hour", "node_hour")


@dataclass(frozen=True)
class Prices:
    """Prices of hardware, per hour.

    Attributes
    ----------
    gpu_hour : mapping of str to float
        By GPU name of the catalog; empty: the unit is the GPU-hour, all GPUs alike.
    host_memory_gb_hour : float
        Of a GB (1e9 bytes) of global tier.
    nic_gbps_hour : float
        Of a Gbit/s of line rate, all NICs of the nodes counted.
    node_hour : float
        Of a node without GPUs, the global tier's memory and NICs.
    currency : str
        Unit of the prices.

    Raises
    ------
    SpecError
        If a price is negative or no number.
    """

    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    host_memory_gb_hour: float = 0.0
    nic_gbps_hour: float = 0.0
    node_hour: float = 0.0
    currency: str = ""

    def __post_init__(self) -> None:
        named: dict[str, Any] = {f"gpu_hour.{gpu}": p for gpu, p in self.gpu_hour.items()}
        named |= {name: getattr(self, name) for name in _NUMBERS}
        for name, price in named.items():
            number = isinstance(price, int | float) and not isinstance(price, bool)
            if not number or not math.isfinite(price) or price < 0:
                raise SpecError(f"prices: {name} = {price!r}: a number of at least 0 is needed")
        if not self.gpu_hour and any(getattr(self, name) for name in _NUMBERS):
            raise SpecError(
                "prices: gpu_hour is missing: without it the unit is the GPU-hour, in which memory,"
                " NICs and nodes have no price"
            )

    @property
    def given(self) -> bool:
        """Whether these are prices, and not GPU-hours."""
        return bool(self.gpu_hour)

    @property
    def unit(self) -> str:
        """What costs are counted in."""
        if not self.given:
            return "GPU-hours"
        return self.currency or "price units"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self) | {"gpu_hour": dict(self.gpu_hour), "unit": self.unit}


@dataclass(frozen=True)
class Bill:
    """Cost of a cluster [unit of the prices per hour].

    Attributes
    ----------
    gpus, nodes, host_memory, nics : float
        Parts.
    """

    gpus: float
    nodes: float
    host_memory: float
    nics: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.gpus + self.nodes + self.host_memory + self.nics


def bill_of(scenario: Scenario, prices: Prices) -> Bill:
    """Return what a scenario's cluster costs an hour.

    Parameters
    ----------
    scenario : Scenario
    prices : Prices

    Returns
    -------
    Bill

    Raises
    ------
    SpecError
        If the GPU has no price.
    """
    cluster = cluster_of(scenario)
    gpus = cluster.instances * cluster.gpus_per_instance
    if not prices.given:
        return Bill(float(gpus), 0.0, 0.0, 0.0)
    gpu = scenario.engine.gpu
    if gpu not in prices.gpu_hour:
        raise SpecError(
            f"prices: no gpu_hour of {gpu}; there is one of {', '.join(prices.gpu_hour)}"
        )
    line = cluster.nodes * cluster.nics_per_node * cluster.nic_bytes_per_s
    return Bill(
        gpus * prices.gpu_hour[gpu],
        cluster.nodes * prices.node_hour,
        cluster.nodes * scenario.global_tier.bytes_per_node / GB * prices.host_memory_gb_hour,
        line / GBPS_BYTES_PER_S * prices.nic_gbps_hour,
    )


def read_prices(path: str | Path) -> Prices:
    """Read the ``[prices]`` table of a TOML file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Prices

    Raises
    ------
    SpecError
        If there is no such table, or a key or price is wrong.
    """
    table = read_table(path, "prices")
    valid = ("gpu_hour", *_NUMBERS, "currency")
    for key in table:
        if key not in valid:
            close = get_close_matches(key, valid, n=1)
            hint = f"did you mean {close[0]}?" if close else f"keys are {', '.join(valid)}"
            raise SpecError(f"{path}: prices: {key!r} is no key; {hint}")
    if not isinstance(table.get("gpu_hour", {}), dict):
        raise SpecError(
            f"{path}: prices: gpu_hour = {table['gpu_hour']!r}: a table by GPU is needed, such as"
            " gpu_hour.H20 = 2.5"
        )
    if not isinstance(table.get("currency", ""), str):
        raise SpecError(f"{path}: prices: currency = {table['currency']!r}: a text is needed")
    if not table.keys() - {"currency"}:
        raise SpecError(f"{path}: prices: no price is given; keys are {', '.join(valid)}")
    try:
        return Prices(**table)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
