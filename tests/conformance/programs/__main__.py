"""Runs another project's program with PyTorch's loader and with coprep's, and compares the batches of both.

usage: python -m tests.conformance.programs --out FOLDER -- python train.py --epochs 2 --output-dir {out}

The program runs with PyTorch, with coprep alone, and with coprep twice at once. `python` in its command means the
interpreter of this command; with coprep it is followed by `-m coprep run`. `{out}` is a separate folder for each run,
and its working directory. Batches are recorded and compared. With `--times` they are not, to time the programs alone.

Passes in the order of the dataset must be equal bit for bit. Passes in random order must have the same number of
batches, of the same sizes, and the same labels; the programs' data has a different label for each sample. Where mixup
blends the labels, their shares must add up to the same. Where `drop_last` leaves some out at random, no label may come
twice. Files are compared too if `--equal NAME` names them.

With `--import-coprep` the program imports coprep itself, as the scripts in docs/examples do. It then runs as it is, and
in its run with PyTorch `coprep.DataLoader` is PyTorch's loader.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coprep

from tests.benchmarks.loaders.machine import cpu_seconds, trees

HERE = Path(__file__).parent
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Program:
    """A program, and the treatment of its runs."""

    words: Sequence[str]
    """The words of its command."""
    imports_coprep: bool
    """``True`` if it imports coprep's loader itself."""
    record: bool
    """``True`` if its batches are recorded."""
    files: Sequence[str]
    """Files that it writes, which must be the same in all runs."""

    def command(self, loader: str, out: Path) -> list[str]:
        """Returns the words of the command for one of the program's runs."""
        runner = ["-m", "coprep", "run"] if loader == "coprep" and not self.imports_coprep else []
        given = (word.replace("{out}", str(out)) for word in self.words)
        return [part for word in given for part in ([sys.executable, *runner] if word == "python" else [word])]


@dataclass(frozen=True)
class Run:
    """One or more copies of a program that ran at the same time."""

    folders: Sequence[Path]
    """The folder of each copy: its output, with its recorded passes."""
    seconds: float
    """Seconds from the start of the first process to the end of the last."""
    cpu_seconds: float
    """CPU seconds of the programs, with the children that they waited for, and of the coordinator with its workers."""
    exit_codes: Sequence[int]
    totals: Mapping[int, Mapping[str, int]]
    """Totals by stream, as the coordinator last reported them."""

    def total(self, what: str) -> int:
        return sum(stream[what] for stream in self.totals.values())


class Watch(threading.Thread):
    """A thread that polls the totals of a coordinator's streams, and the CPU time of its processes."""

    def __init__(self, socket: Path) -> None:
        super().__init__(daemon=True)
        self.totals: dict[int, dict[str, int]] = {}
        self.cpu: dict[int, float] = {}
        """CPU seconds of each process, as last read. The last moments of a process that has ended are missed."""
        self._socket = socket
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._look()

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._look()

    def _look(self) -> None:
        # No coordinator runs before the first job has started one.
        with contextlib.suppress(coprep.CoprepError):
            status = coprep.status(self._socket)
            for stream in status["streams"]:
                self.totals[stream["id"]] = stream["totals"]
            for pid in trees([status["pid"]]):
                self.cpu[pid] = max(cpu_seconds(pid), self.cpu.get(pid, 0.0))


@contextlib.contextmanager
def coordinator(folder: Path) -> Iterator[tuple[dict[str, str], Watch]]:
    """Yields the environment of a coordinator that the first job starts, and ends that coordinator."""
    socket = folder / "coprep.sock"
    watch = Watch(socket)
    watch.start()
    try:
        yield {"COPREP_SOCKET": str(socket)}, watch
    finally:
        # The last look has to come first, since the totals end with the coordinator.
        watch.end()
        with contextlib.suppress(coprep.CoprepError):
            coprep.stop(socket)


def run(program: Program, loader: str, copies: int, folder: Path) -> Run:
    """Runs copies of a program at once, to their ends."""
    outs = [folder / f"copy-{number}" for number in range(copies)]
    for out in outs:
        out.mkdir(parents=True)
    with coordinator(folder) as (variables, watch):
        env = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "PROGRAMS_LOADER": loader}
        if program.imports_coprep:
            env["PROGRAMS_IMPORT_COPREP"] = "1"
        began = time.monotonic()
        processes = [start(program.command(loader, out), out, env, program.record) for out in outs]
        ends = [os.wait4(process.pid, 0) for process in processes]
        seconds = time.monotonic() - began
    used = sum(usage.ru_utime + usage.ru_stime for _, _, usage in ends) + sum(watch.cpu.values())
    return Run(outs, seconds, used, [os.waitstatus_to_exitcode(status) for _, status, _ in ends], watch.totals)


