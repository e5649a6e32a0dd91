"""Tests the computations of the benchmark of slow samples."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.benchmarks.loaders.measure import MIB
from tests.benchmarks.slow_samples.balance import SCENARIOS, PhaseRecord, Series
from tests.benchmarks.slow_samples.delivery import (
    Epoch,
    Gaps,
    astray,
    distances,
    is_same_draw,
    later_rate,
    mean_rank,
    rates,
    share_at_end,
    steady_epoch,
)
from tests.benchmarks.slow_samples.forms import WORKERS, Costs, optimum
from tests.benchmarks.slow_samples.knapsack import Item, choose, fastest
from tests.benchmarks.slow_samples.order import Run, left_by
from tests.benchmarks.slow_samples.running import hear
from tests.benchmarks.slow_samples.series import WINDOW_S, Phase, PoolSnapshot, bytes_of, phases, samples_of
from tests.benchmarks.slow_samples.timeline import Part, draw_timeline
from tools.demo.children import ChildFailed, Children


def test_the_optimum_of_forms_lies_between_the_choice_and_its_bound() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        samples, budget = some_samples(draw), draw.randint(0, 80)
        choice = choose(samples, budget, (1.0, 0.0))
        best = max(saved(pick)[0] for pick in fitting(samples, budget))
        assert choice.bytes <= budget, seed
        assert choice.worth_s <= best + 1e-9, seed
        assert choice.bound_s >= best - 1e-9, seed
        assert best - choice.worth_s <= max(item.saved_s[0] for items in samples for item in items), seed


LONGER = 0.03
"""Largest mean excess over the shortest epochs. There are so few samples that one is a large part of an epoch."""


def test_the_shortest_epoch_of_two_resources_lies_between_the_plan_and_its_bound() -> None:
    planned, best = 0.0, 0.0
    for seed, samples, budget, needs in problems():
        plan = fastest(samples, budget, needs)
        shortest = shortest_epoch(samples, budget, needs)
        assert plan.choice.bytes <= budget, seed
        assert plan.epoch_s >= shortest - 1e-9, seed
        assert plan.bound_s <= shortest + 1e-9, seed
        planned, best = planned + plan.epoch_s, best + shortest
    assert planned <= (1 + LONGER) * best


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_what_is_best_for_one_resource_or_for_their_sum_would_not_pass_for_that(weights: tuple[float, float]) -> None:
    planned, best = 0.0, 0.0
    for _, samples, budget, needs in problems():
        choice = choose(samples, budget, weights)
        planned += max(need - choice.saved_s(resource) for resource, need in enumerate(needs))
        best += shortest_epoch(samples, budget, needs)
    assert planned > (1 + LONGER) * best


def test_a_bound_for_resources_that_work_one_after_the_other_would_not_pass() -> None:
    assert any(
        sum(needs) - choose(samples, budget, (1.0, 1.0)).bound_s > shortest_epoch(samples, budget, needs)
        for _, samples, budget, needs in problems()
    )


def test_with_many_samples_the_plan_is_nearly_as_good_as_its_bound() -> None:
    draw = random.Random(1)
    samples = [some_forms(draw) for _ in range(400)]
    for budget in (100, 1_000, 5_000):
        plan = fastest(samples, budget, some_needs(draw, samples))
        assert plan.bound_s <= plan.epoch_s <= 1.01 * plan.bound_s, budget


Problem = tuple[int, list[list[Item]], int, tuple[float, float]]


def problems() -> Iterator[Problem]:
    """Yields a seed, samples, a budget, and the needs of an epoch without a cache."""
    for seed in range(200):
        draw = random.Random(seed)
        samples, budget = some_samples(draw), draw.randint(0, 80)
        yield seed, samples, budget, some_needs(draw, samples)


def some_samples(draw: random.Random) -> list[list[Item]]:
    return [some_forms(draw) for _ in range(draw.randint(1, 5))]


def some_forms(draw: random.Random) -> list[Item]:
    """Returns forms that save two resources. Both forms save the second one."""
    encoded = Item("encoded", draw.randint(1, 10), (draw.random(), 3 * draw.random()))
    return [encoded, Item("decoded", draw.randint(5, 40), (9 * draw.random(), 3 * draw.random()))]


def some_needs(draw: random.Random, samples: list[list[Item]]) -> tuple[float, float]:
    """Returns needs that are at least as large as all possible savings."""
    first, second = (draw.random() + sum(max(i.saved_s[at] for i in items) for items in samples) for at in (0, 1))
    return first, second


Pick = tuple[Item | None, ...]


def fitting(samples: list[list[Item]], budget: int) -> list[Pick]:
    """Returns every way to keep at most one form of each sample within the budget."""
    picks: list[Pick] = list(itertools.product(*([None, *items] for items in samples)))
    return [pick for pick in picks if sum(item.bytes for item in pick if item) <= budget]


def saved(pick: Pick) -> tuple[float, float]:
    first, second = (sum(item.saved_s[at] for item in pick if item) for at in (0, 1))
    return first, second


def shortest_epoch(samples: list[list[Item]], budget: int, needs: tuple[float, float]) -> float:
    return min(max(needs[0] - saved(pick)[0], needs[1] - saved(pick)[1]) for pick in fitting(samples, budget))


def costs_of(samples: int) -> Costs:
    """Returns equal costs: 1 ms to copy, 10 to decode (8 if reduced), 1 to crop; 100,000 bytes, 1,000,000 decoded."""
    row = {"fetch_s": 0.001, "fixed_s": 0.0, "random_s": 0.001}
    off = {"reduced": [{**row, "decode_s": 0.008}] * samples, "full": [{**row, "decode_s": 0.010}] * samples}
    return Costs([100_000] * samples, [1_000_000] * samples, off, [0.001] * samples)


def test_the_optimum_decodes_in_full_only_where_enough_is_kept_decoded() -> None:
    costs = costs_of(100)
    small, large = (optimum([costs], "as-it-is", budget, budget * 100_000) for budget in (100, 1_000))
    assert (small.decoding, small.by_form) == ("reduced", {"encoded": 100})
    assert small.epoch_s == pytest.approx(100 * 0.009 / WORKERS)
    assert (large.decoding, large.by_form) == ("full", {"decoded": 100})
    assert large.epoch_s == pytest.approx(100 * 0.001 / WORKERS)


def test_what_is_read_and_what_is_worked_meanwhile_do_not_add_up() -> None:
    """An epoch on slowed storage is as long as the longer of the two times, even if little is kept."""
    costs = costs_of(100)
    nothing = optimum([costs], "slowed", 0, 0)
    assert (nothing.processors_s, nothing.storage_s) == (pytest.approx(0.5), pytest.approx(100 * 100_000 / 20 / MIB))
    assert nothing.epoch_s == nothing.bound_s == nothing.processors_s
    slower = replace(costs, encoded_bytes=[200_000] * 100)
    half = optimum([slower], "slowed", 50, 10_000_000)
    assert half.epoch_s == pytest.approx(max(half.processors_s, half.storage_s))
    assert half.by_form == {"encoded": 50}


def test_what_is_best_by_chance_for_some_measurements_is_not_for_others() -> None:
    costs = costs_of(100)
    same = optimum([costs, costs], "as-it-is", 500, 50_000_000)
    assert same.by_others_s == pytest.approx(same.epoch_s)
    assert optimum([costs], "as-it-is", 500, 50_000_000).by_others_s is None
    draw = random.Random(1)
    rows = [[{**row, "decode_s": draw.uniform(0.005, 0.015)} for row in costs.off["full"]] for _ in range(2)]
    noisy = [replace(costs, off={**costs.off, "full": each}) for each in rows]
    best = optimum(noisy, "as-it-is", 500, 50_000_000)
    assert best.by_others_s is not None
    assert best.epoch_s < 0.95 * best.by_others_s


def epoch(began: float, every: float, batches: list[list[int]]) -> Epoch:
    return Epoch(began, [began + every * number for number in range(1, 1 + len(batches))], batches)


def test_later_epochs_are_counted_from_the_end_of_the_one_before() -> None:
    epochs = [epoch(10, 1, [[0, 1], [2, 3]]), epoch(15, 2, [[3, 2], [1, 0]])]
    assert rates(epochs) == [2.0, 4 / 7]
    assert later_rate(epochs) == 4 / 7


def test_a_rate_is_compared_with_the_processors_that_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.slow_samples.order.cores", lambda: 2)
    assert (left_by(0), left_by(0.5), left_by(2)) == (1, 0.75, 0.005)
    monkeypatch.setattr("tests.benchmarks.slow_samples.order.cores", lambda: 8)
    assert (left_by(5), left_by(7)) == (1, 0.5)
    epochs = [epoch(10, 1, [[0, 1], [2, 3]]), epoch(12, 2, [[3, 2], [1, 0]])]
    run = Run(4.0, epochs, 1.0, None, {}, None, 0.2, first_left=0.5, later_left=0.75)
    assert run.first_to_limit() == pytest.approx(2 / (4 * 0.5))
    assert run.later_to_limit() == pytest.approx(1 / (4 * 0.75))


def test_a_steady_epoch_is_the_same_whatever_was_fetched_ahead_at_its_ends() -> None:
    passes = [epoch(20 * number, 1, [[0, 1], [2, 3]]) for number in range(6)]
    steady = [replace(one, arrivals=[20 * number + 8, 20 * number + 18]) for number, one in enumerate(passes)]
    assert steady_epoch(steady) == pytest.approx(20)
    ahead = [replace(steady[0], arrivals=[2, 18]), *steady[1:-1], replace(steady[-1], arrivals=[108, 124])]
    assert steady_epoch(ahead) == pytest.approx(20, rel=0.06)
    assert (ahead[-1].end - ahead[0].arrivals[0]) / (steady[-1].end - steady[0].arrivals[0]) > 1.1


def test_gaps_have_their_tail_beside_their_median() -> None:
    gaps = Gaps.of([0, 1, 2, 3, 7])
    assert (gaps.p50, gaps.p99, gaps.max, gaps.ratio) == (1000, 4000, 4000, 4)


def test_samples_that_are_lost_repeated_or_unknown_are_astray() -> None:
    assert astray(epoch(0, 1, [[0, 1], [2, 3]]), 4) == 0
    assert astray(epoch(0, 1, [[0, 1], [1, 3]]), 4) == 2
    assert astray(epoch(0, 1, [[0, 1], [2, 3, 9]]), 4) == 1


def test_slow_samples_that_come_last_are_seen() -> None:
    late = epoch(0, 1, [[number] for number in range(16)])
    assert mean_rank(late, {15}) == 1.0
    assert share_at_end(late, {14, 15}) == 2.0
    assert share_at_end(late, {0, 15}) == 1.0
    assert share_at_end(epoch(0, 1, [[0], [1]]), {1}) is None


def test_a_draw_is_told_from_another_one() -> None:
    drawn = list(range(640))
    delayed = [*drawn[1:320], 0, *drawn[320:]]
    assert max(distances(delayed, drawn, 10)) == 31
    assert is_same_draw(delayed, drawn, 10)
    assert not is_same_draw(random.Random(1).sample(drawn, len(drawn)), drawn, 10)
    assert not is_same_draw(drawn[:-1], drawn, 10)


def pool_at(at: float, samples: float, threads: int = 4, cpus: int = 2) -> PoolSnapshot:
    """Returns the state of a pool with samples of 100,000 bytes."""
    return PoolSnapshot(at, cpus, threads, threads - cpus, cpus, 50, 3, round(samples), round(samples) * 100_000)


def run_of(rate_at: Callable[[float], float], seconds: float, **others: int) -> list[PoolSnapshot]:
    """Returns four snapshots a second of a pool that prepares samples at this rate."""
    samples, snapshots = 0.0, []
    for number in range(int(4 * seconds) + 1):
        snapshots.append(pool_at(number / 4, samples, **others))
        samples += rate_at(number / 4) / 4
    return snapshots


def test_phases_part_at_the_turns_and_their_windows_do_not_look_back() -> None:
    first, second = phases(run_of(lambda at: 1000 if at < 5 else 100, 15), [0.0, 5.0])
    assert [len(phase.snapshots) for phase in (first, second)] == [20, 41]
    assert (first.reaches(samples_of), second.reaches(samples_of)) == (1000, 100)
    assert second.reaches(bytes_of) == 100 * 100_000
    assert (first.settled_s(), second.settled_s()) == (0, 0)
    assert second.seconds == 10


def test_a_rate_that_climbs_has_settled_when_it_is_near_what_it_reaches() -> None:
    (phase,) = phases(run_of(lambda at: min(100 * at, 1000), 40), [0.0])
    settled = phase.settled_s()
    assert settled == pytest.approx(8.5 - WINDOW_S / 2, abs=0.25)
    assert phase.astray() == 0


def test_a_rate_that_is_right_for_a_moment_has_not_settled() -> None:
    (phase,) = phases(run_of(lambda at: 1000 if 2 <= at < 4 or at >= 7 else 400, 30), [0.0])
    assert phase.settled_s() == pytest.approx(7, abs=0.25)


def test_what_leaves_its_rate_again_has_settled_but_is_astray() -> None:
    (phase,) = phases(run_of(lambda at: 400 if at < 1 or 15 <= at < 18 else 1000, 30), [0.0])
    assert phase.settled_s() == pytest.approx(1, abs=0.25)
    assert phase.astray() == pytest.approx(3 / 28, abs=0.03)


def test_what_changes_to_the_end_never_settles() -> None:
    phase = Phase(0.0, run_of(lambda at: 4.0**at, 12))
    assert phase.settled_s() is None
    assert phase.astray() == 1


def test_the_pool_follows_processors_when_it_first_counts_on_as_many() -> None:
    snapshots = [*run_of(lambda _: 100, 2), pool_at(2.5, 250, cpus=1), pool_at(2.75, 275, cpus=1)]
    (_, phase) = phases(snapshots, [0.0, 1.0])
    assert (phase.cpus_s(1), phase.cpus_s(2), phase.cpus_s(3)) == (1.5, 0.0, None)


def series(scenario: str, poor_rate: float) -> Series:
    """Returns a series of 1,000 samples a second, then `poor_rate` between 10 and 30 s, then 1,000 again."""
    snapshots = run_of(lambda at: poor_rate if 10 <= at < 30 else 1000, 40)
    return Series(SCENARIOS[scenario], snapshots, [0.0, 10.0, 30.0], 0.0)


def test_what_a_phase_reaches_is_held_against_what_its_world_allows() -> None:
    for scenario, allowed in (("storage", 20 * MIB), ("latency", 1e8), ("processors", 5e7)):
        one = series(scenario, allowed / 100_000 / 2)
        assert one.allowed() == [None, pytest.approx(allowed), 1e8], scenario
        records = [PhaseRecord.of(number, [one]) for number in range(3)]
        assert records[0].of_allowed is None and records[0].settled_s is None
        shares = [record.of_allowed.median for record in records[1:] if record.of_allowed]
        assert shares == pytest.approx([0.5, 1.0], abs=0.01), scenario


def test_storage_that_gives_more_than_processors_can_take_allows_what_they_take() -> None:
    one = series("storage", 100)
    plenty = replace(one, scenario=replace(one.scenario, poor=replace(one.scenario.poor, mib_per_s=500)))
    assert plenty.allowed()[1] == pytest.approx(1e8)


def test_a_timeline_is_drawn_with_its_turns() -> None:
    one = series("storage", 200)
    parts = [Part(phase, f"world {number}", 21e6 if number else None) for number, phase in enumerate(one.phases)]
    drawn = ElementTree.fromstring(draw_timeline(parts, "a pool"))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a pool", "world 0", "world 1", "world 2", "fetching", "MiB/s", "100"} <= set(words)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 1 + len(parts)


@pytest.mark.parametrize(
    ("goes_on", "failure"),
    [
        ("time.sleep(0.3); sys.exit(3)", "job 1 ended with code 3:\nno room"),
        ("time.sleep(60)", "job 1 did not say 'ready' within 1 s:\nno room"),
    ],
)
def test_a_job_that_has_closed_its_output_tells_how_it_ended(goes_on: str, failure: str) -> None:
    program = f"import os, sys, time; print('no room', file=sys.stderr, flush=True); os.close(1); {goes_on}"
    with Children() as children:
        job = children.start("job 1", [sys.executable, "-c", program])
        with pytest.raises(ChildFailed, match=failure):
            hear(job, "ready", 1)
