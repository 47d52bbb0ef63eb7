"""Block-by-block references: slow, short, and what the fast paths are tested against.

Each works on a list of paths, one a request: tuples of block ids, in order of arrival.  A block is
identified by its whole prefix.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["Path", "lru_hits", "most_hits", "optimal_hits", "prefixes", "reused_blocks"]

Path = Sequence[Hashable]


def prefixes(paths: Sequence[Path]) -> list[list[int]]:
    """Replace each block id by a number that stands for the id and everything before it.

    Parameters
    ----------
    paths : sequence of sequences
        Block ids of each request.

    Returns
    -------
    list of list of int
        Equal numbers mean equal prefixes.
    """
    numbers: dict[tuple[int, Hashable], int] = {}
    result = []
    for path in paths:
        chained = []
        above = -1
        for block in path:
            above = numbers.setdefault((above, block), len(numbers))
            chained.append(above)
        result.append(chained)
    return result


def reused_blocks(paths: Sequence[Path]) -> list[int]:
    """Blocks of each request that an infinite store holds at its arrival.

    Parameters
    ----------
    paths : sequence of sequences
        Block ids of each request.

    Returns
    -------
    list of int
    """
    held: set[int] = set()
    result = []
    for path in prefixes(paths):
        hit = 0
        while hit < len(path) and path[hit] in held:
            hit += 1
        held.update(path)
        result.append(hit)
    return result


def lru_hits(paths: Sequence[Path], capacity_blocks: int) -> list[int]:
    """Blocks of each request that one LRU store hits.

    A request looks up its longest resident prefix, then holds its path, leaf least recent; the
    least recent blocks beyond the capacity go.

    Parameters
    ----------
    paths : sequence of sequences
        Block ids of each request.
    capacity_blocks : int
        Size of the store [blocks].

    Returns
    -------
    list of int
    """
    recency: list[int] = []  # most recent first
    result = []
    for path in prefixes(paths):
        held = set(recency)
        hit = 0
        while hit < len(path) and path[hit] in held:
            hit += 1
        touched = set(path)
        recency = (path + [b for b in recency if b not in touched])[:capacity_blocks]
        result.append(hit)
    return result


def optimal_hits(paths: Sequence[Path], capacity_blocks: int) -> list[int]:
    """Blocks of each request that Belady's store with bypass hits.

    After each request the store keeps, of what it held and the request's path, the blocks whose
    next use is nearest (of equal ones, those nearest to the root).

    Parameters
    ----------
    paths : sequence of sequences
        Block ids of each request.
    capacity_blocks : int
        Size of the store [blocks].

    Returns
    -------
    list of int
    """
    chained = prefixes(paths)
    uses: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    for request, path in enumerate(chained):
        for level, block in enumerate(path):
            uses.setdefault(block, []).append(request)
            depth[block] = level
    held: set[int] = set()
    result = []
    for request, path in enumerate(chained):
        hit = 0
        while hit < len(path) and path[hit] in held:
            hit += 1
        result.append(hit)
        wanted = []
        for block in held | set(path):
            later = [use for use in uses[block] if use > request]
            if later:
                wanted.append((later[0], depth[block], block))
        held = {block for _, _, block in sorted(wanted)[:capacity_blocks]}
    return result


def most_hits(paths: Sequence[Path], capacity_blocks: int) -> int:
    """Largest number of blocks that any store with bypass can hit, by trying everything.

    Exponential: for a handful of requests and blocks.

    Parameters
    ----------
    paths : sequence of sequences
        Block ids of each request.
    capacity_blocks : int
        Size of the store [blocks].

    Returns
    -------
    int
    """
    from itertools import combinations

    best: dict[frozenset[int], int] = {frozenset(): 0}
    for path in prefixes(paths):
        following: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            hit = 0
            while hit < len(path) and path[hit] in held:
                hit += 1
            choice = held | set(path)
            size = min(capacity_blocks, len(choice))
            for kept in combinations(sorted(choice), size):
                key = frozenset(kept)
                following[key] = max(following.get(key, 0), hits + hit)
        best = following
    return max(best.values())
