"""Block-by-block references: slow, short, and what the fast paths are tested against.

Each works on a list of paths, one a request: tuples of block ids, in order of arrival.  A block is
identified by its whole prefix.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["Path", "prefixes", "reused_blocks"]

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
