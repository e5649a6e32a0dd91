"""Tests the campaign of random histories: its plans, its checkers, and a short round of it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import data, faults
from tests.chaos.checks import (
    Finding,
    Log,
    batches_of_iteration,
    check_cohort,
    check_descriptors,
    check_job,
    check_left,
    check_logs,
    is_due,
    parse,
    read_rank,
)
from tests.chaos.draw import draw
from tests.chaos.history import Result
from tests.chaos.plan import At, Data, Fault, Job, Plan, Point, features, loads

ROUND = (8, 21, 43, 44, 48, 51, 71, 88, 102, 120, 126, 150, 154, 158, 189, 227, 343)
"""Seeds of the short round. They cover each kind of dataset, several ranks, kills of every process, and stores."""
POINTS = (Point("some-point"), Point("another", costs_a_sample=True))
ROOT = Path(__file__).parents[3]

# --- faked logs ----------------------------------------------------------------------------------------------


def plan_of(job: Job, samples: int = 12, kind: str = "plain", **more: Any) -> Plan:
    data_options = {name: more.pop(name) for name in ("failing", "deadly", "slow") if name in more}
    return Plan(1, (Data(kind, samples, **data_options),), (job,), **more)


def log_of(*batches: list[int], epoch: int = 0, loader: int = 0, whole: bool = True, **errors: str) -> list[Any]:
    """Returns the records of one epoch. Errors are given by the ids of their samples, such as ``e3="Broken"``."""
    records: list[Any] = [{"what": "epoch", "loader": loader, "epoch": epoch}]
    records += [{"what": "batch", "loader": loader, "ids": ids} for ids in batches]
    records += [
        {"what": "error", "loader": loader, "id": int(name[1:]), "type": kind, "text": ""}
        for name, kind in errors.items()
    ]
    return [*records, {"what": "end", "loader": loader}] if whole else records


DONE = {"what": "done"}
GOOD = ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])
JOB = Job(0, epochs=1, batch_size=4)
ITERATING = dataclasses.replace(JOB, shuffle=False, workers=0)


def found(plan: Plan, *ranks: list[Any], **more: Any) -> list[str]:
    """Returns the kinds of the findings in the logs of a job's ranks."""
    return [one.kind for one in check_job(plan, 0, [read_rank([rank]) for rank in ranks], **more)]


def test_a_good_epoch_has_no_finding() -> None:
    assert found(plan_of(JOB), [*log_of(*GOOD), DONE]) == []
    assert found(plan_of(JOB), [*log_of(*GOOD), *log_of(*GOOD, epoch=1), DONE]) == []


def test_a_lost_sample_is_found() -> None:
    assert found(plan_of(JOB), [*log_of([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 11]), DONE]) == ["sample lost"]


def test_a_repeated_sample_is_found() -> None:
    log = [*log_of([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 3]), DONE]
    assert found(plan_of(JOB), log) == ["sample repeated"]
    # The same holds in an epoch that did not end.
    assert found(plan_of(JOB), log_of([0, 1], [1], whole=False), is_cut=True) == ["sample repeated"]


def test_a_sample_that_two_ranks_are_given_is_found() -> None:
    job = dataclasses.replace(JOB, ranks=2, batch_size=3)
    first, second = log_of([0, 1, 2], [3, 4, 5]), log_of([6, 7, 8], [9, 10, 5])
    assert set(found(plan_of(job), [*first, DONE], [*second, DONE])) == {"sample repeated", "sample lost"}


def test_a_sample_of_another_fold_is_found() -> None:
    job = dataclasses.replace(JOB, subset=(0, 2))
    assert found(plan_of(job), [*log_of([1, 3, 5, 7], [9, 11]), DONE]) == []
    assert "sample not of the job" in found(plan_of(job), [*log_of([1, 3, 5, 7], [9, 11, 2]), DONE])


