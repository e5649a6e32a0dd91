"""Fills the caches of a training script's loaders before the jobs come: the Python side of ``coprep warm --from``.

The script runs as it would by itself, until it begins to iterate over a ``coprep.DataLoader``. The caches of all
loaders made until then are filled, and the process ends there: no further line of the script runs. Events are reported
on the standard output, one JSON object per line. Output of the script goes to the standard error.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import operator
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from coprep import _coprep
from coprep._arguments import is_iterable_dataset
from coprep._loader import DataLoader
from coprep._ranks import GivenRank
from coprep._run import run_script

Report = Callable[..., None]

_BETWEEN_REPORTS = 0.2
"""Seconds between two progress reports, at least."""


def main() -> None:
    """Warms the caches for the target in ``sys.argv``, a script or an import string."""
    report = _events()
    _, target, *arguments = sys.argv
    if os.path.isfile(target):
        loaders: list[DataLoader] = []
        _stop_at_first_iteration(loaders, lambda: _finish(loaders, report))
        _run(target, arguments)
        _finish(loaders, report)
    elif ":" in target:
        sys.path[0] = os.getcwd()
        _finish([_loader_of(target)], report)
    else:
        raise SystemExit(f"{target}: there is no such script, and it is no import string such as 'module:attribute'")


def _events() -> Report:
    """Reserves the standard output for events, and returns the function that reports one."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(**event: Any) -> None:
        print(json.dumps(event), file=events, flush=True)

    return report


def _stop_at_first_iteration(loaders: list[DataLoader], stop: Callable[[], None]) -> None:
    """Collects the loaders that are made from now on, and calls ``stop`` when one of them is iterated over."""
    init = DataLoader.__init__

    @functools.wraps(init)
    def noted(self: DataLoader, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        loaders.append(self)

    DataLoader.__init__ = noted  # type: ignore[method-assign]
    DataLoader.__iter__ = lambda self: stop()  # type: ignore[method-assign, assignment, return-value]


def _run(script: str, arguments: list[str]) -> None:
    """Runs a script as ``python script arguments`` does. It stays the main module, so that its classes are found."""
    try:
        run_script(script, arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _loader_of(name: str) -> DataLoader:
    """Returns the loader that a job with this attribute would make."""
    module, _, attribute = name.partition(":")
    value = operator.attrgetter(attribute)(importlib.import_module(module))
    if not isinstance(value, (DataLoader, _coprep.Pipeline)) and not hasattr(value, "__getitem__") and callable(value):
        value = value()
        if not isinstance(value, (DataLoader, _coprep.Pipeline)):
            # This is a factory of a dataset. Jobs pass its name and do not call it themselves.
            value = name
    return value if isinstance(value, DataLoader) else DataLoader(value)


def _finish(loaders: list[DataLoader], report: Report) -> None:
    """Warms all loaders and ends the process, whatever handlers the script has installed for its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for loader in loaders:
        _warm(loader, functools.partial(report, dataset=_label(loader)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _label(loader: DataLoader) -> str:
    dataset = loader.dataset
    if isinstance(dataset, (str, _coprep.Pipeline)):
        return str(dataset)
    return f"{type(dataset).__qualname__} ({type(dataset).__module__})"


def _warm(loader: DataLoader, report: Report) -> None:
    why = _why_not(loader)
    if why is not None:
        report(skipped=why)
        return
    fill = _fill_native if loader._is_native else _fill_by_an_epoch
    try:
        report(done=fill(loader, report))
    except Exception as error:
        report(failed=f"{type(error).__name__}: {error}")


def _why_not(loader: DataLoader) -> str | None:
    """Returns the reason why the loader's samples cannot be cached before the job comes, or ``None``."""
    options = loader._options
    if loader._private is not None:
        if is_iterable_dataset(loader.dataset):
            return "it shares nothing with other jobs, because its dataset is an IterableDataset"
        return "it shares nothing with other jobs, because of its sampler"
    if loader._iterated is not None:
        return "nothing of it is cached, because its dataset is an IterableDataset: jobs share the batches as they come"
    if options.cache == "off":
        return 'it has cache="off"'
    if options.lru:
        return 'cache_policy="lru" keeps what was used last'
    if loader._is_native:
        return None
    if loader.num_workers == 0:
        return "its samples are made in the job itself (num_workers=0)"
    if options.reuse:
        return "with reuse= samples are made anew as they are used"
    if options.cache == "prepared":
        return None if options.seed is not None else "prepared samples belong to a seed: give seed="
    if loader.transform is None:
        return (
            "nothing of it is cached, because dataset[i] may be random: give its random part as transform=, or "
            'cache="prepared" with seed= if nothing is random'
        )
    return None


def _fill_native(loader: DataLoader, report: Report) -> dict[str, Any]:
    options = loader._options
    done: dict[str, Any] = json.loads(
        _coprep.warm(
            loader.dataset,
            lambda progress: report(progress=json.loads(progress)),
            socket=options.socket,
            cache=options.cache,
            cache_bytes=options.cache_bytes,
            keep=_is_to_keep(),
        )
    )
    return done


def _fill_by_an_epoch(loader: DataLoader, report: Report) -> dict[str, Any]:
    """Fills the cache as a job for one epoch, because only jobs can have samples of Python code made.

    The batches are not looked at.
    """
    twin = copy.copy(loader)
    # The script may have asked the loader for its seed or its counts. Then it has a connection, with its own options.
    twin._loader = None
    # The samples are the same, and their order does not matter.
    twin._options = loader._options._replace(
        name="coprep warm", skip_errors=True, drop_last=False, cohort=None, proposes_order=False
    )
    # This process takes all samples, whichever rank a launcher's environment names.
    twin._given_rank = GivenRank(0, 1, None)
    native = twin._native
    native.start_epoch()
    attached = native.attached()
    done, total, last_report = 0, attached["samples"], time.monotonic()
    while (arrays := native.next()) is not None:
        done += arrays[-1].__array_interface__["shape"][0]
        if time.monotonic() > last_report + _BETWEEN_REPORTS:
            last_report = time.monotonic()
            report(progress={"done": done, "total": total})
    kept: dict[str, Any] = json.loads(_coprep.keep_warm(attached["stream"], loader._options.socket, _is_to_keep()))
    native.close()
    return {**kept, "done": done, "total": total, "failed": total - done}


def _is_to_keep() -> bool:
    """Returns whether ``coprep warm --keep`` runs this script."""
    return bool(os.environ.get("COPREP_WARM_KEEP"))


if __name__ == "__main__":
    main()
