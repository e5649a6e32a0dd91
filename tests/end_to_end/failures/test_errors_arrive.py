"""Tests that every error of a sample arrives once and unchanged, whatever its length and however late it is read."""

from __future__ import annotations

import json
import signal
from typing import Any

import coprep
import pytest
from coordinators import stream
from jobs import Job, Start
from user_jobs import HERE
from waiting import stop, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 48

TRAIN = """
import json, sys, time, coprep
from user_datasets import *
options = dict(framework="numpy", with_index=True, num_workers=2, shuffle=False)
train = coprep.DataLoader(eval(sys.argv[1]), **{**options, **eval(sys.argv[2])})
train.seed  # attaches
pauses = eval(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
seen, errors, batches = [], [], iter(train)
while True:
    try:
        seen += next(batches)[-1].tolist()
    except StopIteration:
        break
    except Exception as error:
        errors.append([type(error).__name__, str(error)[:200], str(error)[-200:], len(str(error)), error.__cause__.id])
    if len(errors) in pauses:
        print("pauses", flush=True)
        time.sleep(pauses.pop(len(errors)))
print(json.dumps({"seen": seen, "errors": errors, "reconnects": train.stats()["reconnects"]}),
      flush=True)
"""
"""Code of a job. Its arguments are a dataset, options, and pauses: the seconds that it computes, by the number of
errors so far. It waits for a line before it reads."""


def job(start: Start, data: str, pauses: dict[int, float] | None = None, **options: Any) -> Job:
    options = {"batch_size": 8, **options}
    ready = start(TRAIN, data, repr(options), repr(pauses or {}), PYTHONPATH=HERE)
    assert ready.line() == "ready"
    return ready


def report(job: Job) -> dict[str, Any]:
    (line,) = [line for line in job.result().splitlines() if line.startswith("{")]
    said: dict[str, Any] = json.loads(line)
    return said


@pytest.mark.parametrize(
    ("kind", "length", "name", "text"),
    [
        ("bytes", 400_000, "UnicodeDecodeError", "can't decode byte 0xff in position 400000: invalid start byte"),
        ("json", 300_000, "JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        ("text", 800_000, "ValueError", "x to the end"),
        ("text", 5_000_000, "ValueError", "x to the end"),
        ("file", 0, "FileNotFoundError", "No such file or directory: '/nowhere/11\\udcff.jpg'"),
    ],
)
def test_an_exception_arrives_as_it_was_however_long_it_is(
    socket_path: object, start: Start, kind: str, length: int, name: str, text: str
) -> None:
    data = f"Raising({N}, {{11: {kind!r}}}, {length})"
    raises = job(start, data)
    skips = job(start, data, on_error="skip", shuffle=False)
    for each in (raises, skips):
        each.run_on()
    told, other = report(raises), report(skips)
    ((kind_told, _, end, characters, sample),) = told["errors"]
    assert (kind_told, sample) == (name, 11)
    assert end.encode("utf-8", "backslashreplace").decode().endswith(text)
    if length == 5_000_000:
        assert characters < length, "it is cut"
    elif kind == "text":
        assert characters > length
    assert sorted(told["seen"]) == [i for i in range(N) if i != 11]
    assert sorted(other["seen"]) == [i for i in range(N) if i != 11] and not other["errors"]
    assert told["reconnects"] == other["reconnects"] == 0


def test_what_was_left_out_of_an_exception_is_said(socket_path: object) -> None:
    import user_datasets as ud

    data = ud.Raising(N, {3: "text"}, 5_000_000)
    with (
        coprep.DataLoader(data, batch_size=N, num_workers=1, framework="numpy") as loader,
        pytest.raises(ValueError) as caught,
    ):
        list(loader)
    told = str(caught.value)
    assert told.startswith("sample 3 xxx") and told.endswith("xxx to the end")
    assert "characters left out by coprep] ..." in told
    cause = caught.value.__cause__
    assert isinstance(cause, coprep.SampleError) and cause.id == 3
    assert "ValueError: sample 3 xxx" in str(cause) and "characters left out by coprep] ..." in str(cause)


def test_many_errors_wait_for_a_job_that_computes(socket_path: object, start: Start) -> None:
    good = list(range(0, 240, 5)) + list(range(1, 240, 5))
    bad = {i: "text" for i in range(240) if i not in good}
    assert len(bad) == 144
    data = f"Raising(240, {bad}, 2000)"
    # After its first error the job computes for 8 s, in which the other errors pile up.
    computes = job(start, data, {1: 8.0}, batch_size=24)
    skips = job(start, data, batch_size=24, on_error="skip")
    for each in (computes, skips):
        each.run_on()
    told, other = report(computes), report(skips)
    # The replacement of a sample may raise, too, so errors come in the order of places in the batch.
    assert sorted(error[-1] for error in told["errors"]) == sorted(bad)
    assert sorted(told["seen"]) == sorted(other["seen"]) == sorted(good)
    assert told["reconnects"] == other["reconnects"] == 0


def test_a_stopped_job_holds_up_nobody_and_gets_its_errors_when_it_goes_on(socket_path: object, start: Start) -> None:
    # Errors and good samples alternate, so that many of both wait: more than may be queued.
    bad = dict.fromkeys(range(0, 240, 2), "text")
    data = f"Raising(240, {bad}, 100_000)"
    stopped = job(start, data, {1: 0.0}, batch_size=24)
    stopped.run_on()
    assert stopped.line() == "pauses"
    stop(stopped.process.pid)
    try:
        neighbours = [job(start, data, batch_size=24, on_error="skip") for _ in range(2)]
        for neighbour in neighbours:
            neighbour.run_on()
        for neighbour in neighbours:
            assert sorted(report(neighbour)["seen"]) == list(range(1, 240, 2))
        until(lambda: len(stream()["jobs"]) == 1, "the neighbours have left")
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    told = report(stopped)
    assert sorted(error[-1] for error in told["errors"]) == sorted(bad)
    assert sorted(told["seen"]) == list(range(1, 240, 2))
    assert told["reconnects"] == 0