def test_a_broken_order_is_found() -> None:
    job = dataclasses.replace(JOB, shuffle=False)
    log = [*log_of([0, 1, 2, 3], [8, 9, 10, 11], [4, 5, 6, 7]), DONE]
    assert found(plan_of(job), [*log_of(*GOOD), DONE]) == []
    assert found(plan_of(job), log) == ["order broken"]
    assert found(plan_of(dataclasses.replace(job, relaxed=True)), log) == []


def test_unequal_steps_are_found() -> None:
    job = dataclasses.replace(JOB, ranks=2, batch_size=3)
    equal = [[*log_of([0, 1, 2], [3, 4, 5]), DONE], [*log_of([6, 7, 8], [9, 10, 11]), DONE]]
    assert found(plan_of(job), *equal) == []
    unequal = [[*log_of([0, 1, 2], [3, 4, 5], [9]), DONE], [*log_of([6, 7, 8], [10, 11]), DONE]]
    assert found(plan_of(job), *unequal) == ["steps unequal"]


def test_a_wrong_number_and_a_wrong_size_of_batches_are_found() -> None:
    assert found(plan_of(JOB), [*log_of(*GOOD[:2], [8, 9], [10, 11]), DONE]) == ["number of batches"]
    assert found(plan_of(JOB), [*log_of([0, 1, 2], [3, 4, 5, 6, 7], *GOOD[2:]), DONE]) == ["size of batches"]


def test_wrong_contents_are_found() -> None:
    wrong = {"what": "wrong", "ids": [3], "when": "held"}
    assert found(plan_of(JOB), [*log_of(*GOOD), wrong, DONE]) == ["contents"]


def test_with_drop_last_only_what_fills_no_batch_may_be_left_out() -> None:
    job = dataclasses.replace(JOB, batch_size=5, drop_last=True)
    assert found(plan_of(job), [*log_of([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]), DONE]) == []
    assert "sample lost" in found(plan_of(job), [*log_of([0, 1, 2, 3, 4]), DONE])


def test_an_error_that_is_missing_or_not_due_is_found() -> None:
    bad = plan_of(JOB, failing=(3,))
    rest = ([0, 1, 2], [4, 5, 6, 7], [8, 9, 10, 11])
    assert found(bad, [*log_of(*rest, e3="Broken"), DONE]) == []
    assert found(bad, [*log_of(*rest), DONE]) == ["error missing"]
    assert found(bad, [*log_of(*GOOD, e3="Broken"), DONE]) == ["failing sample given"]
    assert "error not due, sample" in found(plan_of(JOB), [*log_of(*rest, e3="Broken"), DONE])
    skips = plan_of(dataclasses.replace(JOB, skip=True), failing=(3,))
    assert found(skips, [*log_of(*rest), DONE]) == []
    assert found(skips, [*log_of(*rest, e3="Broken"), DONE]) == ["error despite skip"]


def test_a_changed_file_may_fail_or_be_given_but_must_not_vanish() -> None:
    changed = (Fault("files", At("start"), "cut", ids=(3,)),)
    plan = plan_of(JOB, kind="files", faults=changed)
    rest = ([0, 1, 2], [4, 5, 6, 7], [8, 9, 10, 11])
    assert found(plan, [*log_of(*GOOD), DONE]) == found(plan, [*log_of(*rest, e3="SampleError"), DONE]) == []
    assert found(plan, [*log_of(*rest), DONE]) == ["error missing"]
    assert found(plan, [*log_of(*rest[:2], [8, 9, 10], e3="SampleError"), DONE]) == ["sample lost"]


def test_samples_may_fail_whose_object_or_shard_was_changed_and_no_others() -> None:
    change = (Fault("objects", At("start"), "replaced", ids=(4,)),)
    assert plan_of(JOB, kind="urls", faults=change).affected(0) == {4}
    # Of 12 samples in 4 shards.
    assert plan_of(JOB, kind="shards", faults=change).affected(0) == {3, 4, 5}
    # A store that fails costs no sample.
    away = plan_of(JOB, kind="shards", faults=(Fault("store", At("start"), "kill", seconds=1.0),))
    assert found(away, [*log_of([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], e11="SampleError"), DONE]) == [
        "error not due, sample"
    ]


