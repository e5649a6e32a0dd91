"""Tests WAV and FLAC files as programs write them: with sizes that are unknown or wrong, and any chunks and tags."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import audio_reference
import coprep
import numpy as np
import pytest

RATE = 8_000
MONO = np.random.default_rng(5).integers(-30_000, 30_000, (400, 1)).astype("<i2")
STEREO = MONO.reshape(200, 2)
DATA = MONO.tobytes()
SIX = MONO[:396].reshape(66, 6)
PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
UNKNOWN = 0xFFFFFFFF
GUID_END = bytes.fromhex("000000001000800000aa00389b71")


class Row(NamedTuple):
    """A file, and its samples x channels of float32 or a part of the error."""

    file: bytes
    expected: np.ndarray | str


def chunk(name: bytes, body: bytes, size: int | None = None, pad: bool = True) -> bytes:
    length = len(body) if size is None else size
    return name + struct.pack("<I", length) + body + bytes(pad and len(body) % 2)


def fmt(
    tag: int = PCM, channels: int = 1, bits: int = 16, block: int | None = None, more: bytes = b"", rate: int = RATE
) -> bytes:
    block = channels * ((bits + 7) // 8) if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits) + more)


def extensible(
    tag: int, valid: int, channels: int = 1, bits: int = 16, mask: int = 4, block: int | None = None
) -> bytes:
    more = struct.pack("<HHIH", 22, valid, mask, tag) + GUID_END
    return fmt(EXTENSIBLE, channels, bits, block, more)


def riff(*chunks: bytes, size: int | None = None, magic: bytes = b"RIFF", form: bytes = b"WAVE") -> bytes:
    body = b"".join(chunks)
    return magic + struct.pack("<I", len(body) + 4 if size is None else size) + form + body


def wav(
    *before: bytes,
    size: int | None = None,
    whole: int | None = None,
    after: bytes = b"",
    head: bytes = b"",
    data: bytes = DATA,
) -> bytes:
    """Returns a WAV file: the format, other chunks, the samples, and more chunks."""
    return riff(head or fmt(), *before, chunk(b"data", data, size), after, size=whole)


def as_float(pcm: np.ndarray) -> np.ndarray:
    return (pcm.astype(np.float64) / 32_768).astype(np.float32)


def bits_24(pcm: np.ndarray) -> bytes:
    return (pcm.astype("<i4") * 256).tobytes()


def packed_24(pcm: np.ndarray) -> bytes:
    return np.frombuffer(bits_24(pcm), np.uint8).reshape(-1, 4)[:, :3].tobytes()


LAW = bytes(range(256))
LIST = chunk(b"LIST", b"INFO" + chunk(b"ISFT", b"Lavf60.16.100\0"))
EIGHT = np.random.default_rng(6).integers(0, 256, 401).astype(np.uint8)
EIGHT_FLOAT = ((EIGHT.astype(np.float32) - 128) / 128)[:, None]
SAMPLES = as_float(MONO)


def mu_law() -> np.ndarray:
    """G.711, as float32."""
    code = ~np.arange(256).astype(np.uint8)
    magnitude = (((code & 15).astype(np.int64) << 3) + 132 << ((code >> 4) & 7).astype(np.int64)) - 132
    return as_float(np.where(code & 128, -magnitude, magnitude))[:, None]


def a_law() -> np.ndarray:
    code = np.arange(256).astype(np.uint8) ^ 0x55
    exponent, mantissa = ((code >> 4) & 7).astype(np.int64), (code & 15).astype(np.int64)
    magnitude = np.where(exponent == 0, (mantissa << 4) + 8, (mantissa << 4) + 264 << np.maximum(exponent - 1, 0))
    return as_float(np.where(code & 128, magnitude, -magnitude))[:, None]


FLAC = audio_reference.FLAC.read_bytes()
FLAC_SAMPLES = as_float(np.load(audio_reference.FILE)["pcm"])
INFO = FLAC[8:42]
FRAMES_AT = FLAC.index(b"\xff\xf8", 42)
FRAMES = FLAC[FRAMES_AT:]


def block(kind: int, body: bytes, last: bool = False) -> bytes:
    return bytes([kind | 128 * last]) + struct.pack(">I", len(body))[1:] + body


def flac(*blocks: bytes, info: bytes = INFO, frames: bytes = FRAMES) -> bytes:
    return b"fLaC" + block(0, info, not blocks) + b"".join(blocks) + frames


def last(kind: int, body: bytes) -> bytes:
    return block(kind, body, True)


def id3v2(length: int, footer: bool = False) -> bytes:
    size = bytes([length >> 21 & 127, length >> 14 & 127, length >> 7 & 127, length & 127])
    head = b"\x04\0" + bytes([0x10 * footer]) + size
    return b"ID3" + head + bytes(length) + (b"3DI" + head if footer else b"")


ID3V1 = b"TAG" + b"a song".ljust(125, b"\0")
APE_ITEM = struct.pack("<II", 6, 0) + b"Title\0a song"
APE_TAIL = struct.pack("<IIII", 2_000, len(APE_ITEM) + 32, 1, 0xA0000000) + bytes(8)
APE = b"APETAGEX" + APE_TAIL + APE_ITEM + b"APETAGEX" + APE_TAIL


def info_with(at: int, new: bytes) -> bytes:
    return INFO[:at] + new + INFO[at + len(new) :]


NO_TOTAL = info_with(13, bytes([INFO[13] & 0xF0]) + bytes(4))

FILES: dict[str, Row] = {
    # Lengths.
    "all lengths right": Row(wav(), SAMPLES),
    "ffmpeg into a pipe": Row(wav(LIST, size=UNKNOWN, whole=UNKNOWN), SAMPLES),
    "SoX into a pipe": Row(wav(size=0x7FFFF000, whole=0x7FFFF024), SAMPLES),
    "arecord into a pipe": Row(wav(size=0x80000000, whole=0x80000024), SAMPLES),
    "arecord of another version": Row(wav(size=0x7FFFFFFF, whole=0x80000023), SAMPLES),
    "GStreamer into a pipe": Row(wav(size=0, whole=0), SAMPLES),
    "never closed": Row(wav(size=0, whole=36), SAMPLES),
    "never closed, of a writer that counts 8": Row(wav(size=0, whole=8), SAMPLES),
    "data of 0 and the file's length": Row(wav(size=0), "without samples"),
    "RIFF of 0": Row(wav(whole=0), SAMPLES),
    "RIFF of 3": Row(wav(whole=3), SAMPLES),
    "RIFF too short": Row(wav(whole=100), SAMPLES),
    "RIFF too long": Row(wav(whole=2_000), SAMPLES),
    "RIFF unknown": Row(wav(whole=UNKNOWN), SAMPLES),
    "RIFF unknown, a chunk after the samples": Row(wav(whole=UNKNOWN, after=LIST), SAMPLES),
    "data 16 bytes too long": Row(wav(size=816), SAMPLES),
    "data one byte too long": Row(wav(size=801), SAMPLES),
    "data unknown, RIFF right": Row(wav(size=UNKNOWN), SAMPLES),
    "data of half a sample more": Row(wav(data=DATA + b"\1"), SAMPLES),
    "a file of half a sample more": Row(wav(data=DATA + b"\1", size=UNKNOWN)[:-1], SAMPLES),
    "data shorter than the file": Row(wav(size=400), SAMPLES[:200]),
    "bytes behind the file": Row(wav() + b"junk" * 30, SAMPLES),
    "zeros behind the file": Row(wav() + bytes(500), SAMPLES),
    "both lengths beyond the end": Row(wav()[:-100], "cut short"),
    "no samples": Row(wav(data=b""), "without samples"),
    "cut in the format": Row(wav()[:30], "no format"),
    "cut before the samples": Row(wav()[:40], "no samples"),
    # Chunks.
    "LIST before the samples": Row(wav(LIST), SAMPLES),
    "LIST after the samples": Row(wav(after=LIST), SAMPLES),
    "a LIST that is broken inside": Row(wav(chunk(b"LIST", b"INFOISFT\xff\xff\xff\xff....")), SAMPLES),
    "a LIST of two bytes": Row(wav(chunk(b"LIST", b"IN")), SAMPLES),
    "odd chunk with padding": Row(wav(chunk(b"note", b"odd")), SAMPLES),
    "odd chunk without padding": Row(wav(chunk(b"note", b"odd", pad=False)), "no samples"),
    "chunk of length 0": Row(wav(chunk(b"note", b"")), SAMPLES),
    "chunks to 4,096 bytes, of Apple": Row(wav(chunk(b"FLLR", bytes(4_044))), SAMPLES),
    "JUNK before the format": Row(riff(chunk(b"JUNK", bytes(28)), fmt(), chunk(b"data", DATA)), SAMPLES),
    "bext, cue, smpl, PEAK": Row(
        wav(
            *(
                chunk(name, bytes(length))
                for name, length in [(b"bext", 602), (b"cue ", 28), (b"smpl", 60), (b"PEAK", 16)]
            )
        ),
        SAMPLES,
    ),
    "fact with the right number": Row(wav(chunk(b"fact", struct.pack("<I", 400))), SAMPLES),
    "fact with another number": Row(wav(chunk(b"fact", struct.pack("<I", 7))), SAMPLES),
    "fact of 12 bytes": Row(wav(chunk(b"fact", bytes(12))), SAMPLES),
    "ID3 as a chunk": Row(wav(chunk(b"id3 ", id3v2(30))), SAMPLES),
    "ID3v2 before the file": Row(id3v2(300) + wav(), SAMPLES),
    "ID3v1 behind the file": Row(wav() + ID3V1, SAMPLES),
    "two chunks of samples": Row(wav(after=chunk(b"data", DATA)), SAMPLES),
    "a chunk longer than the file": Row(wav(chunk(b"note", b"", size=9_000)), "no samples"),
    "samples before the format": Row(riff(chunk(b"data", DATA), fmt()), "no format"),
    "no samples at all": Row(riff(fmt()), "no samples"),
    "RF64": Row(
        riff(
            chunk(b"ds64", struct.pack("<QQQI", 880, 800, 400, 0)),
            fmt(),
            chunk(b"data", DATA, UNKNOWN),
            LIST,
            magic=b"RF64",
            size=UNKNOWN,
        ),
        SAMPLES,
    ),
    "RF64 into a pipe": Row(
        riff(chunk(b"ds64", bytes(28)), fmt(), chunk(b"data", DATA, UNKNOWN), magic=b"RF64", size=UNKNOWN), SAMPLES
    ),
    "RF64 without ds64": Row(riff(fmt(), chunk(b"data", DATA, UNKNOWN), magic=b"RF64", size=UNKNOWN), SAMPLES),
    "RIFX": Row(riff(fmt(), chunk(b"data", DATA), magic=b"RIFX"), "not a known audio format"),
    "AVI": Row(riff(fmt(), chunk(b"data", DATA), form=b"AVI "), "not a known audio format"),
    # Formats.
    "format of 18 bytes": Row(wav(head=fmt(more=bytes(2))), SAMPLES),
    "format of 20 bytes": Row(wav(head=fmt(more=bytes(4))), SAMPLES),
    "format of 40 bytes": Row(wav(head=fmt(more=b"\x16\0" + bytes(22))), SAMPLES),
    "format of 50 bytes": Row(wav(head=fmt(more=bytes(34))), SAMPLES),
    "format of 14 bytes": Row(wav(head=chunk(b"fmt ", fmt()[8:22])), "no format"),
    "bytes per second of 0": Row(wav(head=fmt().replace(struct.pack("<I", 16_000), bytes(4))), SAMPLES),
    "block of 0 bytes": Row(wav(head=fmt(block=0)), SAMPLES),
    "27 channels": Row(wav(head=fmt(channels=27)), "27 channels"),
    "two channels": Row(wav(head=fmt(channels=2)), as_float(STEREO)),
    "six channels": Row(wav(head=fmt(channels=6), data=SIX.tobytes()), as_float(SIX)),
    "no channels": Row(wav(head=fmt(channels=0, block=2)), "0 channels"),
    "a rate of 0": Row(wav(head=fmt(rate=0)), "0 Hz"),
    "8 bits, odd, with padding": Row(wav(head=fmt(bits=8), data=EIGHT.tobytes()), EIGHT_FLOAT),
    "8 bits, odd, without padding": Row(wav(head=fmt(bits=8), data=EIGHT.tobytes())[:-1], EIGHT_FLOAT),
    "24 bits": Row(wav(head=fmt(bits=24), data=packed_24(MONO)), SAMPLES),
    "24 bits, two channels": Row(wav(head=fmt(channels=2, bits=24), data=packed_24(STEREO)), as_float(STEREO)),
    "32 bits": Row(wav(head=fmt(bits=32), data=(MONO.astype("<i4") << 16).tobytes()), SAMPLES),
    "12 bits in 2 bytes": Row(wav(head=fmt(bits=12)), SAMPLES),
    "20 bits in 3 bytes": Row(wav(head=fmt(bits=20), data=packed_24(MONO)), SAMPLES),
    "24 bits in 4 bytes": Row(
        wav(head=fmt(bits=24, block=4), data=bits_24(MONO)), "24 bits a sample, 1 channels and 4 bytes"
    ),
    "16 bits in 4 bytes": Row(wav(head=fmt(block=4)), "16 bits a sample, 1 channels and 4 bytes"),
    "two channels in one's block": Row(wav(head=fmt(channels=2, block=2)), "2 channels and 2 bytes"),
    "64 bits": Row(wav(head=fmt(bits=64)), "64 bits"),
    "0 bits": Row(wav(head=fmt(bits=0, block=2)), "0 bits"),
    "float32": Row(wav(head=fmt(FLOAT, bits=32), data=SAMPLES.tobytes()), SAMPLES),
    "float32, format of 18 bytes with more": Row(
        wav(head=fmt(FLOAT, bits=32, more=b"\x04\0abcd"), data=SAMPLES.tobytes()), SAMPLES
    ),
    "float64": Row(wav(head=fmt(FLOAT, bits=64), data=SAMPLES.astype("<f8").tobytes()), SAMPLES),
    "float16": Row(wav(head=fmt(FLOAT, bits=16)), "16 bits"),
    "A-law": Row(wav(head=fmt(A_LAW, bits=8), data=LAW), a_law()),
    "mu-law": Row(wav(head=fmt(MU_LAW, bits=8, more=bytes(2)), data=LAW), mu_law()),
    "ADPCM": Row(wav(head=fmt(2, bits=4, block=256, more=bytes(34))), "0002"),
    "extensible": Row(wav(head=extensible(PCM, 16)), SAMPLES),
    "extensible, no mask": Row(wav(head=extensible(PCM, 16, mask=0)), SAMPLES),
    "extensible, a mask of too many channels": Row(wav(head=extensible(PCM, 16, mask=0xFFFF)), SAMPLES),
    "extensible, two channels": Row(wav(head=extensible(PCM, 16, channels=2, mask=3)), as_float(STEREO)),
    "extensible, no valid bits": Row(wav(head=extensible(PCM, 0)), SAMPLES),
    "extensible, 24 bits in 4 bytes": Row(
        wav(head=extensible(PCM, 24, bits=32), data=(MONO.astype("<i4") << 16).tobytes()), SAMPLES
    ),
    "extensible, 20 bits in 3 bytes": Row(wav(head=extensible(PCM, 20, bits=24), data=packed_24(MONO)), SAMPLES),
    "extensible, 24 bits and a block of 4": Row(
        wav(head=extensible(PCM, 24, bits=24, block=4), data=bits_24(MONO)), "24 bits a sample, 1 channels and 4 bytes"
    ),
    "extensible, float32": Row(wav(head=extensible(FLOAT, 32, bits=32), data=SAMPLES.tobytes()), SAMPLES),
    "extensible, A-law": Row(wav(head=extensible(A_LAW, 8, bits=8), data=LAW), a_law()),
    "extensible, mu-law": Row(wav(head=extensible(MU_LAW, 8, bits=8), data=LAW), mu_law()),
    "extensible, ambisonics": Row(
        wav(head=extensible(PCM, 16).replace(GUID_END, bytes.fromhex("00002107d3118644c8c1ca000000"))), SAMPLES
    ),
    "extensible, another scheme of names": Row(wav(head=extensible(PCM, 16).replace(GUID_END, bytes(14))), "fffe"),
    "extensible, MPEG": Row(wav(head=extensible(0x50, 16)), "0050"),
    "extensible, 16 bytes only": Row(wav(head=fmt(EXTENSIBLE)), "fffe"),
    # FLAC.
    "flac": Row(FLAC, FLAC_SAMPLES),
    "flac, only its samples": Row(flac(), FLAC_SAMPLES),
    "flac, ID3v2 before": Row(id3v2(5_000) + FLAC, FLAC_SAMPLES),
    "flac, two ID3v2 before": Row(id3v2(10) + id3v2(200) + FLAC, FLAC_SAMPLES),
    "flac, ID3v2 with a footer before": Row(id3v2(10, footer=True) + FLAC, FLAC_SAMPLES),
    "flac, ID3v1 behind": Row(FLAC + ID3V1, FLAC_SAMPLES),
    "flac, APE behind": Row(FLAC + APE, FLAC_SAMPLES),
    "flac, APE and ID3v1 behind": Row(FLAC + APE + ID3V1, FLAC_SAMPLES),
    "flac, zeros behind": Row(FLAC + bytes(300), FLAC_SAMPLES),
    "flac, noise behind": Row(FLAC + EIGHT.tobytes(), FLAC_SAMPLES),
    "flac, no number of samples": Row(flac(info=NO_TOTAL), FLAC_SAMPLES),
    "flac, no number of samples, ID3v1 behind": Row(flac(info=NO_TOTAL) + ID3V1, FLAC_SAMPLES),
    "flac, no number of samples, cut": Row(flac(info=NO_TOTAL)[:-3_000], "cut short"),
    "flac, smallest block of 0": Row(flac(info=info_with(0, bytes(2))), FLAC_SAMPLES),
    "flac, smallest block below the largest": Row(flac(info=info_with(0, b"\0\x10")), FLAC_SAMPLES),
    "flac, no sizes of frames": Row(flac(info=info_with(4, bytes(6))), FLAC_SAMPLES),
    "flac, no checksum": Row(flac(info=info_with(18, bytes(16))), FLAC_SAMPLES),
    "flac, padding": Row(flac(last(1, bytes(8_000))), FLAC_SAMPLES),
    "flac, a seek table of placeholders": Row(flac(last(3, b"\xff" * 8 + bytes(10))), FLAC_SAMPLES),
    "flac, a seek table that is wrong": Row(
        flac(last(3, struct.pack(">QQH", 0, 9_000, 4_096) + struct.pack(">QQH", 4_096, 1, 4_096))), FLAC_SAMPLES
    ),
    "flac, a seek table of odd length": Row(flac(last(3, bytes(11))), FLAC_SAMPLES),
    "flac, a comment that is broken": Row(flac(last(4, b"\xff\xff\xff\x7fxx")), FLAC_SAMPLES),
    "flac, a picture that is broken": Row(flac(last(6, b"\xff" * 40)), FLAC_SAMPLES),
    "flac, a block of an unknown kind": Row(flac(last(100, b"abc")), FLAC_SAMPLES),
    "flac, two comments": Row(flac(block(4, bytes(8)), last(4, bytes(8))), FLAC_SAMPLES),
    "flac, cut": Row(FLAC[:-3_000], "cut short"),
    "flac, more samples promised": Row(flac(info=info_with(14, struct.pack(">I", 9_500))), "cut short"),
    "flac, no frames": Row(flac(frames=b""), "cut short"),
}


LONGEST = 1 + max(len(row.expected) for row in FILES.values() if not isinstance(row.expected, str))


def decoded(paths: list[Path], channels: int) -> np.ndarray:
    """Returns files x samples x channels, with zeros behind each file."""
    pipeline = coprep.Files(paths).decode_audio(channels=channels).crop(samples=LONGEST)
    with coprep.DataLoader(pipeline, batch_size=len(paths), framework="numpy") as loader:
        ((audio, _labels),) = list(loader)
    found: np.ndarray = audio.transpose(0, 2, 1)
    return found


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_audio_is_what_the_file_holds_whatever_its_header_says(
    socket_path: Path, tmp_path: Path, channels: int
) -> None:
    files = {
        name: row
        for name, row in FILES.items()
        if not isinstance(row.expected, str) and row.expected.shape[1] == channels
    }
    paths = [tmp_path / str(number) for number in range(len(files))]
    for path, row in zip(paths, files.values(), strict=True):
        path.write_bytes(row.file)
    other = []
    for (name, row), found in zip(files.items(), decoded(paths, channels), strict=True):
        length = len(row.expected)
        if not np.array_equal(found[:length], row.expected) or found[length:].any():
            other.append(name)
    assert files and not other


@pytest.mark.parametrize("name", [name for name, row in FILES.items() if isinstance(row.expected, str)])
def test_audio_that_cannot_be_read_is_refused_with_the_reason(socket_path: Path, tmp_path: Path, name: str) -> None:
    row = FILES[name]
    assert isinstance(row.expected, str)
    (tmp_path / "x").write_bytes(row.file)
    with pytest.raises(coprep.SampleError, match=row.expected):
        decoded([tmp_path / "x"], 1)


def test_the_end_of_a_file_is_the_same_read_alone(socket_path: Path, tmp_path: Path) -> None:
    """A random crop begins in the middle, where the decoder seeks."""
    names = [name for name, row in FILES.items() if row.expected is FLAC_SAMPLES]
    for number, name in enumerate(names):
        (tmp_path / f"{number:03}").write_bytes(FILES[name].file)
    pipeline = coprep.Files(sorted(tmp_path.glob("[0-9]*"))).decode_audio(channel=0).random_crop(samples=1_000)
    parts = np.lib.stride_tricks.sliding_window_view(FLAC_SAMPLES[:, 0], 1_000)
    with coprep.DataLoader(pipeline, batch_size=len(names), seed=1, framework="numpy") as loader:
        for _ in range(8):
            ((audio, _labels),) = list(loader)
            for name, crop in zip(names, audio[:, 0], strict=True):
                assert (parts == crop).all(1).any(), name
