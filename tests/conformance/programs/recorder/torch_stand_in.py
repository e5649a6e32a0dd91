"""PyTorch's loader in the place of coprep's, for programs that import coprep themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed
from torch.utils import data


class Transformed(data.Dataset[Any]):
    """A dataset whose samples are transformed, as coprep's argument ``transform`` does."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.dataset[i])


class DataLoader(data.DataLoader[Any]):
    """PyTorch's loader, with those of coprep's arguments that the examples use.

    As coprep does, it divides the samples among the ranks of ``torch.distributed``.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        transform: Callable[[Any], Any] | None = None,
        cache: str | None = None,
        **options: Any,
    ) -> None:
        whole = dataset if transform is None else Transformed(dataset, transform)
        if torch.distributed.is_initialized():
            options["sampler"] = data.DistributedSampler(whole, shuffle=shuffle)
            shuffle = False
        super().__init__(whole, batch_size, shuffle, **options)
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if isinstance(self.sampler, data.DistributedSampler):
            self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return super().__iter__()