def test_a_panic_may_cost_the_sample_at_which_it_happens() -> None:
    plan = plan_of(JOB, failpoints="a=panic", panics_cost_samples=True)
    rest = ([0, 1, 2], [4, 5, 6, 7], [8, 9, 10, 11])
    assert found(plan, [*log_of(*rest, e3="SampleError"), DONE]) == []
    assert found(plan, [*log_of(*rest), DONE]) == ["sample lost"]


def test_a_crash_is_found_unless_the_plan_makes_it_due() -> None:
    crash = {"what": "crash", "type": "CoprepError", "text": "Too many open files (os error 24)"}
    assert found(plan_of(JOB), [*log_of(*GOOD[:1], whole=False), crash]) == ["error not due, CoprepError"]
    assert found(plan_of(JOB, descriptors=30), [*log_of(*GOOD[:1], whole=False), crash]) == []
    # The error must name the resource that is short.
    assert not is_due(plan_of(JOB, descriptors=30), "TimeoutError", "waited 15.0 s for a batch")


def test_a_job_that_neither_ends_nor_fails_is_found() -> None:
    log = log_of(*GOOD[:1], whole=False)
    assert found(plan_of(JOB), log) == ["unfinished"]
    assert found(plan_of(JOB), log, is_cut=True) == []


def test_memory_that_stays_mapped_is_found() -> None:
    closed = {"what": "closed", "maps": ["/memfd:coprep-staging (deleted)"]}
    assert found(plan_of(JOB), [*log_of(*GOOD), closed, DONE]) == ["memory kept"]


def test_a_resumed_epoch_is_put_together() -> None:
    state = {"what": "state", "epoch": 0, "is_fresh": False, "all_ranks": True, "name": "first"}
    first = [*log_of(*GOOD[:1], whole=False), state]
    resumed = {"what": "resumed", "epoch": 0, "name": "first"}

    def kinds(*runs: list[Any]) -> list[str]:
        return [one.kind for one in check_job(plan_of(JOB), 0, [read_rank(runs)])]

    assert kinds(first, [resumed, *log_of(*GOOD[1:]), DONE]) == []
    # Batches that came after the saved state come again.
    assert kinds([*first, *log_of(*GOOD[1:2], whole=False)[1:]], [resumed, *log_of(*GOOD[1:]), DONE]) == []
    # A later state was announced, but the job was killed before it took effect.
    later = [*first, *log_of(*GOOD[1:2], whole=False)[1:], {**state, "name": "later"}]
    assert kinds(later, [resumed, *log_of(*GOOD[1:]), DONE]) == []
    assert kinds(later, [{**resumed, "name": "later"}, *log_of(*GOOD[2:]), DONE]) == []
    assert kinds(first, [resumed, *log_of(*GOOD[2:]), DONE]) == ["sample lost", "number of batches"]
    assert "sample repeated" in kinds(first, [resumed, *log_of(*GOOD), DONE])


def test_a_state_at_the_end_of_an_epoch_is_followed_by_a_whole_one() -> None:
    state = {"what": "state", "epoch": 0, "is_fresh": True, "all_ranks": True, "name": "end"}
    resumed = {"what": "resumed", "epoch": 0, "name": "end"}

    def kinds(*given: list[int]) -> list[str]:
        runs = [*log_of(*given, whole=False), state], [resumed, *log_of(*GOOD), DONE]
        return [one.kind for one in check_job(plan_of(JOB), 0, [read_rank(runs)])]

    assert kinds(*GOOD) == []
    assert kinds(*GOOD[:2]) == ["sample lost", "number of batches"]


