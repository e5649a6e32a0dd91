"""Tests audio: decoding, crops, resampling and spectrograms give the numbers of PCM, NumPy and torchaudio."""

from __future__ import annotations

import pickle
import wave
from pathlib import Path
from typing import Any

import audio_reference
import coprep
import numpy as np
import pytest
from batches import batches

REFERENCE = np.load(audio_reference.FILE)
PCM: np.ndarray = REFERENCE["pcm"]
RATE, FRAMES = audio_reference.RATE, len(PCM)
MONO = (PCM.astype(np.float32) / 32_768).mean(1, dtype=np.float32)


def write_wav(path: Path, pcm: np.ndarray, rate: int = RATE) -> Path:
    """Writes samples x channels of int16, or of int32 as 24 bits."""
    width = 2 if pcm.dtype == np.int16 else 3
    content = (
        pcm.astype("<i2").tobytes() if width == 2 else pcm.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(pcm.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


@pytest.fixture
def flac(tmp_path: Path) -> Path:
    path = tmp_path / "x.flac"
    path.write_bytes(audio_reference.FLAC.read_bytes())
    return path


def only(pipeline: coprep.Pipeline) -> np.ndarray:
    """Returns the only sample of a pipeline."""
    with coprep.DataLoader(pipeline, batch_size=1, framework="numpy") as loader:
        ((audio, labels),) = list(loader)
    assert audio.dtype == np.float32 and labels.tolist() == [0]
    found: np.ndarray = audio[0]
    return found


def test_samples_are_those_of_the_file(socket_path: Path, tmp_path: Path, flac: Path) -> None:
    expected = PCM.T.astype(np.float32) / 32_768
    wav, wide = tmp_path / "x.WAV", tmp_path / "wide.wav"
    write_wav(wav, PCM)
    write_wav(wide, PCM.astype(np.int32) * 256)
    for path in (wav, wide, flac):
        files = coprep.Files([path])
        assert np.array_equal(only(files.decode_audio(channels=2).crop(samples=FRAMES)), expected)
        assert np.array_equal(only(files.decode_audio(channel=1).crop(samples=700)), expected[1:, :700])
        mixed = only(files.decode_audio().crop(samples=FRAMES))
        assert np.allclose(mixed, MONO, atol=1e-7)


def test_shorter_audio_gets_zeros_at_its_end(socket_path: Path, flac: Path) -> None:
    for pipeline in (
        coprep.Files([flac]).decode_audio().crop(samples=FRAMES + 100),
        coprep.Files([flac]).decode_audio().random_crop(samples=FRAMES + 100),
    ):
        found = only(pipeline)
        assert np.allclose(found[0, :FRAMES], MONO, atol=1e-7) and not found[0, FRAMES:].any()


@pytest.mark.parametrize("rate", [16_000, 48_000, 11_025])
def test_resampling_is_that_of_torchaudio(socket_path: Path, flac: Path, rate: int) -> None:
    expected = REFERENCE[f"rate_{rate}"]
    found = only(coprep.Files([flac]).decode_audio().resample(rate).crop(samples=len(expected)))
    assert np.abs(found[0] - expected).max() < 1e-5


@pytest.mark.parametrize("name", sorted(audio_reference.MELS))
def test_log_mel_is_that_of_torchaudio(socket_path: Path, flac: Path, name: str) -> None:
    expected = REFERENCE[f"mel_{name}"]
    speech = coprep.Files([flac]).decode_audio().resample(16_000).crop(samples=len(REFERENCE["rate_16000"]))
    found = only(speech.log_mel(**audio_reference.MELS[name]))[0]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 5e-4


def log_mel(samples: np.ndarray, rate: int, size: int, hop: int, bands: int) -> np.ndarray:
    """The definition, in float64."""
    padded = np.pad(samples.astype(np.float64), size // 2, mode="reflect")
    window = np.hanning(size + 1)[:-1]
    frames = np.stack([padded[i : i + size] * window for i in range(0, len(samples) + 1, hop)])
    power = np.abs(np.fft.rfft(frames)) ** 2
    hz = np.linspace(0, rate // 2, size // 2 + 1)
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    up, down = (
        (hz[:, None] - edges[None, :-2]) / np.diff(edges)[None, :-1],
        (edges[None, 2:] - hz[:, None]) / np.diff(edges)[None, 1:],
    )
    filters = np.maximum(0, np.minimum(up, down))
    return np.log(np.maximum(power @ filters, 1e-10)).T


def test_log_mel_is_its_definition_in_numpy(socket_path: Path, flac: Path) -> None:
    pipeline = (
        coprep.Files([flac])
        .decode_audio()
        .resample(RATE)
        .crop(samples=FRAMES)
        .log_mel(n_fft=1024, hop_length=300, n_mels=30)
    )
    expected = log_mel(MONO, RATE, 1024, 300, 30)
    found = only(pipeline)[0]
    assert found.shape == expected.shape and np.abs(found - expected).max() < 5e-4


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """A folder with two classes of files, of two formats, two rates and different lengths."""
    for label in ("a", "b"):
        (tmp_path / "sounds" / label).mkdir(parents=True)
    for i in range(12):
        folder = tmp_path / "sounds" / "ab"[i % 2]
        if i % 3 == 0:
            (folder / f"{i:02}.flac").write_bytes(audio_reference.FLAC.read_bytes())
        else:
            write_wav(folder / f"{i:02}.wav", PCM[: 3_000 + 500 * i, : 1 + i % 2], 22_050 if i % 4 == 1 else RATE)
    (tmp_path / "sounds" / "a" / "notes.txt").write_text("no sound")
    return tmp_path / "sounds"


def training(sounds: Path) -> coprep.Pipeline:
    return coprep.AudioFolder(sounds).decode_audio().resample(16_000).random_crop(0.05).log_mel(n_fft=256, n_mels=20)


def test_a_random_crop_is_a_part_of_the_file_and_each_visit_has_another(socket_path: Path, flac: Path) -> None:
    pipeline = coprep.Files([flac] * 8).decode_audio().random_crop(samples=1_000)
    with coprep.DataLoader(pipeline, batch_size=4, seed=3, framework="numpy") as loader:
        crops = [crop for _ in range(2) for audio, _ in loader for crop in audio[:, 0]]
    # Noise makes each part unlike all others.
    parts = np.lib.stride_tricks.sliding_window_view(MONO, 1_000)
    starts = [int(at) for crop in crops for at in np.flatnonzero(np.abs(parts[:, ::99] - crop[::99]).max(1) < 1e-6)]
    assert len(starts) == len(set(starts)) == len(crops) == 16
    assert all(np.allclose(parts[at], crop, atol=1e-7) for at, crop in zip(starts, crops, strict=True))


def test_batches_are_the_same_however_samples_are_cached(socket_path: Path, sounds: Path) -> None:
    options: dict[str, Any] = {"seed": 5, "batch_size": 4, "shuffle": True, "framework": "numpy", "with_index": True}
    plain, *cached = (
        batches(coprep.DataLoader(training(sounds), cache=cache, **options), epochs=3)
        for cache in ("off", "encoded", "decoded", "auto")
    )
    assert all(one == plain for one in cached)


def test_an_epoch_of_audio_has_each_sample_once_with_its_label_and_its_cost(socket_path: Path, sounds: Path) -> None:
    pipeline = training(sounds)
    assert len(pipeline) == 12 and pipeline.classes == ["a", "b"] and pipeline.root == str(sounds)
    with coprep.DataLoader(
        pipeline, batch_size=5, shuffle=True, with_index=True, cache="decoded", framework="numpy"
    ) as loader:
        for _ in range(2):
            epoch = list(loader)
            assert sorted(i for _, _, ids in epoch for i in ids.tolist()) == list(range(12))
            assert all(audio.shape[1:] == (1, 20, 7) for audio, _, _ in epoch)
            assert all(label == (i >= 6) for _, labels, ids in epoch for label, i in zip(labels, ids, strict=True))
        (stream,) = coprep.status(slow=12)["streams"]
    assert len(stream["costs"]["slowest"]) == 12
    assert all(".wav" in sample["path"] or ".flac" in sample["path"] for sample in stream["costs"]["slowest"])


def test_audio_is_a_pipeline_like_others(sounds: Path) -> None:
    pipeline = training(sounds)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline != training(sounds / "a")
    shown = ".decode_audio().resample(16000).random_crop(samples=800).log_mel(n_fft=256, n_mels=20)"
    assert repr(pipeline) == f'AudioFolder("{sounds}"){shown}'
    full = coprep.Files(["x.wav"]).decode_audio(channels=2, max_samples=9).resample(8000).crop(0.5)
    full = full.log_mel(n_fft=512, win_length=400, hop_length=160, n_mels=64, f_min=50, f_max=3000, floor=1e-5)
    assert pickle.loads(pickle.dumps(full)) == full
    one = coprep.Files(["x.wav"]).decode_audio(channel=1)
    assert pickle.loads(pickle.dumps(one)) == one and repr(one).endswith(".decode_audio(channel=1)")


FILES = coprep.Files(["x.wav"])
DECODED = FILES.decode_audio()


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: FILES.resample(16_000), "begins with decode_audio"),
        (lambda: FILES.decode().resample(16_000), "samples of another kind"),
        (lambda: DECODED.decode_audio(), "twice"),
        (lambda: DECODED.random_crop(1.0), "add resample"),
        (lambda: DECODED.random_crop(), "either seconds= or samples="),
        (lambda: DECODED.crop(samples=0), "must be 1 to"),
        (lambda: DECODED.crop(samples=9).random_crop(samples=9), "a second crop"),
        (lambda: DECODED.crop(samples=9).resample(8_000), "right after decode_audio"),
        (lambda: DECODED.resample(0), "must be 1 to 768000"),
        (lambda: DECODED.crop(samples=900).log_mel(), "needs the sampling rate"),
        (lambda: DECODED.resample(8_000).log_mel(), "after random_crop"),
        (lambda: DECODED.resample(8_000).crop(samples=9).log_mel(), "at most twice"),
        (lambda: DECODED.resample(8_000).crop(1.0).log_mel(f_min=5000), "f_min"),
        (lambda: DECODED.resample(8_000).crop(1.0).log_mel().crop(1.0), "must be the last operator"),
        (lambda: FILES.decode_audio(channels=2, channel=1), "either channels"),
        (lambda: coprep.ImageFolder("/").decode_audio(), "AudioFolder"),
        (lambda: coprep.AudioFolder("/").decode(), "begin with decode_audio"),
    ],
)
def test_operators_that_do_not_fit_are_told_at_once(make: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        make()


def test_audio_without_a_length_is_refused(socket_path: Path, flac: Path) -> None:
    with pytest.raises(ValueError, match=r"add random_crop\(\.\.\.\) or crop"):
        only(coprep.Files([flac]).decode_audio().resample(16_000))


def test_bad_files_are_named(socket_path: Path, tmp_path: Path, flac: Path) -> None:
    content = audio_reference.FLAC.read_bytes()
    write_wav(tmp_path / "mono.wav", PCM[:, :1])
    whole = (tmp_path / "mono.wav").read_bytes()
    for name, file, part in [
        ("text.wav", b"no sound at all", "not a known audio format"),
        ("empty.flac", b"", "the file is empty"),
        ("short.flac", content[:15_000], "cut short"),
        ("short.wav", whole[:15_000], "cut short"),
        ("mono.wav", whole, "it has 1 channels, and channels=2"),
    ]:
        (tmp_path / name).write_bytes(file)
        pipeline = coprep.Files([tmp_path / name]).decode_audio(channels=2 if name == "mono.wav" else 1)
        with pytest.raises(coprep.SampleError, match=f"(?s){name}.*{part}"):
            only(pipeline.crop(samples=FRAMES))
    with pytest.raises(coprep.SampleError, match="more than max_samples = 8999"):
        only(coprep.Files([flac]).decode_audio(max_samples=8_999).crop(samples=10))
