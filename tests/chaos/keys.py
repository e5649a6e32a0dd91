"""Keys of the object store that jobs give by themselves, each job its own, and that the runner replaces by new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any


def _of_job(job: int, generation: int) -> dict[str, str]:
    return {name: f"{name}-{job}-{generation}" for name in ("key", "secret", "token")}


class Keys:
    """The keys of all jobs, as the runner knows them. Jobs read their generation from a file."""

    def __init__(self, file: Path, jobs: int) -> None:
        self._file = file
        self._jobs = jobs
        self._generations: list[int] = [0]
        self.publish()

    def begin_next(self) -> None:
        self._generations.append(self._generations[-1] + 1)

    def publish(self) -> None:
        """Lets the jobs give keys of the newest generation."""
        new = self._file.with_suffix(".new")
        new.write_text(str(self._generations[-1]))
        new.rename(self._file)

    def forget_old(self) -> None:
        del self._generations[:-1]

    def accepted(self) -> Sequence[dict[str, str]]:
        """Returns the keys that the store has to take."""
        return [_of_job(job, generation) for generation in self._generations for job in range(self._jobs)]


def provider(file: Path, job: int, valid_s: float) -> Callable[[], dict[str, Any]]:
    """Returns the function by which a job gives its keys."""

    def give() -> dict[str, Any]:
        keys = _of_job(job, int(file.read_text()))
        return {
            "access_key_id": keys["key"],
            "secret_access_key": keys["secret"],
            "token": keys["token"],
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=valid_s),
        }

    return give
