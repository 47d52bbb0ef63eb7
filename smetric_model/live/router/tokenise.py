"""Prompts to tokens, off the event loop, with a cache per message.

A prompt is rendered by the model's chat template and split at its special tokens.  A special token
ends whatever came before it, so each segment (special token and the text up to the next) has the
same tokens wherever it stands: they are cached by the segment's hash, and of a growing session
only the new messages are tokenised.  Whether this holds for a tokenizer is tried when it is
loaded; where it does not, prompts are tokenised whole.

What the engine makes of a body can differ from what is made of it here (its version, its options).
:class:`RenderCheck` compares the lengths with those the engines report, and says when to stop
believing.
"""

from __future__ import annotations

import asyncio
import re
import threading
from array import array
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_digest

from smetric_model.errors import SpecError
from smetric_model.live.router.chat_template import CannotRenderError, ChatTemplate
from smetric_model.live.router.exact import ExactIndex, ExactPrompt
from smetric_model.live.router.question import Question

__all__ = ["RenderCheck", "SegmentCache", "Tokeniser"]

#: Token ids longer than this are packed in a thread: the event loop would notice.
_INLINE_TOKENS = 8192
#: Memory of an entry beside its tokens [bytes]
_ENTRY_BYTES = 250


class SegmentCache:
    """Tokens of segments, least recently used forgotten first.

    Parameters
    ----------
    budget_bytes : int
        Memory of all entries [bytes].
    """

    def __init__(self, budget_bytes: int):
        self._budget = budget_bytes
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.memory_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the tokens of a segment."""
        with self._lock:
            data = self._entries.get(key)
            if data is not None:
                self._entries.move_to_end(key)
            return data

    def put(self, key: bytes, data: bytes) -> None:
        """Keep the tokens of a segment."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = data
            self.memory_bytes += len(data) + _ENTRY_BYTES
            while self.memory_bytes > self._budget:
                _, old = self._entries.popitem(last=False)
                self.memory_bytes -= len(old) + _ENTRY_BYTES

    def __len__(self) -> int:
        return len(self._entries)


