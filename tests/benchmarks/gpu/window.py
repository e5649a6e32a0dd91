"""Records of a job in a window of time. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Recorder:
    """Steps from `begin` to `end`, in seconds of the machine's monotonic clock."""

    begin: float
    end: float
    next_s: list[float] = field(default_factory=list)
    """Time in `next()` of the loader, for each batch that was asked for in the window."""
    finish_s: list[float] = field(default_factory=list)
    """Time from then on until the batch was ready for the model, by the training thread's view."""
    done: list[float] = field(default_factory=list)
    """The moments in the window at which the device was seen to have done a step."""

    def note(self, begin: float, taken: float, finished: float, done: float | None) -> None:
        """Notes a step: when its batch was asked for, taken and finished, and when an earlier step was done."""
        if self.begin <= begin < self.end:
            self.next_s.append(taken - begin)
            self.finish_s.append(finished - taken)
        if done is not None and self.begin <= done < self.end:
            self.done.append(done)

    def is_over(self, now: float) -> bool:
        return now >= self.end

    @property
    def steps_per_s(self) -> float | None:
        """Returns the rate between the first and the last step that was done, or `None` if there are not two.

        Steps over the length of the window would be wrong by up to one step, which is much where many jobs share a GPU.
        """
        if len(self.done) < 2:
            return None
        return (len(self.done) - 1) / (self.done[-1] - self.done[0])

    @property
    def wait_share(self) -> float:
        """Returns the share of the window that the training thread spent in `next()`."""
        return sum(self.next_s) / (self.end - self.begin)

    def as_json(self) -> dict[str, Any]:
        return {
            "steps_per_s": self.steps_per_s,
            "steps": len(self.done),
            "wait_share": self.wait_share,
            "next_us": [round(1e6 * seconds, 1) for seconds in self.next_s],
            "finish_us": [round(1e6 * seconds, 1) for seconds in self.finish_s],
        }
