"""Ideal reuse: what an infinite KV store would save, from whom, and how soon.

The store is filled when a request arrives (its whole prompt at once); outputs are not in it until
a later prompt repeats them.  A block counts as reused when an earlier request held it *and*
everything before it; a partly filled last block is clipped to the prompt's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["Touches", "ideal_reuse", "last_touches", "reuse_table"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Touches:
    """Reusable prefix of each request, in pieces by who touched them last.

    Piece ``k`` is the blocks ``first_block[k]`` to ``last_block[k]`` (exclusive) of request
    ``request[k]``, all last touched by request ``toucher[k]``.  Pieces are sorted by request and,
    within one, by depth; the pieces of a request lie without gaps from block 0 on.  Few are needed:
    typically one for a shared system prompt and one for the session's own history.

    Attributes
    ----------
    offsets : ndarray of int64, shape (requests + 1,)
        Where each request's pieces begin.
    request, toucher : ndarray of int32, shape (pieces,)
        Rows of the trace.
    first_block, last_block : ndarray of int64, shape (pieces,)
        Depths [blocks].
    tokens : ndarray of int64, shape (pieces,)
        Tokens of the piece, clipped to the prompt's length [tokens].
    """

    offsets: IntArray
    request: npt.NDArray[np.int32]
    toucher: npt.NDArray[np.int32]
    first_block: IntArray
    last_block: IntArray
    tokens: IntArray


def last_touches(trace: Trace) -> Touches:
    """Find who touched each part of each request's reusable prefix last.

    Parameters
    ----------
    trace : Trace
        Any trace with block ids; requests in order of arrival.

    Returns
    -------
    Touches

    Raises
    ------
    TraceError
        If the trace carries no block ids.
    """
    from smetric_model.workload import _reuse_kernels

    tree, block_tokens = trace.require_tree()
    longest = int(tree.path_lengths().max(initial=0))
    arguments = (
        tree.parent,
        tree.start_block,
        tree.end_block,
        longest,
        tree.request_segment,
        tree.request_blocks,
    )
    requests = tree.request_segment.size
    offsets = np.empty(requests + 1, np.int64)
    none32, none64 = np.empty(1, np.int32), np.empty(1, np.int64)
    count = _reuse_kernels.last_touches(*arguments, offsets, none32, none64, none64, False)
    toucher = np.empty(max(count, 1), np.int32)
    first, last = np.empty(max(count, 1), np.int64), np.empty(max(count, 1), np.int64)
    _reuse_kernels.last_touches(*arguments, offsets, toucher, first, last, True)
    toucher, first, last = toucher[:count], first[:count], last[:count]
    request = np.repeat(np.arange(requests, dtype=np.int32), np.diff(offsets))
    prompt_tokens = trace.column("prompt_tokens")[request]
    tokens = np.minimum(last * block_tokens, prompt_tokens) - first * block_tokens
    return Touches(offsets, request, toucher, first, last, tokens.astype(np.int64))


def ideal_reuse(trace: Trace) -> IntArray:
    """Tokens of each prompt that an infinite store holds at the request's arrival.

    Parameters
    ----------
    trace : Trace
        Any trace with block ids.

    Returns
    -------
    ndarray of int64, shape (requests,)
        Reusable tokens [tokens], at most the prompt.  A prompt seen before is reusable whole; an
        engine still computes its last token (or block) to sample from.

    Raises
    ------
    TraceError
        If the trace carries no block ids.

    References
    ----------
    The paper's Figure 5: skipped over total prefill tokens, block granularity, infinite store.
    """
    touches = last_touches(trace)
    return _sum_by_request(touches, touches.tokens)


def _sum_by_request(touches: Touches, values: IntArray) -> IntArray:
    sums = np.concatenate(([0], np.cumsum(values)))
    result: IntArray = sums[touches.offsets[1:]] - sums[touches.offsets[:-1]]
    return result


def reuse_table(trace: Trace, touches: Touches | None = None) -> pd.DataFrame:
    """Ideal reuse of each request and how long its prefix had lain untouched.

    Parameters
    ----------
    trace : Trace
        Any trace with block ids.
    touches : Touches, optional
        Result of :func:`last_touches`, if at hand.

    Returns
    -------
    DataFrame
        One row a request: ``reused_tokens``, ``new_tokens`` (sum: the prompt);
        ``last_toucher``, the request that last touched the deepest reusable block (−1 if none);
        ``since_last_touch_s``, from that request's arrival to this one's; ``interval_s``, from its
        *completion* (NaN where the trace does not tell it), at least 0.

    Raises
    ------
    TraceError
        If the trace carries no block ids.
    """
    import pandas as pd

    touches = last_touches(trace) if touches is None else touches
    reused = _sum_by_request(touches, touches.tokens)
    has = np.diff(touches.offsets) > 0
    deepest = np.full(len(trace), -1, np.int64)
    deepest[has] = touches.toucher[touches.offsets[1:][has] - 1]
    arrival_s = trace.column("arrival_s")
    since = np.where(has, arrival_s - arrival_s[deepest], np.nan)
    e2e_s = trace.column("e2e_s")[deepest]
    return pd.DataFrame(
        {
            "reused_tokens": reused,
            "new_tokens": trace.column("prompt_tokens") - reused,
            "last_toucher": deepest,
            "since_last_touch_s": since,
            "interval_s": np.maximum(since - e2e_s, 0.0),
        }
    )
