"""What the benchmark of slow samples computes by itself."""

from __future__ import annotations

import itertools
import random

from tests.bench_slow.delivery import (
    Epoch,
    Gaps,
    astray,
    distances,
    is_same_draw,
    later_rate,
    mean_rank,
    rates,
    share_at_end,
)
from tests.bench_slow.knapsack import NOTHING, Item, choose


def test_the_optimum_of_forms_lies_between_the_choice_and_its_bound() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        samples = [some_forms(draw) for _ in range(draw.randint(1, 5))]
        budget = draw.randint(0, 80)
        choice = choose(samples, budget)
        fitting = [pick for pick in picks(samples) if sum(item.bytes for item in pick) <= budget]
        best = max(sum(item.saved_s for item in pick) for pick in fitting)
        assert choice.bytes <= budget, seed
        assert choice.saved_s <= best + 1e-9, seed
        assert choice.bound_s >= best - 1e-9, seed
        assert best - choice.saved_s <= max(item.saved_s for items in samples for item in items), seed


def some_forms(draw: random.Random) -> list[Item]:
    encoded = Item("encoded", draw.randint(1, 10), 3 * draw.random())
    return [encoded, Item("decoded", draw.randint(5, 40), 9 * draw.random())]


def picks(samples: list[list[Item]]) -> list[tuple[Item, ...]]:
    """Every way to keep one form of each sample, or none."""
    return list(itertools.product(*([NOTHING, *items] for items in samples)))


def epoch(began: float, every: float, batches: list[list[int]]) -> Epoch:
    return Epoch(began, [began + every * number for number in range(1, 1 + len(batches))], batches)


def test_later_epochs_are_counted_from_the_end_of_the_one_before() -> None:
    epochs = [epoch(10, 1, [[0, 1], [2, 3]]), epoch(15, 2, [[3, 2], [1, 0]])]
    assert rates(epochs) == [2.0, 4 / 7]
    assert later_rate(epochs) == 4 / 7


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