class Tokeniser:
    """Tokens of request bodies.

    Parameters
    ----------
    folder : str or Path or None
        Holds ``tokenizer.json`` and the chat template; None: only token ids can be read.
    chat_template : str or Path, optional
        Template, if not the one in the folder.
    add_special_tokens : bool
        Whether the engine adds special tokens to text prompts.
    threads : int
        Threads that tokenise.
    cache_bytes : int
        Memory of the cache [bytes].

    Raises
    ------
    SpecError
        If a file is missing or wrong.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        chat_template: str | Path | None = None,
        add_special_tokens: bool = True,
        threads: int = 1,
        cache_bytes: int = 256_000_000,
    ):
        self._add_special_tokens = add_special_tokens
        self._tokenizer: Any = None
        self._template: ChatTemplate | None = None
        self._split: re.Pattern[str] | None = None
        self.cache = SegmentCache(cache_bytes)
        if folder is not None:
            self._tokenizer = _load(Path(folder))
            self._template = ChatTemplate.find(Path(folder), chat_template)
            self._split = _splitter(self._tokenizer)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")

    @property
    def caches_segments(self) -> bool:
        """Whether this tokenizer's segments can be cached."""
        return self._split is not None

    async def prompt(
        self, question: Question, index: ExactIndex, budget_s: float
    ) -> ExactPrompt | None:
        """Return the tokens of a request's prompt.

        Parameters
        ----------
        question : Question
            The request.
        index : ExactIndex
            Knows the block sizes to hash for, and the LoRA adapters.
        budget_s : float
            Longest wait [s]; the work goes on and fills the cache.

        Returns
        -------
        ExactPrompt or None
            None if it cannot be known, or not in time.
        """
        body = question.body
        if body is None or not self._can_read(question):
            return None
        prompt = body.get("prompt")
        if (
            question.api == "completions"
            and isinstance(prompt, list)
            and len(prompt) <= _INLINE_TOKENS
        ):
            return self._work(question, index)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(budget_s):
                return await loop.run_in_executor(self._pool, self._work, question, index)
        except TimeoutError:
            return None

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _can_read(self, question: Question) -> bool:
        assert question.body is not None
        if question.has_images:
            return False
        if question.api == "completions":
            prompt = question.body.get("prompt")
            return _is_ids(prompt) or (isinstance(prompt, str) and self._tokenizer is not None)
        return question.api == "chat" and self._template is not None

    def _work(self, question: Question, index: ExactIndex) -> ExactPrompt | None:
        body = question.body
        assert body is not None
        try:
            if question.api == "completions":
                prompt = body["prompt"]
                if isinstance(prompt, str):
                    data = self.encode(prompt, self._special(body, self._add_special_tokens))
                else:
                    data = array("I", prompt).tobytes()
            else:
                assert self._template is not None
                data = self.encode(self._template.render(body), self._special(body, False))
        except (CannotRenderError, OverflowError, TypeError):
            return None
        model, salt = body.get("model"), body.get("cache_salt")
        result = ExactPrompt(
            data,
            lora=model if isinstance(model, str) and model in index.loras else None,
            salt=salt if isinstance(salt, str) else None,
        )
        for size in tuple(index.block_sizes):
            result.keys(size)
        return result

    @staticmethod
    def _special(body: dict[str, Any], default: bool) -> bool:
        told = body.get("add_special_tokens")
        return told if isinstance(told, bool) else default

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """Return token ids, four bytes each."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        if self._split is None or add_special_tokens:
            return self._whole(text, add_special_tokens)
        cuts = [match.start() for match in self._split.finditer(text)]
        if not cuts or cuts[0] != 0:
            cuts.insert(0, 0)
        cuts.append(len(text))
        segments = [text[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1)]
        keys = [xxh3_128_digest(segment.encode()) for segment in segments]
        found = [self.cache.get(key) for key in keys]
        missing = [index for index, data in enumerate(found) if data is None]
        if missing:
            encoded = self._tokenizer.encode_batch(
                [segments[index] for index in missing], add_special_tokens=False
            )
            for index, one in zip(missing, encoded, strict=True):
                data = found[index] = array("I", one.ids).tobytes()
                self.cache.put(keys[index], data)
        return b"".join(data for data in found if data is not None)

    def _whole(self, text: str, add_special_tokens: bool) -> bytes:
        # encode_batch, unlike encode, lets other threads run
        (one,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return array("I", one.ids).tobytes()


class RenderCheck:
    """Compares prompt lengths with the engines', and says whether to believe them.

    Parameters
    ----------
    window : int
        Prompts looked back on.
    """

    def __init__(self, window: int = 50):
        self._recent: deque[bool] = deque(maxlen=window)
        self.compared = 0
        self.different = 0

    def compare(self, own_tokens: int, engine_tokens: int) -> None:
        """Compare one prompt's length."""
        same = own_tokens == engine_tokens
        self.compared += 1
        self.different += not same
        self._recent.append(same)

    @property
    def is_believable(self) -> bool:
        """Whether at most half of the recent prompts came out differently (of at least 10)."""
        return len(self._recent) < 10 or 2 * sum(self._recent) >= len(self._recent)


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def _load(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SpecError(
            "hits.tokenizer needs the package 'tokenizers', which is not installed; "
            "pip install 'smetric-model[live]'"
        ) from None
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    if not file.is_file():
        raise SpecError(f"hits.tokenizer: {file}: no such file")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exception
        raise SpecError(f"hits.tokenizer: {file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _splitter(tokenizer: Any) -> re.Pattern[str] | None:
    """Pattern of the special tokens at which prompts can be cut; None if they cannot."""
    special = [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and not token.lstrip and not token.rstrip and not token.normalized
    ]
    if not special:
        return None

    def ids(text: str) -> list[int]:
        encoded: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return encoded

    texts = ("a text", " with blanks ", "\nlines\n\n", "é 漢", "")
    good = [
        token
        for token in special
        if all(
            ids(before + token + after) == ids(before) + ids(token + after)
            for before in texts
            for after in texts
        )
    ]
    if not good:
        return None
    return re.compile("|".join(re.escape(token) for token in sorted(good, key=len, reverse=True)))
