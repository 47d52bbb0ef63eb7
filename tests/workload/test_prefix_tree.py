from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.reference import prefixes


@given(block_paths())
def test_tree_holds_exactly_the_paths(paths) -> None:
    """Equal chained ids in the tree mean equal prefixes in the paths, and the other way round."""
    tree = trace_of(paths).tree
    expected = prefixes(paths)
    forward: dict[int, int] = {}
    backward: dict[int, int] = {}
    for request, chained in enumerate(expected):
        ids = tree.block_ids(request).tolist()
        assert len(ids) == len(chained)
        for mine, theirs in zip(ids, chained, strict=True):
            assert forward.setdefault(mine, theirs) == theirs
            assert backward.setdefault(theirs, mine) == mine
    assert tree.distinct_blocks == len(backward)


@given(block_paths())
def test_segments_split_only_where_paths_part(paths) -> None:
    tree = trace_of(paths).tree
    children = np.bincount(tree.parent[tree.parent >= 0], minlength=tree.parent.size)
    inner = (children > 0) & (tree.parent >= 0)
    assert (children[inner] >= 2).all()
    lengths = tree.end_block - tree.start_block
    assert (lengths[tree.parent >= 0] >= 1).all()
    below = tree.parent >= 0
    assert (tree.start_block[below] == tree.end_block[tree.parent[below]]).all()
    assert (tree.parent[below] < np.flatnonzero(below)).all()


@given(block_paths(), st.integers(1, 30))
def test_batches_do_not_matter(paths, batch) -> None:
    one, other = trace_of(paths, batch=batch).tree, trace_of(paths, batch=len(paths)).tree
    for request in range(len(paths)):
        assert one.block_ids(request).tolist() == other.block_ids(request).tolist()


def test_namespaces_never_meet() -> None:
    builder = PrefixTreeBuilder()
    builder.add_ids([builder.root("a"), builder.root("b")], [1, 2, 1, 2], [0, 2, 4])
    tree = builder.build()
    assert not set(tree.block_ids(0)) & set(tree.block_ids(1))
    assert tree.root[tree.request_segment].tolist() == [0, 1]


def test_ids_at_the_ends_of_int64() -> None:
    top = 2**63 - 1
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    builder.add_ids([root] * 3, [top, -(2**63), 5, top, -(2**63), top, 6], [0, 3, 5, 7])
    tree = builder.build()
    ids = [tree.block_ids(i).tolist() for i in range(3)]
    assert ids[0][:2] == ids[1]
    assert ids[0][0] == ids[2][0]
    assert ids[2][1] not in ids[0]


@pytest.mark.parametrize(
    ("first", "count", "offsets", "match"),
    [
        ([1], [0], [0, 1], "no blocks"),
        ([1], [1, 2], [0, 1], "differ in length"),
        ([1], [1], [0, 2], "do not divide"),
    ],
)
def test_wrong_runs_are_refused(first, count, offsets, match) -> None:
    builder = PrefixTreeBuilder()
    with pytest.raises(ValueError, match=match):
        builder.add_runs([builder.root(None)], first, count, offsets)
