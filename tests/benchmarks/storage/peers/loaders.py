"""The loaders that are compared, and what each of them reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

JOBS = (1, 8)


@dataclass(frozen=True)
class Loader:
    """A loader of an object store."""

    label: str
    job: str
    """Name of the module that runs it."""
    form: str
    """Format of its data, which is also the prefix of its objects."""
    package: str
    """The package whose version is told."""
    is_warmed: bool = False
    """``True`` if `coprep warm` reads everything before the jobs."""
    has_one_folder: bool = False
    """``True`` if all jobs keep what they read in the same folder."""
    jobs: Sequence[int] = JOBS
    """Numbers of jobs at a time."""

    @property
    def is_coprep(self) -> bool:
        return self.package == "coprep"


LOADERS = (
    Loader("coprep.ImageFolder", "job_coprep", "files", "coprep"),
    Loader("coprep.WebDataset", "job_coprep", "tar", "coprep"),
    Loader("coprep.WebDataset, warmed", "job_coprep", "tar", "coprep", is_warmed=True),
    Loader("webdataset", "job_webdataset", "tar", "webdataset"),
    Loader("MosaicML streaming", "job_streaming", "mds", "mosaicml-streaming"),
    Loader("litdata", "job_litdata", "litdata", "litdata"),
    Loader("litdata, one folder", "job_litdata", "litdata", "litdata", has_one_folder=True, jobs=JOBS[1:]),
)
FORMATS = tuple(dict.fromkeys(loader.form for loader in LOADERS))


def workers_of(jobs: int, cores: int) -> int:
    """Returns the workers of each job's DataLoader: all jobs together have one for each core, or one each."""
    return max(cores // jobs, 1)


def packages(loaders: Sequence[Loader] = LOADERS) -> list[str]:
    return list(dict.fromkeys(loader.package for loader in loaders))
