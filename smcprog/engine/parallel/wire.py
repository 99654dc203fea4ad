"""Messages between the processes of one model: a small JSON head, and arrays as they lie.

Nothing that is received can be more than numbers and words: no pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode", "encode"]

Array = NDArray[Any]


def encode(head: dict[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """One message.

    Parameters
    ----------
    head : dict
        Whatever JSON holds.
    arrays : sequence of ndarray
    """
    shapes = [(a.dtype.str, list(a.shape)) for a in arrays]
    text = json.dumps([head, shapes]).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(a.tobytes() for a in arrays)])


def decode(message: bytes | bytearray) -> tuple[dict[str, Any], list[Array]]:
    """The head and the arrays of a message, which may be written to."""
    message = bytearray(message)
    (size,) = struct.unpack_from("<I", message)
    head, shapes = json.loads(message[4 : 4 + size])
    arrays, at = [], 4 + size
    for kind, shape in shapes:
        dtype = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(message, dtype, count, at).reshape(shape))
        at += count * dtype.itemsize
    return head, arrays
