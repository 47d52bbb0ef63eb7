"""Prompts as token ids that share exactly what the trace's prompts share.

Every block of the trace becomes a block of tokens, drawn when it is first needed, so that two
prompts have the same tokens as far as their paths in the radix tree are the same.  Where a
follow-up appends to its session's history, its new blocks begin with the tokens that the engine
really generated: an engine can then reuse them, as it does for real clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.live.rig.tiny_model import FIRST_FILLER

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["PromptMaker"]

#: keeps the streams of blocks and of the ends of prompts apart
_BLOCK, _TAIL = 0, 1


class PromptMaker:
    """Token ids of a trace's prompts, made in the order in which they are sent.

    Parameters
    ----------
    trace : Trace
        With a prefix tree.
    vocabulary : int
        Ids are drawn below it.
    salt : int
        Other salts give other tokens: nothing is shared between two replays.
    """

    def __init__(self, trace: Trace, vocabulary: int, salt: int):
        self.tree, self.block = trace.require_tree()
        self.lengths = trace.column("prompt_tokens").astype(np.int64)
        self.vocabulary, self.salt = vocabulary, salt
        self._blocks: dict[int, list[int]] = {}

    def _drawn(self, kind: int, number: int, count: int) -> list[int]:
        chance = np.random.default_rng([self.salt, kind, number])
        drawn: NDArray[np.int64] = chance.integers(FIRST_FILLER, self.vocabulary, count)
        return [int(i) for i in drawn]

    def prompt(
        self, row: int, before: list[int] | None = None, generated: list[int] | None = None
    ) -> list[int]:
        """Return the prompt of a request.

        Parameters
        ----------
        row : int
            Row of the trace.
        before : list of int, optional
            Prompt of the session's previous turn, as it was sent.
        generated : list of int, optional
            What was generated for it.

        Returns
        -------
        list of int
            As many token ids as the trace says.
        """
        length = int(self.lengths[row])
        ids = self.tree.block_ids(row)[: length // self.block].tolist()
        known = 0
        while known < len(ids) and ids[known] in self._blocks:
            known += 1
        tokens: list[int] = []
        for number in ids[:known]:
            tokens += self._blocks[number]
        history: list[int] = []
        if before is not None and tokens[: len(before)] == before[: len(tokens)]:
            # all that is shared with others is the history's own beginning: it is appended to
            whole = len(before) // self.block * self.block
            if len(tokens) >= whole:
                history = before + (generated or [])
        for number in ids[known:]:
            at = len(tokens)
            words = history[at : at + self.block]
            words += self._drawn(_BLOCK, number, self.block)[len(words) :]
            self._blocks[number] = words
            tokens += words
        rest = length - len(tokens)
        if rest:
            words = history[len(tokens) : length]
            tokens += words + self._drawn(_TAIL, row, rest)[len(words) :]
        return tokens
