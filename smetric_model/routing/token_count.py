"""Count tokens of texts: bytes by four, or a real tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from smetric_model.errors import SpecError

__all__ = ["BYTES_PER_TOKEN", "ByteCount", "TokenCount", "TokenizerCount"]

#: Bytes of UTF-8 in a token, the usual rule of thumb for code and English.
BYTES_PER_TOKEN = 4


class TokenCount(Protocol):
    """Counts the tokens of the pieces of a prompt."""

    def tokens(self, pieces: Sequence[str]) -> int:
        """Return the number of tokens of all pieces [tokens]."""
        ...


class ByteCount:
    """One token for every four bytes of UTF-8, rounded down over all pieces."""

    def tokens(self, pieces: Sequence[str]) -> int:
        """Return the number of tokens of all pieces [tokens]."""
        return sum(map(_utf8_bytes, pieces)) // BYTES_PER_TOKEN


class TokenizerCount:
    """Tokens of a Hugging Face tokenizer, each piece by itself, without special tokens."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: str | Path) -> TokenizerCount:
        """Load a ``tokenizer.json``.

        Parameters
        ----------
        path : str or Path
            The file, or the directory it lies in.

        Raises
        ------
        SpecError
            If the package ``tokenizers`` is not installed, or the file is not such a file.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SpecError(
                "counting with a tokenizer needs the package 'tokenizers', which is not "
                "installed; pip install 'smetric-model[tokenizers]'"
            ) from None
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise SpecError(f"{file}: no such file; a Hugging Face tokenizer.json is allowed")
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the package raises bare Exception
            raise SpecError(f"{file}: not a Hugging Face tokenizer.json: {error}") from None

    def tokens(self, pieces: Sequence[str]) -> int:
        """Return the number of tokens of all pieces [tokens]."""
        clean = [_without_surrogates(piece) for piece in pieces if piece]
        encoded = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        return sum(len(encoding.ids) for encoding in encoded)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which the tokenizer cannot take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
