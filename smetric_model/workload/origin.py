"""Where reuse comes from: the session's own history, the system prompt, or other sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError
from smetric_model.workload.reuse import Touches, last_touches

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["common_prefix_blocks", "origin_shares", "reuse_origin"]

#: A prefix belongs to an agent framework if at least this share of the sessions begin with it …
COMMON_SESSION_RATIO = 0.01
#: … and at least this many.
COMMON_SESSIONS = 3


def common_prefix_blocks(
    trace: Trace,
    *,
    common_session_ratio: float = COMMON_SESSION_RATIO,
    common_sessions: int = COMMON_SESSIONS,
) -> npt.NDArray[np.int64]:
    """Length of the framework's common prefix in each request.

    Several frameworks (and models) may stand side by side; each has its own.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and sessions.
    common_session_ratio : float, default 0.01
        Share of all sessions whose first request must begin alike.
    common_sessions : int, default 3
        Least number of such sessions.

    Returns
    -------
    ndarray of int64, shape (requests,)
        Blocks of the request that lie within a prefix with which at least
        max(``common_sessions``, ``common_session_ratio`` · sessions) sessions begin [blocks].

    Raises
    ------
    SpecError
        If the ratio is not in [0, 1].
    TraceError
        If the trace carries no block ids or names no sessions.
    """
    from smetric_model.workload import _reuse_kernels

    if not 0 <= common_session_ratio <= 1:
        raise SpecError(
            f"common_session_ratio is {common_session_ratio}; a number in [0, 1] is needed"
        )

    tree, _ = trace.require_tree()
    session = trace.require_sessions()
    _, firsts = np.unique(session, return_index=True)
    threshold = max(common_sessions, math.ceil(common_session_ratio * firsts.size))
    leaf = tree.request_segment[firsts]
    blocks = tree.request_blocks[firsts]
    common = np.empty(tree.parent.size, np.int64)
    _reuse_kernels.common_depths(
        tree.parent,
        tree.start_block,
        tree.end_block,
        np.lexsort((-blocks, leaf)),
        leaf,
        blocks,
        threshold,
        common,
    )
    reach = np.empty(len(trace), np.int64)
    _reuse_kernels.common_reach(
        tree.parent,
        tree.end_block,
        common,
        tree.request_segment,
        tree.request_blocks,
        reach,
    )
    return reach


def reuse_origin(
    trace: Trace,
    *,
    common_session_ratio: float = COMMON_SESSION_RATIO,
    common_sessions: int = COMMON_SESSIONS,
    touches: Touches | None = None,
) -> pd.DataFrame:
    """Reusable tokens of each request by origin.

    Parameters
    ----------
    trace : Trace
        A trace with block ids and sessions.
    common_session_ratio, common_sessions
        What counts as a framework's common prefix; see :func:`common_prefix_blocks`.
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    DataFrame
        One row a request, tokens: ``intra_tokens`` (the request's own session produced the block
        first), ``system_tokens`` (another session did, and the block lies in the framework's common
        prefix), ``other_tokens``; their sum is ideal reuse.  The same by the session that touched
        the block *last*: ``intra_last_toucher_tokens``, ``system_last_toucher_tokens``,
        ``other_last_toucher_tokens``.

    Raises
    ------
    TraceError
        If the trace carries no block ids or names no sessions.

    References
    ----------
    The paper's Figure 5 ("which session originally produced the reused tokens").
    """
    import pandas as pd

    from smetric_model.workload import _reuse_kernels

    tree, block_tokens = trace.require_tree()
    session = trace.require_sessions()
    common = common_prefix_blocks(
        trace, common_session_ratio=common_session_ratio, common_sessions=common_sessions
    )
    own, system, other = (np.zeros(len(trace), np.int64) for _ in range(3))
    _reuse_kernels.producers(
        tree.parent,
        tree.start_block,
        tree.end_block,
        int(tree.path_lengths().max(initial=0)),
        tree.request_segment,
        tree.request_blocks,
        np.arange(len(trace)),
        session,
        common,
        block_tokens,
        trace.column("prompt_tokens"),
        own,
        system,
        other,
    )
    touches = last_touches(trace) if touches is None else touches
    same = session[touches.request] == session[touches.toucher]
    below = np.maximum(common[touches.request] - touches.first_block, 0) * block_tokens
    below = np.minimum(below, touches.tokens)

    def total(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        sums = np.concatenate(([0], np.cumsum(tokens)))
        result: npt.NDArray[np.int64] = sums[touches.offsets[1:]] - sums[touches.offsets[:-1]]
        return result

    return pd.DataFrame(
        {
            "intra_tokens": own,
            "system_tokens": system,
            "other_tokens": other,
            "intra_last_toucher_tokens": total(np.where(same, touches.tokens, 0)),
            "system_last_toucher_tokens": total(np.where(same, 0, below)),
            "other_last_toucher_tokens": total(np.where(same, 0, touches.tokens - below)),
        }
    )


def origin_shares(origin: pd.DataFrame, prompt_tokens: int) -> pd.DataFrame:
    """Shares of reuse by origin.

    Parameters
    ----------
    origin : DataFrame
        Result of :func:`reuse_origin`.
    prompt_tokens : int
        Prompt tokens of the trace in all [tokens].

    Returns
    -------
    DataFrame
        Rows ``intra``, ``system``, ``other``; columns ``reuse_ratio`` (÷ reused tokens; sums to 1),
        ``prompt_ratio`` (÷ prompt tokens; sums to ideal reuse), and the first again by last
        toucher, ``last_toucher_reuse_ratio``.  NaN where nothing is reused.
    """
    import pandas as pd

    names = ["intra", "system", "other"]
    first = np.array([origin[f"{name}_tokens"].sum() for name in names], dtype=np.float64)
    last = np.array(
        [origin[f"{name}_last_toucher_tokens"].sum() for name in names], dtype=np.float64
    )
    reused = first.sum() or math.nan
    return pd.DataFrame(
        {
            "reuse_ratio": first / reused,
            "prompt_ratio": first / prompt_tokens,
            "last_toucher_reuse_ratio": last / reused,
        },
        index=pd.Index(names, name="origin"),
    )
