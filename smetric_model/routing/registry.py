"""Policies by the names scenario files use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from smetric_model.errors import SpecError
from smetric_model.routing.baselines import (
    AlwaysSticky,
    Bailian,
    BoundedHash,
    Dynamo,
    LMetric,
    LoadBalance,
    PowerOfTwo,
    Random,
    RoundRobin,
)
from smetric_model.routing.policy import Policy
from smetric_model.routing.smetric import SMetric, SMetricBasic, SMetricSlo

__all__ = ["POLICIES", "describe", "make_policy", "policy_parameters"]

#: name -> class, in the order of the scenario file
POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        SMetric,
        SMetricBasic,
        SMetricSlo,
        Bailian,
        LMetric,
        LoadBalance,
        Dynamo,
        BoundedHash,
        AlwaysSticky,
        PowerOfTwo,
        RoundRobin,
        Random,
    )
}


def policy_parameters(name: str) -> tuple[str, ...]:
    """Names of the parameters of a policy.

    Raises
    ------
    SpecError
        If there is no such policy.
    """
    return tuple(field.name for field in fields(_policy_class(name)))


def make_policy(name: str, settings: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy from a table of settings that may serve all policies.

    Parameters
    ----------
    name : str
        A key of :data:`POLICIES`.
    settings : mapping, optional
        Parameters of *any* policies, such as the ``[router]`` table of a scenario; those this
        policy does not have are left alone, those no policy has are errors.

    Returns
    -------
    Policy
        With the defaults for parameters not given.

    Raises
    ------
    SpecError
        For an unknown policy or parameter, or a value outside its range.
    """
    policy = _policy_class(name)
    settings = settings or {}
    known = {field.name for other in POLICIES.values() for field in fields(other)}
    for key in settings:
        if key not in known:
            raise SpecError(
                f"router parameter {key!r} is not known; one of {', '.join(sorted(known))}"
            )
    own = {field.name for field in fields(policy)}
    return policy(**{key: value for key, value in settings.items() if key in own})


def describe(name: str) -> dict[str, Any]:
    """Source, parameters with units, defaults and reasons, and threshold form of a policy.

    Parameters
    ----------
    name : str
        A key of :data:`POLICIES`.

    Returns
    -------
    dict
        ``name``, ``source``, ``needs_unprefilled_tokens``, ``threshold`` (one line, or None) and
        ``parameters`` (list of dicts ``name``, ``unit``, ``default``, ``why``).
    """
    policy = _policy_class(name)
    form = policy().threshold_form
    return {
        "name": name,
        "source": policy.source,
        "needs_unprefilled_tokens": policy.needs_unprefilled_tokens,
        "threshold": None if form is None else form.statement,
        "first_turn": None if form is None else form.first_turn,
        "parameters": [
            {
                "name": field.name,
                "unit": field.metadata["unit"],
                "default": None if field.default is MISSING else field.default,
                "why": field.metadata["why"],
            }
            for field in fields(policy)
        ],
    }


def _policy_class(name: str) -> type[Policy]:
    try:
        return POLICIES[name]
    except KeyError:
        raise SpecError(
            f"router policy {name!r} is not known; one of {', '.join(POLICIES)}"
        ) from None
