"""PNG files of small pictures (ISO/IEC 15948), made here so that no bytes of a job are served."""

from __future__ import annotations

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Colour types by number of channels: grey, and red, green and blue.
_COLOUR_TYPES = {1: 0, 3: 2}


def png_encode(height: int, width: int, channels: int, pixels: bytes) -> bytes:
    """Encode rows of pixels with one or three channels of 8 bits."""
    row = width * channels
    assert len(pixels) == height * row, "one byte for each channel of each pixel"
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    lines = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
