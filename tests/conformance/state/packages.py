"""Switches of PyTorch and pandas."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pandas as pd
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from state.kind import Kind, attempt

ENTERED = contextlib.ExitStack()


class DefaultType(Kind):
    """torch.set_default_dtype"""

    values = (torch.float64, torch.float16)

    def set(self, value: torch.dtype) -> None:
        torch.set_default_dtype(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([1.5, index])


class DefaultDeviceCpu(Kind):
    """torch.set_default_device("cpu")"""

    values = ("cpu", "cpu")
    counts = False

    def set(self, value: str) -> None:
        torch.set_default_device(value)

    def __getitem__(self, index: int) -> str:
        return str(torch.empty(1).device)


class DefaultDeviceMeta(Kind):
    """torch.set_default_device("meta")"""

    # PyTorch draws a seed on the default device, and cannot read it from there.
    fails = True
    values = ("meta", "cpu")
    alone = True

    def set(self, value: str) -> None:
        torch.set_default_device(value)

    def __getitem__(self, index: int) -> str:
        return str(torch.empty(1).device)


class Deterministic(Kind):
    """torch.use_deterministic_algorithms(True)"""

    values = (True, False)

    def set(self, value: bool) -> None:
        torch.use_deterministic_algorithms(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: torch.are_deterministic_algorithms_enabled())


class DeterministicCudnn(Kind):
    """torch.backends.cudnn.deterministic = True"""

    values = (True, False)

    def set(self, value: bool) -> None:
        torch.backends.cudnn.deterministic = value

    def __getitem__(self, index: int) -> str:
        return str(torch.backends.cudnn.deterministic)


class GradientsOff(Kind):
    """torch.set_grad_enabled(False)"""

    values = (False, True)

    def set(self, value: bool) -> None:
        torch.set_grad_enabled(value)

    def __getitem__(self, index: int) -> str:
        return str((torch.ones(1, requires_grad=True) * 2).requires_grad)


class InferenceMode(Kind):
    """torch.inference_mode() entered around the whole program"""

    values = (True, False)

    def set(self, value: bool) -> None:
        ENTERED.enter_context(torch.inference_mode(value))

    def __getitem__(self, index: int) -> str:
        return str(torch.ones(1).is_inference())


class Autocast(Kind):
    """torch.autocast entered around the whole program"""

    values = (True, False)

    def set(self, value: bool) -> None:
        ENTERED.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=value))

    def __getitem__(self, index: int) -> str:
        return str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)


class MatmulPrecision(Kind):
    """torch.set_float32_matmul_precision"""

    values = ("medium", "high")

    def set(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)

    def __getitem__(self, index: int) -> str:
        return torch.get_float32_matmul_precision()


class TensorPrinting(Kind):
    """torch.set_printoptions(precision=n)"""

    def set(self, value: int) -> None:
        torch.set_printoptions(precision=value)

    def __getitem__(self, index: int) -> str:
        return str(torch.tensor([1 / 3]))


class TensorThreads(Kind):
    """torch.set_num_threads(n): a loader's workers have one thread"""

    values = (2, 3)
    counts = False

    def set(self, value: int) -> None:
        torch.set_num_threads(value)

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


class FlushDenormal(Kind):
    """torch.set_flush_denormal(True)"""

    values = (True, False)

    def set(self, value: bool) -> None:
        torch.set_flush_denormal(value)

    def __getitem__(self, index: int) -> str:
        return str((torch.tensor([1e-310], dtype=torch.float64) * 1).item())


class TensorSharing(Kind):
    """torch.multiprocessing.set_sharing_strategy"""

    values = ("file_system", "file_descriptor")
    counts = False

    def set(self, value: str) -> None:
        torch.multiprocessing.set_sharing_strategy(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index)


class TensorSeed(Kind):
    """torch.manual_seed: a loader seeds its workers by itself"""

    counts = False

    def set(self, value: int) -> None:
        torch.manual_seed(value)

    def __getitem__(self, index: int) -> int:
        return index + 0 * int(torch.randint(10, (1,)))


class Special:
    """A class that `torch.load` refuses unless it is said to be safe."""

    def __init__(self, size: int = 7) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"Special({self.size})"


