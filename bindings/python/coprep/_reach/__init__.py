"""The members of a job's memory that reached code reads, and from which samples are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coprep._reach import memory
from coprep._reach.evaluation import Evaluation
from coprep._reach.memory import Read
from coprep._reach.values import UNKNOWN, Bounds, Live

__all__ = ["Bounds", "Evaluation", "Live", "Read", "reach"]

_OF_DATASETS = ("__getitem__", "__getitems__", "__len__", "__iter__", "__next__")
"""Methods of a dataset that workers call."""


def reach(
    named: Mapping[str, Any], whole: Mapping[str, Any], dataset: Any = None, so_far: Evaluation | None = None
) -> Evaluation:
    """Evaluates what workers do with objects: they call functions, and the methods that give the samples of datasets.

    Args:
        named: these objects. Those that are neither count whole.
        whole: objects that count whole, since code that is not followed may use them.
        dataset: the dataset that ``torch.utils.data.get_worker_info()`` gives.
        so_far: an evaluation of the same objects with fewer that count whole, which goes on.

    Raises:
        Bounds: that is too much to look at.
    """
    run = Evaluation(dataset) if so_far is None else so_far

    def start() -> None:
        for name, obj in named.items():
            methods = [method for method in _OF_DATASETS if memory.in_class(type(obj), method) is not None]
            # Workers ask an instance for this one, which may be another object's.
            of_instance = "__getitems__" not in methods and getattr(obj, "__getitems__", None) is not None
            followed = [method for method in methods if run.objects.is_followed(type(obj), method)]
            is_function = callable(obj) and not methods
            if not followed and not is_function and not memory.is_plain(obj):
                run.whole.escape(run.live(obj, name), "its methods are no Python code of yours")
                continue
            values = run.read(obj, name, (memory.same, obj))
            if len(followed) < len(methods):
                run.whole.escape(values, "some of its methods are a library's")
            functions = [values] if is_function else [run.objects.attribute(values, method) for method in followed]
            if of_instance:
                functions.append(run.objects.attribute(values, "__getitems__"))
            for function in functions:
                run.whole.escape(run.calls.call(function, [UNKNOWN], {}), "it is a sample, or a part of one")
        for name, obj in whole.items():
            run.whole.escape(run.live(obj, name), "code that is not followed may use it")

    run.run(start)
    return run