def start(words: Sequence[str], out: Path, env: dict[str, str], record: bool) -> subprocess.Popen[bytes]:
    """Starts a program with its output in files, recorded or not."""
    if record:
        path = [str(HERE / "recorder"), env.get("PYTHONPATH", "")]
        env = {**env, "PROGRAMS_RECORD": str(out), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    with open(out / "stdout", "wb") as stdout, open(out / "stderr", "wb") as stderr:
        return subprocess.Popen(words, stdout=stdout, stderr=stderr, env=env, cwd=out)


def passes(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the passes of a program's loaders, by the file of each rank."""
    found = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        read = map(json.loads, file.read_text().splitlines())
        found[file.name] = sorted(read, key=lambda one: int(one["number"]))
    return found


def differences(expected: Path, given: Path, files: Sequence[str]) -> list[str]:
    """Returns the differences between a run and PyTorch's that are not allowed."""
    theirs, ours = passes(expected), passes(given)
    if {rank: len(some) for rank, some in theirs.items()} != {rank: len(some) for rank, some in ours.items()}:
        return [f"passes: {describe(theirs)} with PyTorch, {describe(ours)} here"]
    found = []
    by_number = (zip(*some.values(), strict=True) for some in (theirs, ours))
    for number, (their, our) in enumerate(zip(*by_number, strict=True)):
        found += [f"pass {number}: {what}" for what in pass_differences(their, our)]
    for name in files:
        if (expected / name).read_bytes() != (given / name).read_bytes():
            found.append(f"file {name}")
    return found


def pass_differences(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the differences between two passes, each given by rank, that are not allowed."""
    found = []
    for their, our in zip(theirs, ours, strict=True):
        if their["sizes"] != our["sizes"]:
            found.append(f"batches: {Counter(their['sizes'])} with PyTorch, {Counter(our['sizes'])} here")
        if their["order"] == "fixed" and their["digests"] != our["digests"]:
            found.append("contents or order of a pass in fixed order")
    # If the pass is not shared, PyTorch's own loader gave it in random order, and coprep had no part in it.
    if all(our["shared"] for our in ours) and labels(theirs) != labels(ours):
        found.append("labels")
    return found


def labels(ranks: Sequence[Mapping[str, Any]]) -> Sequence[float] | Mapping[str, float]:
    """Returns the value that two random passes share: the count of each label over all ranks, or only the counts if
    some are left out.
    """
    ids = [label for one in ranks for label in one["ids"]]
    are_mixed = bool(ids) and isinstance(ids[0], list)
    counts: Mapping[str, float] = mixed_counts(ids) if are_mixed else Counter(map(str, ids))
    # The choice of samples that `drop_last` leaves out is random too.
    return counts if len(ids) == ranks[0]["samples"] else sorted(counts.values())


def mixed_counts(shares: Sequence[Sequence[float]]) -> dict[str, float]:
    """Returns the count of each label in a pass whose samples are mixed, each with its share of every label.

    Mixup and cutmix blend each sample of a batch with another one of it, with the same weight for all. So the shares of
    a label still add up to the number of its samples, apart from rounding.
    """
    totals = (round(sum(column), 3) for column in zip(*shares, strict=True))
    return {str(label): total for label, total in enumerate(totals) if total}


def describe(ranks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Describes the passes of a run in words."""
    kinds = Counter(kind(one) for some in ranks.values() for one in some)
    return "; ".join(f"{count} x {name}" for name, count in kinds.items())


def kind(one: Mapping[str, Any]) -> str:
    """Returns a description of a pass: the loader that made it, its order, and its length."""
    loader = "shared" if one["shared"] else "own"
    return f"{loader} {one['order']} of {len(one['sizes'])} batches, {len(one['ids'])} samples"


def shared_samples(folder: Path) -> int:
    """Returns the number of samples that shared loaders gave to a program."""
    return sum(len(one["ids"]) for some in passes(folder).values() for one in some if one["shared"])


def report(program: Program, folder: Path) -> bool:
    """Runs a program in all ways and prints the results.

    Returns:
        Whether every run ended well, with results equal to PyTorch's.
    """
    ways = (("torch", 1), ("coprep", 1), ("coprep", 2))
    runs = [run(program, loader, copies, folder / f"{loader}-{copies}") for loader, copies in ways]
    equal = True
    for (loader, copies), one in zip(ways, runs, strict=True):
        # The coordinator also counts samples as delivered while they wait in a loader's queue. So the samples that
        # programs received are counted apart.
        taken = sum(shared_samples(out) for out in one.folders)
        prepared = f", prepared {one.total('prepared')}" + f", taken {taken}" * program.record if one.totals else ""
        times = f"{one.seconds:.1f} s, {one.cpu_seconds:.1f} s of CPU"
        print(f"{loader} x{copies}: {times}, exit {list(one.exit_codes)}{prepared}", flush=True)
        for out in one.folders if program.record else ():
            print(f"  {describe(passes(out))}")
            for difference in differences(runs[0].folders[0], out, program.files):
                print(f"  differs: {difference}")
                equal = False
    return equal and not any(any(one.exit_codes) for one in runs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.programs", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what the runs write, made anew")
    parser.add_argument("--times", action="store_true", help="run without recording, for times")
    parser.add_argument("--equal", action="append", default=[], help="a file of {out} that must be PyTorch's")
    parser.add_argument("--import-coprep", action="store_true", help="the program imports coprep's loader itself")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    args = parser.parse_args()
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    program = Program(words, args.import_coprep, not args.times, args.equal)
    return 0 if report(program, args.out.resolve()) else 1


if __name__ == "__main__":
    sys.exit(main())
