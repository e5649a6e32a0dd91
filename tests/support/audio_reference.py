"""Makes the results of torchaudio that ``test_audio.py`` compares with: ``audio_reference.npz``, beside this file.

Beside it lies the file that they are made of, ``audio_reference.flac``.

It is run by hand, in an environment with torch, torchaudio and soundfile, whose versions it notes in the file:

    python tests/support/audio_reference.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".npz")
FLAC = FILE.with_suffix(".flac")
RATE = 44_100
MELS: dict[str, dict[str, Any]] = {
    "default": {"n_fft": 400, "n_mels": 40},
    "narrow": {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 64, "f_min": 50.0, "f_max": 7600.0},
}
"""Arguments of mel spectrograms at 16 kHz. ``log_mel`` and torchaudio's ``MelSpectrogram`` share their names."""
FLOOR = 1e-10


def stereo() -> np.ndarray:
    """Returns 9,000 samples of two channels: tones and noise, int16."""
    times = np.arange(9_000) / RATE
    tones = [12_000 * np.sin(2 * np.pi * 440 * times), 9_000 * np.sin(2 * np.pi * (300 + 9_000 * times) * times)]
    noise = np.random.default_rng(0).integers(-800, 800, (9_000, 2))
    return (np.stack(tones, 1) + noise).round().astype(np.int16)


def main() -> None:
    import soundfile
    import torch
    import torchaudio

    pcm = stereo()
    soundfile.write(FLAC, pcm, RATE, format="FLAC", subtype="PCM_16")
    mono = torch.from_numpy(pcm.astype(np.float32) / 32_768).mean(1)
    results: dict[str, Any] = {
        "versions": [f"{module.__name__} {module.__version__}" for module in (torch, torchaudio, soundfile)],
        "pcm": pcm,
    }
    for rate in (16_000, 48_000, 11_025):
        results[f"rate_{rate}"] = torchaudio.functional.resample(mono, RATE, rate).numpy()
    speech = torch.from_numpy(results["rate_16000"])
    for name, arguments in MELS.items():
        mel = torchaudio.transforms.MelSpectrogram(16_000, **arguments)(speech)
        results[f"mel_{name}"] = mel.clamp(min=FLOOR).log().numpy()
    np.savez_compressed(FILE, **results)


if __name__ == "__main__":
    main()
