from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.fabric import (
    fetch_bytes_per_s,
    global_tier_rate_cap_rps,
    nic_bytes_per_s,
    node_nic_utilisation,
    pcie_bytes_per_s,
)
from smetric_model.catalog.cluster import get_cluster
from smetric_model.catalog.gpu import get_gpu

CLUSTER = get_cluster()
STATED = dataclasses.replace(CLUSTER, nic_efficiency=0.5)


def test_the_measured_curve_is_that_of_the_published_transfers() -> None:
    # one 200 Gbps NIC: about 9.7 GB/s steady, 3.4-4.6 GB/s from 6.4 GB on
    steady = nic_bytes_per_s(CLUSTER, np.array([5e7, 2e8, 8e8, 3.2e9]), busy=False)
    assert np.all((steady > 9.4e9) & (steady < 10.5e9))
    large = nic_bytes_per_s(CLUSTER, np.array([6.5e9, 1.3e10, 1e12]), busy=False)
    assert np.all((large > 3.3e9) & (large < 4.7e9))
    busy = nic_bytes_per_s(CLUSTER, 1e9, busy=True)
    assert busy / nic_bytes_per_s(CLUSTER, 1e9, busy=False) == pytest.approx(4.0 / 7.6, abs=1e-3)


def test_a_stated_efficiency_is_taken_as_it_is() -> None:
    assert nic_bytes_per_s(STATED, 1e9, busy=True) == 12.5e9
    np.testing.assert_array_equal(nic_bytes_per_s(STATED, np.ones(3), False), [12.5e9] * 3)


@given(st.floats(0, 1e13), st.booleans())
def test_no_transfer_exceeds_the_line_rate(size: float, busy: bool) -> None:
    assert 0 < nic_bytes_per_s(CLUSTER, size, busy) <= CLUSTER.nic_bytes_per_s


@given(st.floats(0.01, 1e3), st.floats(1, 1e11), st.floats(0, 1e11), st.integers(1, 40))
def test_the_cap_is_where_utilisation_is_one(
    rate: float, fetched: float, written: float, nodes: int
) -> None:
    cluster = dataclasses.replace(STATED, instances=8 * nodes)
    cap = global_tier_rate_cap_rps(cluster, fetched, written, 1e9)
    used = node_nic_utilisation(cluster, rate, fetched + written, 1e9)
    if nodes == 1:  # everything lies on the own node
        assert cap == np.inf
        assert used == 0
    else:
        assert used == pytest.approx(rate / cap)
        # by hand: rate · (n-1)/n · bytes / n against one NIC at 12.5 GB/s
        by_hand = rate * (nodes - 1) / nodes * (fetched + written) / nodes / 12.5e9
        assert used == pytest.approx(by_hand)


def test_an_instance_fetches_through_the_slowest_link() -> None:
    gpu = get_gpu("H20")
    pcie = pcie_bytes_per_s(gpu)
    # published pinned copies: 53.7-54.9 GB/s
    assert 53e9 < pcie < 55.5e9
    assert fetch_bytes_per_s(STATED, gpu, 1, "dram", 1e9, True) == pcie
    assert fetch_bytes_per_s(STATED, gpu, 4, "dram", 1e9, True) == 4 * pcie
    assert fetch_bytes_per_s(STATED, gpu, 1, "rdma", 1e9, True) == 12.5e9
    many = dataclasses.replace(STATED, nics_per_node=8, nic_efficiency=1.0)
    assert fetch_bytes_per_s(many, gpu, 1, "rdma", 1e9, True) == 25e9
    assert fetch_bytes_per_s(many, gpu, 4, "rdma", 1e9, True) == 100e9