def test_a_cohort_that_is_not_in_step_is_found() -> None:
    jobs = (dataclasses.replace(JOB, cohort=2),) * 2
    plan = Plan(1, (Data("plain", 12),), jobs)
    ranks = [[read_rank([[*log_of(*batches), DONE]])] for batches in (GOOD, GOOD[::-1])]
    assert check_cohort(plan, [ranks[0], ranks[0]]) == []
    assert [one.kind for one in check_cohort(plan, ranks)] == ["cohort differs"]


def test_batches_of_an_iteration_that_are_lost_or_made_up_are_found() -> None:
    def kinds(*records: list[Any], job: Job = ITERATING, **more: Any) -> list[str]:
        return found(plan_of(job, kind="iterable", **more), [*(one for log in records for one in log), DONE])

    assert kinds(log_of(*GOOD)) == []
    assert kinds(log_of(*GOOD[:2])) == kinds(log_of(*GOOD[1:], whole=False)) == ["batch lost"]
    assert kinds(log_of(*GOOD[:2], whole=False)) == []
    assert kinds(log_of(*GOOD[:2], GOOD[1])) == kinds(log_of(*GOOD[::-1])) == ["order broken"]
    assert kinds(log_of(*GOOD[:2], [8, 9, 10])) == ["batch not of the iteration"]
    assert kinds(log_of(*GOOD[:2], e2="SampleError")) == ["error not due, sample"]
    # One kill costs no batch. Only two kills make an error of a batch due.
    twice = (Fault("kill", At("start"), "worker"),) * 2
    assert kinds(log_of(GOOD[0], GOOD[2], e1="SampleError"), faults=twice) == []
    assert kinds(log_of(GOOD[0], e1="SampleError"), faults=twice) == ["batch lost"]
    # Nothing comes past two such batches in a row.
    assert kinds(log_of(GOOD[0], e1="SampleError", e2="SampleError"), faults=twice, samples=20) == []
    assert kinds(log_of(GOOD[0], e2="SampleError", e3="SampleError"), faults=twice, samples=20) == ["batch lost"]
    skipping = dataclasses.replace(ITERATING, skip=True)
    assert kinds(log_of(*GOOD[:1]), faults=twice, job=skipping) == []
    assert kinds(log_of(*GOOD, e1="SampleError"), faults=twice, job=skipping) == ["error despite skip"]


def test_pytorchs_workers_take_turns() -> None:
    job = dataclasses.replace(ITERATING, batch_size=2, workers=2)
    assert batches_of_iteration(job, 7) == [[0, 2], [1, 3], [4, 6], [5]]
    assert batches_of_iteration(dataclasses.replace(job, drop_last=True), 7) == [[0, 2], [1, 3], [4, 6]]


def test_members_that_iterate_are_compared_epoch_by_epoch() -> None:
    jobs = (dataclasses.replace(ITERATING, cohort=2),) * 2
    plan = Plan(1, (Data("iterable", 12),), jobs)
    left = [*log_of(*GOOD[:1], whole=False), *log_of(*GOOD, epoch=1), DONE]
    whole, shorter = ([*log_of(*GOOD), *log_of(*second, epoch=1), DONE] for second in (GOOD, GOOD[:2]))
    ranks = [[read_rank([log])] for log in (left, whole, shorter)]
    assert check_cohort(plan, ranks[:2]) == []
    assert [one.kind for one in check_cohort(plan, ranks[1:])] == ["cohort differs"]
    # A failure may have ended it there.
    killed = dataclasses.replace(
        plan,
        jobs=tuple(dataclasses.replace(job, skip=True) for job in jobs),
        faults=(Fault("kill", At("start"), "worker"),) * 2,
    )
    assert check_cohort(killed, ranks[1:]) == []


