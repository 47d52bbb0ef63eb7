"""What the result table's quantiles do not hold: distributions, and loads by instance and minute.

One seed of every policy at the operating load with the full global tier, for Figures 11c, 14, 15b,
17, 18b, 20, 21b, 23 and 24.  A long table:

============ ===================================================================================
``setup``, ``preset``, ``policy``  as in the result table
``quantity`` ``ttft_s``, ``tpot_s``, ``imbalance_30s`` (distributions); ``processed_tokens``,
             ``inflight_tokens``, ``unprefilled_tokens`` (by instance and minute)
``at``       probability, or number of the instance
``minute``   from the window's start; missing for distributions
``value``    quantile [s, ratio], tokens in the minute, or tokens on average over it
============ ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.reproduction.parameters import Experiments
    from smetric_model.simulate.run import Simulation

__all__ = [
    "PROBABILITIES",
    "anchors_of",
    "make_profiles",
    "profile_of",
    "read_profiles",
    "write_profiles",
]

#: Probabilities of the quantiles that are kept: even, with a longer tail.
PROBABILITIES = np.round(
    np.concatenate((np.arange(0.01, 0.9, 0.01), np.arange(0.9, 0.9951, 0.0025), [0.999])), 4
)
_DISTRIBUTIONS = ("ttft_s", "tpot_s")
_BY_MINUTE = {
    "processed_tokens": "total_tokens",
    "inflight_tokens": "inflight_tokens",
    "unprefilled_tokens": "unprefilled_tokens",
}
_MINUTE_S = 60.0
_KEYS = ("setup", "preset", "policy")
_COLUMNS = (*_KEYS, "quantity", "at", "minute", "value")
_SHIPPED = "reproduction/profiles.parquet"


def profile_of(simulation: Simulation, warmup_s: float) -> pd.DataFrame:
    """Return the profile of one simulation.

    Parameters
    ----------
    simulation : Simulation
        From ``simulate_in_detail``.
    warmup_s : float
        Start of its window [s].

    Returns
    -------
    DataFrame
        ``quantity``, ``at``, ``minute``, ``value``; of the router's pool where disaggregated.
    """
    import pandas as pd

    requests = simulation.outcome.requests
    assert requests is not None
    parts = []
    for name in _DISTRIBUTIONS:
        values = requests[name].dropna().to_numpy()
        if values.size:
            parts.append(_distribution(name, values))
    series = simulation.series()
    series = series[series["role"] != "decode"]
    tokens = series.pivot_table(index="instance", columns="start_s", values="total_tokens")
    table = tokens.to_numpy()
    mean = table.mean(axis=0)
    parts.append(_distribution("imbalance_30s", table.max(axis=0)[mean > 0] / mean[mean > 0]))
    minute = ((series["start_s"] - warmup_s) // _MINUTE_S).astype(int)
    for name, column in _BY_MINUTE.items():
        weight = 1.0 if name == "processed_tokens" else series["length_s"]
        sums = (series[column] * weight).groupby([series["instance"], minute]).sum()
        if name != "processed_tokens":
            sums = sums / series["length_s"].groupby([series["instance"], minute]).sum()
        found = sums.reset_index()
        found.columns = ["at", "minute", "value"]
        parts.append(found.assign(quantity=name))
    return pd.concat(parts, ignore_index=True)


def _distribution(name: str, values: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "quantity": name,
            "at": PROBABILITIES,
            "minute": np.nan,
            "value": np.quantile(values, PROBABILITIES),
        }
    )


def anchors_of(results: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return what 1.0x is in a result table.

    Parameters
    ----------
    results : DataFrame

    Returns
    -------
    dict of str to dict of str to float
        By set-up and preset [requests/s].
    """
    known = results[(results["load"] > 0) & (results["rate_rps"] > 0)]
    units = (known["rate_rps"] / known["load"]).groupby([known["setup"], known["preset"]]).median()
    found: dict[str, dict[str, float]] = {}
    for row in units.rename("unit").reset_index().to_dict("records"):
        found.setdefault(str(row["setup"]), {})[str(row["preset"])] = float(row["unit"])
    return found


def make_profiles(
    parameters: Experiments,
    anchors: Mapping[str, Mapping[str, float]],
    presets: Iterable[str] = (),
    tell: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Simulate one seed of every policy at the operating load and keep the profiles.

    Parameters
    ----------
    parameters : Experiments
    anchors : mapping of str to mapping of str to float
        Rate at 1.0x by set-up and preset [requests/s]; :func:`anchors_of` a result table.
    presets : iterable of str
        Default: all.
    tell : callable, optional
        Told what is simulated.

    Returns
    -------
    DataFrame

    Raises
    ------
    SpecError
        If the rate of a set-up and preset is missing.
    """
    import pandas as pd

    from smetric_model.reproduction.points import Group, Point, group_scenario, point_scenario
    from smetric_model.reproduction.runner import trace_of_group
    from smetric_model.simulate.run import simulate_in_detail

    load, seed = parameters.operating, parameters.seeds[0]
    parts = []
    for setup in parameters.setups:
        for preset in presets or parameters.presets:
            unit = anchors.get(setup.name, {}).get(preset)
            if unit is None:
                raise SpecError(f"no rate at 1.0x of {setup.name}, {preset}")
            points = tuple(Point("sweep", policy, "full") for policy in setup.policies)
            group = Group(setup.name, preset, load, load * unit, seed, points)
            base = group_scenario(setup, group)
            trace = trace_of_group(base, {})
            for point in points:
                if tell:
                    tell(f"{setup.name}, {preset}, {point.policy}")
                scenario = point_scenario(setup, base, point, parameters.tiers)
                done = simulate_in_detail(scenario, trace)
                part = profile_of(done, scenario.workload.warmup_s)
                parts.append(
                    part.assign(setup=setup.name, preset=preset, policy=point.policy)[
                        list(_COLUMNS)
                    ]
                )
    return pd.concat(parts, ignore_index=True)


def write_profiles(table: pd.DataFrame, path: Path) -> None:
    """Write profiles in single precision.

    Parameters
    ----------
    table : DataFrame
        Of :func:`make_profiles`.
    path : Path
        A Parquet file.
    """
    small = table.astype({"at": "float32", "minute": "float32", "value": "float32"})
    for name in (*_KEYS, "quantity"):
        small[name] = small[name].astype("category")
    path.parent.mkdir(parents=True, exist_ok=True)
    small.to_parquet(path, compression="zstd", index=False)


def read_profiles(path: str | Path | None = None) -> pd.DataFrame:
    """Read profiles.

    Parameters
    ----------
    path : str or Path, optional
        Default: the shipped ones.

    Returns
    -------
    DataFrame

    Raises
    ------
    SpecError
        If there is no such file, or it holds something else.
    """
    import pandas as pd
    import pyarrow as pa

    from smetric_model.datafiles import data_dir

    file = Path(path) if path is not None else data_dir() / _SHIPPED
    try:
        table = pd.read_parquet(file)
    except FileNotFoundError:
        raise SpecError(f"{file}: no such profiles; tools/make_profiles.py makes them") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise SpecError(f"{file}: no profiles: {error}") from None
    lacking = [name for name in _COLUMNS if name not in table]
    if lacking:
        raise SpecError(f"{file}: no profiles: column {lacking[0]} is missing")
    return table