def saved() -> bytes:
    torch.save(Special(), file := io.BytesIO())
    return file.getvalue()


SAVED = saved()


class SafeGlobals(Kind):
    """torch.serialization.add_safe_globals"""

    values = (True, False)

    def set(self, value: bool) -> None:
        if value:
            torch.serialization.add_safe_globals([Special])

    def __getitem__(self, index: int) -> str:
        try:
            return str(torch.load(io.BytesIO(SAVED), weights_only=True).size)
        except Exception as error:
            return type(error).__name__


class CollateTable(Kind):
    """default_collate_fn_map[T] = f"""

    # Batches are collated in other processes, and only of types that all of them know.
    refused = frozenset(("fork", "spawn", "forkserver"))
    counts = None

    def set(self, value: int) -> None:
        default_collate_fn_map[Special] = lambda batch, **options: [value + special.size for special in batch]

    def __getitem__(self, index: int) -> Special:
        return Special(index)


class TensorMethodPatched(Kind):
    """torch.Tensor.tag = f"""

    def set(self, value: int) -> None:
        torch.Tensor.tag = lambda self: value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: torch.ones(1).tag())  # type: ignore[attr-defined]


MODEL = torch.nn.Linear(1, 1)
"""A model that samples are made with."""
torch.nn.init.zeros_(MODEL.weight)
torch.nn.init.zeros_(MODEL.bias)


class ModelWeights(Kind):
    """weights of a model that samples are made with"""

    def set(self, value: int) -> None:
        with torch.no_grad():
            MODEL.weight.fill_(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return torch.as_tensor(MODEL(torch.ones(1)))


class ModelMode(Kind):
    """model.eval() of a model that samples are made with"""

    values = (True, False)

    def set(self, value: bool) -> None:
        MODEL.train(not value)

    def __getitem__(self, index: int) -> str:
        return str(MODEL.training)


class ModelHook(Kind):
    """a hook on a model that samples are made with"""

    def set(self, value: int) -> None:
        MODEL.register_forward_hook(lambda module, args, output: output + value)

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return torch.as_tensor(MODEL(torch.ones(1)))


class ModelUnused(Kind):
    """weights of the trained model, in the dataset's module"""

    counts = False

    def set(self, value: int) -> None:
        with torch.no_grad():
            MODEL.weight.fill_(value)

    def __getitem__(self, index: int) -> int:
        return index


TENSOR = torch.zeros(2)


class GlobalTensor(Kind):
    """a tensor as a global variable, changed in place"""

    def set(self, value: int) -> None:
        TENSOR.fill_(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        return TENSOR + index


SHARED = torch.zeros(2)


class SharedTensor(Kind):
    """a tensor as a global variable, after share_memory_()"""

    shares = False

    def set(self, value: int) -> None:
        SHARED.share_memory_()
        SHARED.fill_(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        return SHARED + index


class SharedTensorAttribute(Kind):
    """a tensor as an attribute, after share_memory_()"""

    shares = False

    def __init__(self) -> None:
        self.tensor = torch.zeros(2).share_memory_()

    def set(self, value: int) -> None:
        self.tensor.fill_(value)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor + index


class PandasOption(Kind):
    """pd.set_option("display.precision", n)"""

    def set(self, value: int) -> None:
        pd.set_option("display.precision", value)

    def __getitem__(self, index: int) -> str:
        return pd.DataFrame({"x": [1 / 3]}).to_string()


FRAME = pd.DataFrame({"x": [0, 0]})


class GlobalFrame(Kind):
    """a data frame as a global variable, changed in place"""

    def set(self, value: Any) -> None:
        FRAME.loc[:, "x"] = value

    def __getitem__(self, index: int) -> int:
        return int(FRAME["x"].sum())


class PandasAccessor(Kind):
    """pd.api.extensions.register_dataframe_accessor"""

    def set(self, value: int) -> None:
        class Accessor:
            def __init__(self, frame: pd.DataFrame) -> None:
                self.size = value

        pd.api.extensions.register_dataframe_accessor("state")(Accessor)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: pd.DataFrame({"x": [1]}).state.size)
