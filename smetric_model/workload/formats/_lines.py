"""Lines of a plain, gzip or zstandard file, found by content, in bounded memory."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from smetric_model.errors import TraceError

__all__ = ["MAX_LINE_BYTES", "open_trace_file", "read_lines", "read_start"]

#: Longest line (one JSON document, for Weka) that is read; a bound on memory.
MAX_LINE_BYTES = 256 * 2**20

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LFS = b"version https://git-lfs"
_CHUNK_BYTES = 1 << 18
#: A zstandard block of four bytes can unfold to 128 KiB: feed little at a time.
_ZSTD_CHUNK_BYTES = 2048


class _Unpacked(io.RawIOBase):
    """Reads a chain of gzip members or zstandard frames, and notices a missing end."""

    def __init__(self, file: BinaryIO, kind: str):
        self._file = file
        self._kind = kind
        self._rest = b""
        self._out = memoryview(b"")
        self._unpacker = self._new()
        self._started = False

    def _new(self) -> Any:
        if self._kind == "gzip":
            return zlib.decompressobj(wbits=31)
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def _more(self) -> bool:
        """Unpack some bytes into ``_out``; False at the end of the file."""
        if self._unpacker.eof:
            self._unpacker = self._new()
            self._started = False
        if not self._rest:
            self._rest = self._file.read(
                _CHUNK_BYTES if self._kind == "gzip" else _ZSTD_CHUNK_BYTES
            )
        if not self._rest:
            if self._started:
                raise EOFError(f"the {self._kind} data end before their end mark")
            return False
        if self._kind == "gzip":
            out = self._unpacker.decompress(self._rest, _CHUNK_BYTES)
            self._rest = (
                self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
            )
        else:
            out = self._unpacker.decompress(self._rest)
            self._rest = self._unpacker.unused_data if self._unpacker.eof else b""
        self._started = True
        if self._unpacker.eof and self._kind == "gzip":
            self._rest = self._rest.lstrip(b"\0")  # padding after a member is legal
        self._out = memoryview(out)
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while not self._out:
            if not self._more():
                return 0
        count = min(len(buffer), len(self._out))
        buffer[:count] = self._out[:count]
        self._out = self._out[count:]
        return count


def open_trace_file(path: Path) -> BinaryIO:
    """Open a file for reading, unpacking it where its first bytes say so.

    Parameters
    ----------
    path : Path
        A plain, gzip or zstandard file, whatever its name.

    Returns
    -------
    binary file

    Raises
    ------
    TraceError
        For an empty file or a Git LFS pointer.
    OSError
        If the file cannot be opened.
    """
    file = path.open("rb")
    head = file.read(len(_LFS))
    file.seek(0)
    if not head:
        file.close()
        raise TraceError("the file is empty", path)
    if head.startswith(_LFS):
        file.close()
        raise TraceError(
            "this is a Git LFS pointer, not the trace: fetch the content with `git lfs pull`",
            path,
            1,
        )
    if head.startswith(_GZIP):
        return io.BufferedReader(_Unpacked(file, "gzip"), _CHUNK_BYTES)
    if head.startswith(_ZSTD):
        return io.BufferedReader(_Unpacked(file, "zstandard"), _CHUNK_BYTES)
    return file


def _damage() -> tuple[type[Exception], ...]:
    import zstandard

    return (EOFError, zlib.error, zstandard.ZstdError)


def read_start(path: Path, count: int) -> bytes:
    """First bytes of a file, unpacked.

    Parameters
    ----------
    path : Path
        A plain, gzip or zstandard file.
    count : int
        How many bytes at most.

    Returns
    -------
    bytes

    Raises
    ------
    TraceError
        If the file is empty, a Git LFS pointer, or damaged.
    """
    parts: list[bytes] = []
    with open_trace_file(path) as file:
        try:
            # In pieces: a reader sets aside as much memory as it is asked for.
            while count > 0 and (part := file.read(min(count, _CHUNK_BYTES))):
                parts.append(part)
                count -= len(part)
            return b"".join(parts)
        except _damage() as error:
            raise TraceError(f"damaged compressed data: {error}", path, 1) from None


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines of a file that are not blank, with their numbers.

    Parameters
    ----------
    path : Path
        A plain, gzip or zstandard file.

    Yields
    ------
    number : int
        Counted from 1.
    line : bytes
        Without the line end; a byte order mark at the file's start is taken off.

    Raises
    ------
    TraceError
        If the data are damaged, or a line is longer than :data:`MAX_LINE_BYTES`.
    """
    number = 0
    with open_trace_file(path) as file:
        while True:
            number += 1
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
            except _damage() as error:
                raise TraceError(f"damaged compressed data: {error}", path, number) from None
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise TraceError(
                    f"a line of more than {MAX_LINE_BYTES:,} bytes; split the file", path, number
                )
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            line = line.strip()
            if line:
                yield number, line