def test_draws_that_are_too_few_or_of_weight_0_are_found() -> None:
    job = dataclasses.replace(JOB, draws=10, weighted=True)
    good = ([1, 1, 2, 3], [4, 6, 7, 1], [2, 3])
    assert found(plan_of(job), [*log_of(*good), DONE]) == []
    assert found(plan_of(job), [*log_of(*good[:2], [2]), DONE]) == ["number of draws"]
    assert found(plan_of(job), [*log_of(*good[:2]), DONE]) == ["number of draws", "number of batches"]
    assert found(plan_of(job), [*log_of(*good[:2], [0, 1]), DONE]) == ["sample not of the job"]
    assert found(plan_of(job, failing=(3,)), [*log_of(*good), DONE]) == ["failing sample given"]
    dropping = dataclasses.replace(job, drop_last=True)
    assert found(plan_of(dropping), [*log_of(*good[:2]), DONE]) == []


def test_leaks_are_found() -> None:
    before = Counter({"socket:[N]": 3, "/memfd:a": 1})
    assert check_descriptors(before, before) == []
    (leak,) = check_descriptors(before, before + Counter({"/memfd:a": 2}))
    assert leak.kind == "descriptors leaked" and "'/memfd:a': 2" in leak.text
    assert check_left("file", []) == []
    assert [one.kind for one in check_left("file", {"s"})] == ["file left"]


def test_panics_are_found_unless_they_were_injected() -> None:
    text = "INFO all is well\nthread 'worker-0' panicked at src/x.rs:3:5:\n"
    assert [one.kind for one in check_logs(plan_of(JOB), "log", text)] == ["panic"]
    assert check_logs(plan_of(JOB, failpoints="a=panic"), "log", text) == []


def test_findings_of_one_cause_have_one_signature() -> None:
    first, second = (Finding("sample lost", f"job {n}, epoch 0: 2 of 40: {n}, 7, {n + 9}") for n in (1, 3))
    assert first.signature == second.signature


