"""Records the batches of a program's loaders, PyTorch's and coprep's alike, without a change of the program.

Python imports this module when it starts, if its folder is on PYTHONPATH. Each rank appends to a file in the folder
`PROGRAMS_RECORD`: one line of JSON for each pass over a loader.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
from pathlib import Path
from typing import Any


class State:
    """The recording of this process."""

    def __init__(self) -> None:
        self.folder = os.environ.get("PROGRAMS_RECORD")
        self.depth = 0
        """Number of nested calls of `__iter__`: coprep's may call PyTorch's. Only the outer one is recorded."""
        self.begun = 0
        """Number of passes that this process has begun."""
        self.open: dict[int, dict[str, Any]] = {}
        """Passes that are begun and not written, by number. Some programs leave a pass after its last batch, before its
        end.
        """
        self.pid = os.getpid()

    def __coprep_identity__(self) -> None:
        """Lets programs share: samples do not depend on the recording, which replaces a method of PyTorch's loader."""


state = State()


class Recorded:
    """An iterator over batches that records each of them."""

    def __init__(self, loader: Any, iterator: Any, order: str) -> None:
        self._iterator = iterator
        self._number = state.begun
        state.begun += 1
        self._pass = state.open[self._number] = {
            "rank": rank(),
            "number": self._number,
            # A loader that cannot share delegates to PyTorch's loader, which it keeps in `_private`.
            "shared": type(loader).__module__.startswith("coprep") and loader._private is None,
            "order": order,
            "samples": len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
            "sizes": [],
            "digests": [],
            "ids": [],
        }

    def __iter__(self) -> Recorded:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            write(self._number)
            raise
        ids = ids_of(batch)
        self._pass["sizes"].append(len(ids))
        self._pass["ids"] += ids
        digest = hashlib.sha256()
        add(batch, digest)
        self._pass["digests"].append(digest.hexdigest()[:16])
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __del__(self) -> None:
        write(self._number)


def write(number: int) -> None:
    """Writes down a pass, unless that was done."""
    one = state.open.pop(number, None)
    # PyTorch's workers are forks with copies of these variables, and must not write the passes again. Lightning calls
    # `iter` of a loader of a class that it does not know only to see whether it can, and takes no batch.
    if one is not None and one["sizes"] and os.getpid() == state.pid:
        with open(Path(state.folder or ".") / f"rank-{one['rank']}.jsonl", "a") as file:
            file.write(json.dumps(one) + "\n")


@atexit.register
def write_all() -> None:
    """Writes down the passes that did not end."""
    for number in list(state.open):
        write(number)


def rank() -> int:
    """Returns the rank of this process in its job."""
    import torch.distributed

    here = torch.distributed
    return here.get_rank() if here.is_available() and here.is_initialized() else 0


def order_of(loader: Any) -> str:
    """Returns "fixed" if each pass of a loader has the order of the dataset, else "random"."""
    from torch.utils import data

    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", sampler)
    if isinstance(sampler, data.SequentialSampler):
        return "fixed"
    return "fixed" if isinstance(sampler, data.DistributedSampler) and not sampler.shuffle else "random"


def ids_of(batch: Any) -> list[Any]:
    """Returns the labels of a batch, which identify the programs' samples."""
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return list(batch["labels"].tolist())
    labels = batch[1]
    if hasattr(labels, "tolist"):
        return list(labels.tolist())
    return [
        target["image_id"] if isinstance(target["image_id"], int) else target["image_id"].item() for target in labels
    ]


def add(value: Any, digest: Any) -> None:
    """Adds the content of a batch to a digest, with types and shapes."""
    if hasattr(value, "keys"):
        for key in sorted(value.keys()):
            digest.update(repr(key).encode())
            add(value[key], digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} of".encode())
        for part in value:
            add(part, digest)
    elif hasattr(value, "numpy"):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    else:
        digest.update(repr(value).encode())


def recording(cls: Any) -> None:
    """Makes each pass over a loader of this class be recorded."""
    given = cls.__iter__

    def __iter__(self: Any) -> Any:
        state.depth += 1
        try:
            iterator = given(self)
        finally:
            state.depth -= 1
        return iterator if state.depth else Recorded(self, iterator, order_of(self))

    cls.__iter__ = __iter__


def main() -> None:
    # Only processes of the program have loaders to record. Processes that prepare its samples have none.
    import torch.utils.data as data

    recording(data.DataLoader)
    if os.environ.get("PROGRAMS_LOADER") != "coprep":
        if "PROGRAMS_IMPORT_COPREP" in os.environ:
            import coprep
            import torch_stand_in

            coprep.DataLoader = torch_stand_in.DataLoader  # type: ignore[misc, assignment]
    else:
        import coprep._loader

        recording(coprep._loader.DataLoader)


if state.folder:
    main()
