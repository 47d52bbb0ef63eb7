"""Hit ratio against store size: LRU at every size in one pass, and the offline optimum.

One store serves all requests.  A request looks up its whole prompt at arrival and then holds it;
the hit is the longest prefix in the store.  Sizes are counted in whole blocks, hits in tokens.
Both policies keep prefixes only: LRU because whoever touches a block touches all above it (within
a request, the leaf is the first to go), the optimum because a block is never needed later than the
blocks below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.workload.reuse import Touches, last_touches

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["LruCurve", "hit_curve", "lru_curve", "optimal_hit_tokens"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LruCurve:
    """Hits of an LRU store as a function of its size; exact at every size.

    Attributes
    ----------
    block_tokens : int
        Tokens of a block.
    prompt_tokens : int
        Tokens looked up in all.
    """

    block_tokens: int
    prompt_tokens: int
    _rise_blocks: npt.NDArray[np.int64]
    _rise_cumulated: FloatArray
    _slope_cumulated: FloatArray

    def hit_tokens(self, size_tokens: npt.ArrayLike) -> FloatArray:
        """Tokens hit with a store of the given size.

        Parameters
        ----------
        size_tokens : array_like
            Size of the store [tokens]; only whole blocks count.

        Returns
        -------
        ndarray of float64
            Tokens [tokens], same shape.
        """
        blocks = np.asarray(size_tokens, dtype=np.float64) // self.block_tokens
        index = np.searchsorted(self._rise_blocks, blocks, side="right")
        result: FloatArray = self._slope_cumulated[index] * blocks - self._rise_cumulated[index]
        return result

    def hit_ratio(self, size_tokens: npt.ArrayLike) -> FloatArray:
        """Tokens hit ÷ prompt tokens; see :meth:`hit_tokens`."""
        return self.hit_tokens(size_tokens) / self.prompt_tokens

    @property
    def largest_useful_tokens(self) -> int:
        """Size beyond which nothing more is hit [tokens]."""
        last = int(self._rise_blocks[-1]) if self._rise_blocks.size else 0
        return last * self.block_tokens


def lru_curve(trace: Trace, touches: Touches | None = None) -> LruCurve:
    """Compute the LRU hit curve of a trace in one pass.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and one clock.
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    LruCurve

    Raises
    ------
    TraceError
        If the trace carries no block ids, or its sessions share no clock.

    Notes
    -----
    The stack distance of a block is the number of blocks touched more recently, itself included
    (Mattson et al. 1970).  The blocks of one piece of a prefix lie next to each other on the stack,
    so a piece of n blocks at distance D adds one hit block for each size from D + 1 to D + n: the
    curve is a sum of such ramps, evaluated by two cumulated sums.  A partly filled last block
    counts as a whole block of space and its own tokens of hit.
    """
    from smetric_model.workload import _reuse_kernels

    trace.require_shared_clock()
    tree, block_tokens = trace.require_tree()
    touches = last_touches(trace) if touches is None else touches
    distance = np.empty(touches.request.size, np.int64)
    _reuse_kernels.stack_distances(
        touches.offsets,
        touches.toucher,
        touches.first_block,
        touches.last_block,
        tree.request_blocks,
        distance,
    )
    blocks = touches.last_block - touches.first_block
    missing = blocks * block_tokens - touches.tokens  # of a partly filled last block
    partial = missing > 0
    # Change of slope [tokens per block] at each breakpoint.
    at = [distance, distance + blocks]
    change = [np.full(blocks.size, block_tokens), np.full(blocks.size, -block_tokens)]
    end = (distance + blocks)[partial]
    at += [end - 1, end]
    change += [-missing[partial], missing[partial]]
    points = np.concatenate(at)
    slopes = np.concatenate(change).astype(np.float64)
    order = np.argsort(points, kind="stable")
    points, slopes = points[order], slopes[order]
    return LruCurve(
        block_tokens=block_tokens,
        prompt_tokens=int(trace.column("prompt_tokens").sum()),
        _rise_blocks=points,
        _rise_cumulated=np.concatenate(([0.0], np.cumsum(slopes * points))),
        _slope_cumulated=np.concatenate(([0.0], np.cumsum(slopes))),
    )


def optimal_hit_tokens(
    trace: Trace, size_tokens: int, touches: Touches | None = None
) -> npt.NDArray[np.int64]:
    """Tokens that an offline optimal store of one size hits, by request.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and one clock.
    size_tokens : int
        Size of the store [tokens]; only whole blocks count.
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    ndarray of int64, shape (requests,)
        Tokens hit [tokens].  No policy hits more *blocks* in all.

    Raises
    ------
    TraceError
        If the trace carries no block ids, or its sessions share no clock.

    Notes
    -----
    Belady's rule with bypass, on pieces instead of blocks: between two touches a block is either
    kept all the time or it is useless, every block kept is one hit, and at most the store's size
    may be kept at once.  Letting go of the farthest next use is then optimal (Belady 1966; an
    interval graph's greedy colouring).  Exact for any number of requests; nothing is sampled.
    """
    from smetric_model.workload import _reuse_kernels

    trace.require_shared_clock()
    _, block_tokens = trace.require_tree()
    touches = last_touches(trace) if touches is None else touches
    size = touches.last_block - touches.first_block
    order = np.argsort(touches.toucher, kind="stable")
    starts = np.searchsorted(touches.toucher[order], np.arange(len(trace) + 1))
    kept = np.zeros(size.size, np.int64)
    _reuse_kernels.optimal_hits(
        starts, order, touches.request, size, int(size_tokens) // block_tokens, kept
    )
    # A partly filled last block hits its own tokens only.
    tokens = np.minimum(kept * block_tokens, touches.tokens)
    result: npt.NDArray[np.int64] = np.zeros(len(trace), np.int64)
    np.add.at(result, touches.request, tokens)
    return result


def hit_curve(
    trace: Trace,
    sizes_tokens: npt.ArrayLike | None = None,
    *,
    optimum: bool = True,
    touches: Touches | None = None,
) -> pd.DataFrame:
    """Hit ratio of LRU and of the offline optimum at several store sizes.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and one clock.
    sizes_tokens : array_like of int, optional
        Sizes [tokens]; default: 25 sizes, geometric, up to where LRU hits all it can.
    optimum : bool, default True
        Whether to compute the optimum (one pass a size).
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    DataFrame
        ``size_tokens``, ``lru_hit_ratio``, ``optimal_hit_ratio`` (÷ prompt tokens).

    Raises
    ------
    TraceError
        If the trace carries no block ids, or its sessions share no clock.
    """
    import pandas as pd

    touches = last_touches(trace) if touches is None else touches
    curve = lru_curve(trace, touches)
    if sizes_tokens is None:
        largest = max(curve.largest_useful_tokens, curve.block_tokens)
        smallest = max(curve.block_tokens, largest / 1e4)
        sizes = np.unique(np.round(np.geomspace(smallest, largest, 25)).astype(np.int64))
    else:
        sizes = np.atleast_1d(np.asarray(sizes_tokens, dtype=np.int64))
    table = pd.DataFrame({"size_tokens": sizes, "lru_hit_ratio": curve.hit_ratio(sizes)})
    if optimum:
        table["optimal_hit_ratio"] = [
            optimal_hit_tokens(trace, int(size), touches).sum() / curve.prompt_tokens
            for size in sizes
        ]
    return table
