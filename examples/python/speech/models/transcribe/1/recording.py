"""Reads WAV files: PCM of 16 bits or float of 32, one channel or several, which are mixed."""

import base64
import binascii
import struct

import numpy as np

FORMATS = {(1, 16): ("<i2", 1 / 32768), (3, 32): ("<f4", 1.0)}
"""By format tag and bits: what the samples are, and what makes them -1 … 1."""


class BadRecording(ValueError):
    """The recording cannot be used, for the reason that the text names."""


def read_wav(content: bytes, samples_per_s: int) -> np.ndarray:
    """Return the samples as FP32[N]. What does not start as a WAV file is taken for one in base64."""
    if not content.startswith(b"RIFF"):
        try:
            content = base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise BadRecording(f"WAV is neither a WAV file nor one in base64: {error}") from error
    chunks = read_chunks(content)
    if not {b"fmt ", b"data"} <= chunks.keys() or len(chunks[b"fmt "]) < 16:
        raise BadRecording("WAV is not a whole WAV file: it has no format, or no samples")
    tag, num_channels, rate, _, _, num_bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if rate != samples_per_s or (tag, num_bits) not in FORMATS or not num_channels:
        raise BadRecording(
            f"WAV has {rate} samples of {num_bits} bits a second, format {tag}; expected {samples_per_s} a second, "
            f"16 bits (format 1) or float (format 3)"
        )
    dtype, scale = FORMATS[tag, num_bits]
    data = chunks[b"data"]
    frame_size = num_channels * num_bits // 8
    frames = np.frombuffer(data[: len(data) // frame_size * frame_size], dtype).reshape(-1, num_channels)
    return frames.mean(axis=1, dtype=np.float32) * np.float32(scale)


def read_chunks(content: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a RIFF file by name; a chunk that is cut off is as long as what is there."""
    chunks, position = {}, 12
    while position + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, position)
        chunks[name] = content[position + 8 : position + 8 + size]
        position += 8 + size + size % 2
    return chunks
