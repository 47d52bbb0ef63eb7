from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.catalog.cluster import Cluster, cluster_names, get_cluster
from smetric_model.errors import SpecError


def test_the_default_is_the_testbed_of_the_paper() -> None:
    testbed = get_cluster()
    assert testbed == Cluster()  # the facts and the defaults say the same
    assert (testbed.nodes, testbed.gpus_per_node, testbed.gpus) == (4, 8, 32)
    assert testbed.dram_bytes_per_node == 1280e9
    assert testbed.nic_line_rate_per_node_bytes_per_s == 25e9
    assert testbed.dram_bytes == 4 * 1280e9
    assert testbed.remote_ratio == 0.75


def test_names() -> None:
    assert "paper-testbed" in cluster_names()
    with pytest.raises(SpecError, match="Did you mean 'paper-testbed'"):
        get_cluster("paper-testbead")


@given(instances=st.integers(1, 200), gpus_per_instance=st.integers(1, 8), gpus_per_node=st.just(8))
def test_instances_fill_nodes(instances: int, gpus_per_instance: int, gpus_per_node: int) -> None:
    cluster = Cluster(instances, gpus_per_instance, gpus_per_node)
    homes = [cluster.node_of(i) for i in range(instances)]
    assert homes == sorted(homes)
    assert set(homes) == set(range(cluster.nodes))
    for node in range(cluster.nodes):
        assert homes.count(node) * gpus_per_instance <= gpus_per_node
    assert cluster.gpus + cluster.idle_gpus == cluster.nodes * gpus_per_node
    assert 0 <= cluster.remote_ratio < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"instances": 0}, "instances = 0"),
        ({"instances": 4.0}, "instances = 4.0"),
        ({"gpus_per_instance": 16}, "does not fit into a node of 8"),
        ({"nic_efficiency": 0}, "nic_efficiency = 0"),
        ({"nic_efficiency": 1.5}, "nic_efficiency = 1.5"),
        ({"nic_efficiency": "fitted"}, "or 'measured'"),
        ({"nic_bytes_per_s": float("inf")}, "nic_bytes_per_s = inf"),
        ({"dram_bytes_per_node": -1}, "dram_bytes_per_node = -1"),
        ({"serving": "split"}, "colocated, disaggregated"),
        ({"prefill_instances": 8}, "only for serving = 'disaggregated'"),
        ({"serving": "disaggregated"}, "both be >= 1"),
        (
            {"serving": "disaggregated", "prefill_instances": 8, "decode_instances": 8},
            "add up to instances = 32",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Cluster(**settings)


def test_disaggregated_split() -> None:
    cluster = Cluster(serving="disaggregated", prefill_instances=24, decode_instances=8)
    assert cluster.nodes == 4


def test_instance_that_does_not_exist() -> None:
    with pytest.raises(SpecError, match="instance 32 does not exist: 0 to 31"):
        get_cluster().node_of(32)
