"""The model that the jobs train, and when its steps are done."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from torch.nn import functional

RUN_AHEAD = 2
"""Steps that may be under way on the GPU while the training thread prepares the next one. The thread sleeps until an
older one is done, so that the time of processors is that of work and not of waits."""
WARM_STEPS = 12
CLASSES = 10


class Unusable(Exception):
    """The device cannot be used. The message says why, to the person who runs the benchmark."""


def opened_device(name: str) -> torch.device:
    """Returns the device.

    Raises:
        Unusable: it is not there.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        why = "PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch finds no GPU"
        raise Unusable(f"there is no GPU to measure: {why} (`coprep doctor` says more)")
    return device


def model_of(name: str) -> torch.nn.Module:
    """Returns `tiny`, `one-layer`, or a model of torchvision."""
    if name == "one-layer":
        # Next to nothing, so that the bytes of the batches decide.
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, CLASSES))
    if name == "tiny":
        convolution = torch.nn.Conv2d(3, 8, 8, stride=8)
        pool = torch.nn.AdaptiveAvgPool2d(1)
        return torch.nn.Sequential(convolution, torch.nn.ReLU(), pool, torch.nn.Flatten(), torch.nn.Linear(8, CLASSES))
    import torchvision

    model: torch.nn.Module = getattr(torchvision.models, name)(num_classes=CLASSES)
    return model


class Trainer:
    """A model on a device, and the steps that the device has not done yet."""

    def __init__(self, device: torch.device, model: str) -> None:
        torch.backends.cudnn.benchmark = True
        self.device = device
        self.model = model_of(model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._pending: deque[torch.cuda.Event] = deque()

    def warm_up(self, batch_size: int) -> None:
        """Trains some steps, in which cuDNN chooses its algorithms."""
        images, labels = synthetic_batch(self.device, batch_size)
        for _ in range(WARM_STEPS):
            self.step(images, labels)
        self.drain()
        if self.device.type == "cuda":
            # The search for algorithms has used much more memory than training does.
            torch.cuda.empty_cache()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float | None:
        """Asks the device for a step. Returns when an earlier step was done, if that has just been seen."""
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.device.type == "cpu":
            return time.monotonic()
        # The thread sleeps while it waits for such an event, instead of asking without pause.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        self._pending.append(done)
        if len(self._pending) <= RUN_AHEAD:
            return None
        self._pending.popleft().synchronize()
        return time.monotonic()

    def drain(self) -> None:
        """Waits until the device has done all steps."""
        while self._pending:
            self._pending.popleft().synchronize()

    def reset_memory(self) -> None:
        """Gives unused memory back to the device, and counts the largest use anew."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def memory_mib(self) -> dict[str, float]:
        """Returns the memory of the device that all processes use, and the most that PyTorch has allocated here."""
        if self.device.type != "cuda":
            return {}
        free, total = torch.cuda.mem_get_info()
        return {"used": (total - free) / 2**20, "allocated": torch.cuda.max_memory_allocated() / 2**20}

    def about(self) -> dict[str, Any]:
        """Returns the names and versions that results depend on."""
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "no GPU"
        return {"gpu": name, "torch": torch.__version__, "cuda": torch.version.cuda}


def synthetic_batch(device: torch.device, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a batch in the form that needs no further work: of the type and in the order of the convolutions."""
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    return images.to(torch.bfloat16, memory_format=torch.channels_last), torch.randint(
        0, CLASSES, (batch_size,), device=device
    )
