"""Units: SI inside, the unit in the name.

Quantities carry their unit as a suffix (``_s``, ``_bytes``, ``_tokens``, ``_tps``, ``_rps``,
``_ratio``, ``_bytes_per_s``).  These constants serve the edges: command line, plots, files.
A GB is 1e9 bytes, a GiB is 2**30; 200 Gbps is 25e9 bytes/s.
"""

from __future__ import annotations

from smetric_model.errors import SpecError

__all__ = ["GB", "GBPS_BYTES_PER_S", "GIB", "MIB", "MS_PER_S", "dtype_bytes"]

GB = 1e9
GIB = 2**30
MIB = 2**20
MS_PER_S = 1e3
#: bytes per second of one Gbit/s
GBPS_BYTES_PER_S = 1e9 / 8

#: Bytes of one element; ``int4`` leaves out the scales, which the weights count adds.
_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of ``dtype``.

    Parameters
    ----------
    dtype : str
        ``fp32``, ``bf16``, ``fp16``, ``fp8``, ``int8`` or ``int4``.

    Returns
    -------
    float
        Bytes [bytes].

    Raises
    ------
    SpecError
        For any other name.
    """
    try:
        return _DTYPE_BYTES[dtype]
    except KeyError:
        raise SpecError(f"dtype {dtype!r} is not known; one of {', '.join(_DTYPE_BYTES)}") from None
