"""Which instances hold which element of a chain of keys.

A prompt is a chain: each element's key names the element *and everything before it*, so a key
held means that the whole prefix up to it is known there.  The table maps a key to a mask with one
bit an instance; the longest common prefix with every instance is found in one walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["longest_prefixes"]


def longest_prefixes(
    keys: Sequence[int], tables: Sequence[Mapping[int, int]], wanted: int
) -> dict[int, int]:
    """Count the leading elements that each instance holds.

    Parameters
    ----------
    keys : sequence of int
        The chain.
    tables : sequence of mapping
        Key -> mask of instances; an instance holds a key if any table says so.
    wanted : int
        Mask of the instances asked for; -1 asks for all that hold anything.

    Returns
    -------
    dict
        Bit of an instance -> elements held; instances that hold none are left out.
    """
    held: dict[int, int] = {}
    alive = wanted
    count = 0
    if wanted < 0:
        alive = 0
        for table in tables if keys else ():
            alive |= table.get(keys[0], 0)
        if not alive:
            return held
    if len(tables) == 1:
        get = tables[0].get
        for key in keys:
            still = get(key, 0) & alive
            if still != alive:
                _lost(held, alive & ~still, count)
                alive = still
                if not alive:
                    return held
            count += 1
    else:
        gets = [table.get for table in tables]
        for key in keys:
            still = 0
            for get in gets:
                still |= get(key, 0)
            still &= alive
            if still != alive:
                _lost(held, alive & ~still, count)
                alive = still
                if not alive:
                    return held
            count += 1
    _lost(held, alive, count)
    return held


def _lost(held: dict[int, int], bits: int, count: int) -> None:
    if not count:
        return
    while bits:
        bit = bits & -bits
        held[bit] = count
        bits ^= bit
