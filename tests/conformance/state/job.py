"""The script of a job: sets the state of kinds, and reports the samples that a loader gives then.

Args:
    loader: ``torch`` or ``coprep``.
    method: how workers are started.
    when: ``before`` or ``after`` the loader is made.
    which: number of the value that is set.
    kinds: names of the kinds. Several are shown by one dataset, each by one sample.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing.util
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from state.kind import Kind, attempt

LIMITS = {
    ("torch", "fork"): 20,
    ("torch", "spawn"): 0,
    ("torch", "forkserver"): 0,
    ("coprep", "fork"): 20,
    ("coprep", "spawn"): 30,
    ("coprep", "forkserver"): 30,
}
"""Seconds to wait for a batch by loader and start method. By forkserver, PyTorch's loader notices the end of a worker
that cannot load the dataset only at the limit, and within seconds if the limit is 0, which means that there is none."""

# Kinds of which the state lies in the script itself.

SIZE = 0
TABLE = {"size": 0, "run": 0}


class ScriptVariable(Kind):
    """SIZE = n in the script"""

    def set(self, value: int) -> None:
        global SIZE
        SIZE = value

    def __getitem__(self, index: int) -> int:
        return SIZE


class ScriptVariableUnused(Kind):
    """TABLE["run"] = n in the script, which samples do not read"""

    counts = False

    def set(self, value: int) -> None:
        TABLE["run"] = value

    def __getitem__(self, index: int) -> int:
        return TABLE["size"]


class ScriptClassAttribute(Kind):
    """Dataset.SIZE = n of a class in the script"""

    SIZE = 0

    def set(self, value: int) -> None:
        ScriptClassAttribute.SIZE = value

    def __getitem__(self, index: int) -> int:
        return self.SIZE


def load(index: int) -> int:
    return 0


class ScriptFunction(Kind):
    """a function of the script replaced"""

    def set(self, value: int) -> None:
        global load
        load = functools.partial(pow, value)

    def __getitem__(self, index: int) -> int:
        return load(index)


class ScriptVariableOfMain(Kind):
    """sys.modules["__main__"].SIZE = n"""

    def set(self, value: int) -> None:
        sys.modules["__main__"].MORE = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        return getattr(sys.modules["__main__"], "MORE", 0)


# The job.


def described(value: Any) -> str:
    """Returns a batch or a sample as text, with the types of its tensors."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(described, value))}]"
    if type(value).__module__.partition(".")[0] == "torch":
        content = "" if value.device.type == "meta" else value.tolist()
        return f"{type(value).__name__}({value.dtype}, {value.device}, {tuple(value.shape)}, {content})"
    if hasattr(value, "dtype"):
        return f"{type(value).__name__}({value.dtype}, {value.tolist()})"
    return f"{type(value).__name__}({value})"


class Several:
    """A dataset each of whose samples shows the state of one kind, as text."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __len__(self) -> int:
        return len(self.datasets)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: described(self.datasets[index][0]))


def found(name: str) -> Kind:
    """Returns a kind by its name, such as `modules.Initialised`."""
    module, _, kind = name.partition(".")
    # This script's own kinds are in the main module, as in a program.
    source = sys.modules["__main__"] if module == "job" else importlib.import_module(f"state.{module}")
    made: Kind = getattr(source, kind)()
    return made


def setters_of(kinds: list[Kind]) -> list[Callable[[Any], None]]:
    """Takes the methods that set the state away from the datasets: a program sets it by other code than theirs."""
    setters = [types.MethodType(type(kind).set, kind) for kind in kinds]
    for kind in kinds:
        for cls in type(kind).__mro__:
            if cls is not Kind and "set" in vars(cls):
                del cls.set  # type: ignore[attr-defined]
    return setters


def loader_of(loader: str, dataset: Any, method: str, batch_size: int) -> Any:
    if loader == "torch":
        from torch.utils.data import DataLoader
    else:
        from coprep import DataLoader
    options = {"num_workers": 1, "multiprocessing_context": method, "timeout": LIMITS[loader, method]}
    return DataLoader(dataset, batch_size, **options)


def finish(kinds: list[Kind], loader: Any) -> list[str]:
    """Ends the use of the loader, and returns the kinds whose state was harmed."""
    if hasattr(loader, "close"):
        loader.close()
    # A worker that ends late could do harm late.
    time.sleep(0.5 if any(type(kind).check is not Kind.check for kind in kinds) else 0)
    return [type(kind).__name__ for kind in kinds if attempt(kind.check) != "None"]


def main(name: str, method: str, when: str, which: str, *names: str) -> None:
    # Locks and queues are made for one start method.
    multiprocessing.set_start_method(method, force=True)
    kinds = [found(name) for name in names]
    setters = setters_of(kinds)
    datasets = [kind.dataset() for kind in kinds]
    dataset = datasets[0] if len(kinds) == 1 else Several(datasets)
    out = sys.stdout

    def set_states() -> None:
        for kind, setter in zip(kinds, setters, strict=True):
            setter(kind.values[int(which)])

    def tell(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    if when == "before":
        set_states()
    loader = None
    try:
        loader = loader_of(name, dataset, method, batch_size=2 if len(kinds) == 1 else 1)
        if when == "after":
            set_states()
        # The samples of several kinds are text already, in lists of one.
        batches = [described(batch) if len(kinds) == 1 else batch[0] for batch in loader]
        tell(batches=batches, stream=loader._native.attached()["stream"] if name == "coprep" else 0)
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
    # Other jobs may still share with this one.
    sys.stdin.readline()
    tell(harm=finish(kinds, loader))


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Taking an interpreter apart that has imported PyTorch takes longer than all that a job does.
    multiprocessing.util._exit_function()
    os._exit(0)
