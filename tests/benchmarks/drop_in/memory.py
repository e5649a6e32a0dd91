"""Measures the memory of many jobs without a cache, against PyTorch's jobs and processes that only import NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tests.benchmarks.drop_in.case import Case, Once, Setting, column, known
from tests.benchmarks.drop_in.figures import Figure, ratios
from tests.benchmarks.drop_in.photographs import write_image_folder
from tests.benchmarks.drop_in.running import job_that_says
from tests.benchmarks.loaders.machine import pss_bytes
from tests.benchmarks.loaders.measure import MIB, Dataset, Run, Setup, measure
from tests.benchmarks.loaders.records import COPREP_PYTHON, TORCH_PYTHON

NAME = "memory"
JOBS, IMAGES, SECONDS = 8, 512, 4
QUICK_JOBS, QUICK_IMAGES, QUICK_SECONDS = 2, 256, 2
NATIVE = Setup("coprep", "off")
ADDED, TOTAL = 0.36, 1 / 3


def prepare(setting: Setting) -> None:
    write_image_folder(setting.folder / NAME, QUICK_IMAGES if setting.quick else IMAGES)


def numpy_mib(setting: Setting, jobs: int) -> float | None:
    """Returns the memory of this many processes that only import NumPy, running at the same time."""
    with ExitStack() as stack:
        pids = [
            stack.enter_context(job_that_says("tests.benchmarks.drop_in.job_numpy", [], setting.folder))[0].pid
            for _ in range(jobs)
        ]
        sizes = [pss_bytes(pid) for pid in pids]
    return None if None in sizes else sum(size or 0 for size in sizes) / MIB


def loading_mib(run: Run) -> float | None:
    """Returns the memory that loading adds to jobs that have finished their imports."""
    return None if run.pss_mib is None or run.pss_ready_mib is None else run.pss_mib - run.pss_ready_mib


def once(setting: Setting) -> Once:
    jobs, seconds = (QUICK_JOBS, QUICK_SECONDS) if setting.quick else (JOBS, SECONDS)
    data = Dataset.find(setting.folder / NAME)
    setups = [COPREP_PYTHON, NATIVE, TORCH_PYTHON]
    order = setups if setting.coprep_first else setups[::-1]
    runs = {setup: measure(setup, jobs, data, seconds, None) for setup in order}
    bare = numpy_mib(setting, jobs)
    native = runs[NATIVE].pss_mib
    return Once(
        known(
            python_added=loading_mib(runs[COPREP_PYTHON]),
            python_staging=runs[COPREP_PYTHON].staging_mib,
            python_total=runs[COPREP_PYTHON].pss_mib,
            torch_added=loading_mib(runs[TORCH_PYTHON]),
            torch_total=runs[TORCH_PYTHON].pss_mib,
            # Native jobs import at least NumPy, so this is their memory beyond it.
            native_added=None if native is None or bare is None else native - bare,
            native_total=native,
            numpy_total=bare,
        ),
        [run.others_cores for run in runs.values()],
    )


def figures(runs: Sequence[Once]) -> list[Figure]:
    added, total = column(runs, "torch_added"), column(runs, "torch_total")
    python, native = column(runs, "python_added"), column(runs, "native_added")
    light, staging = column(runs, "native_total"), column(runs, "python_staging")
    beyond = [mine - area for mine, area in zip(python, staging, strict=True)] if python and staging else []
    return [
        Figure(
            NAME,
            "what loading adds to jobs that import torch, beyond staging, over PyTorch's",
            "x",
            ratios(beyond, added),
            ADDED,
        ),
        Figure(NAME, "what loading adds to jobs that import torch, over PyTorch's", "x", ratios(python, added)),
        Figure(
            NAME, "what loading adds to native jobs beyond NumPy, over PyTorch's", "x", ratios(native, added), ADDED
        ),
        Figure(NAME, "all of native jobs, without torch, over all of PyTorch's", "x", ratios(light, total), TOTAL),
        Figure(NAME, "what loading adds to jobs that import torch", "MiB", python),
        Figure(NAME, "staging of jobs that import torch", "MiB", staging),
        Figure(NAME, "what loading adds to native jobs beyond NumPy", "MiB", native),
        Figure(NAME, "what loading adds, PyTorch", "MiB", added),
        Figure(NAME, "all of jobs that import torch", "MiB", column(runs, "python_total")),
        Figure(NAME, "all of native jobs", "MiB", light),
        Figure(NAME, "all, PyTorch", "MiB", total),
        Figure(NAME, "as many processes that import NumPy alone", "MiB", column(runs, "numpy_total")),
    ]


CASE = Case(NAME, "8 jobs at a time over an image folder, without a cache, batches of 64: PSS", prepare, once, figures)