def text_of(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_log_is_read_as_it_was_written(is_killed: bool) -> None:
    assert parse(text_of(*log_of(*GOOD)), is_killed) == Log(log_of(*GOOD), [])
    assert parse("", is_killed) == Log([], [])


def test_only_the_last_line_of_a_killed_process_may_be_cut() -> None:
    whole, last = text_of(*log_of(*GOOD)), text_of(DONE)
    # The cut may be anywhere, even right before the end of the line.
    for cut in (last[:1], last[:9], last[:-1]):
        assert parse(whole + cut, is_killed=True) == Log(log_of(*GOOD), [])
        assert parse(whole + cut, is_killed=False) == Log(log_of(*GOOD), [cut])
    # A line that has an end was not cut by the kill.
    for line in (last[:9], "", "3", "[]", "{}"):
        assert parse(f"{whole}{line}\n", is_killed=True) == Log(log_of(*GOOD), [line])


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_malformed_line_in_the_middle_of_a_log_is_found(is_killed: bool) -> None:
    first, *others = log_of(*GOOD)
    log = parse(text_of(first) + '{"what": "ba{"what"\n' + text_of(*others, DONE), is_killed)
    assert log.records == [*log_of(*GOOD), DONE]
    (finding,) = check_job(plan_of(JOB), 0, [read_rank([log.records], log.malformed)], is_cut=is_killed)
    assert finding.kind == "malformed log" and "ba{" in finding.text


def test_a_malformed_line_may_stand_for_a_record_that_the_others_need() -> None:
    _, *without_begin = log_of(*GOOD)
    rank = read_rank([without_begin, [{"what": "resumed", "epoch": 0, "name": "lost"}]], ["x"])
    assert [one.kind for one in check_job(plan_of(JOB), 0, [rank])] == ["malformed log"]


# --- contents ------------------------------------------------------------------------------------------------


def test_contents_tell_their_sample() -> None:
    import numpy as np

    images = np.stack([np.broadcast_to(np.array(data.colour(i))[:, None, None], (3, 4, 4)) for i in (3, 117)])
    assert data.wrong_images(images.astype(np.uint8), [3, 117], False) == []
    assert data.wrong_images(images.astype(np.uint8), [3, 118], False) == [118]
    # A single value of one pixel is off, by more than the tolerance for JPEG.
    images[1, 2, 3, 3] += 20
    assert data.wrong_images(images.astype(np.uint8), [3, 117], False) == [117]
    values = np.array([[3, 3], [4, 4]])
    assert data.wrong_values(values, [3, 4], [3, 4], False) == []
    assert data.wrong_values(values, [3, 5], [3, 4], False) == [4]
    assert data.wrong_values(values * 1000 + 5, [3, 4], [3, 4], True) == []
    assert data.wrong_values(np.array([[3000, 3001]]), [3], [3], True) == [3]
    sample = data.Pickled(40)[36]
    assert data.wrong_pickled([sample], [36]) == [] and data.wrong_pickled([sample], [35]) == [35]


# --- plans ---------------------------------------------------------------------------------------------------


def test_a_seed_says_what_the_plan_is() -> None:
    for seed in range(300):
        plan = draw(seed, POINTS)
        assert draw(seed, POINTS) == plan == loads(plan.dumps())


def test_plans_meet_everything_often() -> None:
    seen = Counter(feature for seed in range(2000) for feature in features(draw(seed, POINTS)))
    rare = {name: count for name, count in seen.items() if count < 10}
    assert not rare
    for fault in (
        "kill coordinator",
        "kill fork_server",
        "kill giver",
        "kill giver_and_server",
        "kill worker",
        "kill job",
        "stop coordinator",
        "few descriptors",
    ):
        assert seen[f"fault: {fault}"] >= 50, fault


def test_a_result_is_what_was_written() -> None:
    result = Result(3, [Finding("a", "b")], fired=Counter({"kill job": 2}))
    assert Result.loads(result.dumps()) == result


# --- with real processes -------------------------------------------------------------------------------------


def test_descendants_are_found_by_kind() -> None:
    below = [
        faults.Process(2, 1, "S", "coprep", session=2),
        faults.Process(3, 1, "S", "python", session=1),
        faults.Process(4, 3, "S", "python", session=4),
        faults.Process(5, 4, "S", "python", session=4),
        faults.Process(6, 4, "Z", "python", session=4),
        faults.Process(7, 1, "S", "python", session=1),
    ]
    kinds = ("coordinator", "giver", "fork_server", "worker")
    assert [faults.targets(below, kind) for kind in kinds] == [[2], [3], [4], [5]]


CAMPAIGN_S = 240
"""Seconds after which a campaign counts as hanging. It kills its history 90 s after the deadline, and reports that."""


def campaign(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CAMPAIGN_S, env={**os.environ})


# More than the 180 s that the runner allows other tests, so that the campaign's own report is what one sees.
@pytest.mark.timeout(CAMPAIGN_S + 30)
@pytest.mark.parametrize("seed", ROUND)
def test_a_history_has_no_finding(seed: int, tmp_path: Path) -> None:
    done = campaign("--seed", seed, "--histories", 1, "--timeout", 30, "--deadline", 120, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(CAMPAIGN_S + 30)
def test_a_history_that_breaks_a_promise_is_reported(tmp_path: Path) -> None:
    """No job can keep this deadline."""
    plan = plan_of(dataclasses.replace(JOB, epochs=1, idle=(0, 1, 60.0)))
    (tmp_path / "plan.json").write_text(plan.dumps())
    done = campaign("--plan", tmp_path / "plan.json", "--histories", 1, "--deadline", 3, "--out", tmp_path)
    assert done.returncode == 1 and "hang: after 3 s still running: job 0 rank 0" in done.stdout
    kept = {path.name for path in (tmp_path / "1").iterdir()}
    assert {"plan.json", "findings.txt", "history.txt", "stacks.txt", "job0-rank0-run0.jsonl"} <= kept
