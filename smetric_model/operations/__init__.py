"""Questions of running a cluster: one module each, answered with figures and words.

``docs/operations.md`` has the methods, where they hold, and examples.
"""

from __future__ import annotations

from smetric_model.operations.autoscaling import Autoscaler
from smetric_model.operations.findings import Figure, Finding
from smetric_model.operations.kv_dtype import kv_cache_dtype
from smetric_model.operations.mixed import mixed_cluster
from smetric_model.operations.node_loss import node_loss
from smetric_model.operations.rate_curve import (
    RateCurve,
    diurnal_curve,
    file_curve,
    parameter_curve,
    trace_curve,
)
from smetric_model.operations.recovery import cold_recovery
from smetric_model.operations.replicas import replicas_over_time
from smetric_model.operations.routers import router_replicas
from smetric_model.operations.tenants import salted, tenant_isolation

__all__ = [
    "Autoscaler",
    "Figure",
    "Finding",
    "RateCurve",
    "cold_recovery",
    "diurnal_curve",
    "file_curve",
    "kv_cache_dtype",
    "mixed_cluster",
    "node_loss",
    "parameter_curve",
    "replicas_over_time",
    "router_replicas",
    "salted",
    "tenant_isolation",
    "trace_curve",
]
