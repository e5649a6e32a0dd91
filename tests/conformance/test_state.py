"""Tests that samples are made with what a program has set, as they are by PyTorch's loader, and shared accordingly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from coordinators import coordinator_at

pytest.importorskip("torch")
pytest.importorskip("pandas")

from state.runner import ALONE, KINDS, TOGETHER, Method, Report, Runner, When, own_environment  # noqa: E402

each_kind = pytest.mark.parametrize("name", KINDS)


def each() -> pytest.MarkDecorator:
    """Returns each kind. Kinds that are not seen are known to fail.

    Not each time: a shadow sample may show the difference, and jobs that wrongly share may give right samples by
    chance, if the second one forks the workers after the first has left.
    """
    found = []
    for name, kind in KINDS.items():
        marks = pytest.mark.xfail(strict=False, reason=kind.unseen) if kind.unseen else ()
        found.append(pytest.param(name, marks=marks))
    return pytest.mark.parametrize("name", found)


each_other_method = pytest.mark.parametrize("method", ["spawn", "forkserver"])
MOMENTS: list[When] = ["before", "after"]
each_moment = pytest.mark.parametrize("when", MOMENTS)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    running = Runner(own_environment())
    yield running
    running.close()


@pytest.fixture(scope="module")
def sharing(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs jobs that share a coordinator, which is started by a job that has set nothing."""
    folder = tmp_path_factory.mktemp("state") / "run"
    with pytest.MonkeyPatch.context() as patch, coordinator_at(folder, patch), runner.hold("modules.ModuleReloaded"):
        yield runner


def is_refused(name: str, method: Method, report: Report) -> bool:
    """Returns whether coprep refuses a kind that it may refuse, in words that say more than that."""
    is_clear = "defect" not in report.error and len(report.error) > 30
    return method in KINDS[name].refused and bool(report.error) and is_clear


def test_the_table_is_large_and_each_kind_says_what_it_does() -> None:
    assert len(KINDS) >= 80
    assert len({kind.__doc__ for kind in KINDS.values()}) == len(KINDS)


@each_kind
def test_a_kind_shows_in_pytorchs_samples_if_it_counts(runner: Runner, name: str) -> None:
    first, second, after = runner.by_fork("torch", name)
    if KINDS[name].fails:
        assert first.error and after.error
        return
    assert [first.error, second.error, after.error] == [""] * 3
    if KINDS[name].counts is not None:
        assert (first.batches != second.batches) is KINDS[name].counts
    assert after.batches == first.batches


@each()
def test_samples_are_made_with_what_the_program_has_set(sharing: Runner, name: str) -> None:
    expected, reports = sharing.by_fork("torch", name), sharing.by_fork("coprep", name)
    if not (KINDS[name].fails or all(is_refused(name, "fork", report) for report in reports)):
        assert [report.error for report in reports] == [""] * 3
        assert [report.batches for report in reports] == [report.batches for report in expected]
    assert not any(report.harm for report in reports)


@each()
def test_jobs_share_if_they_agree_and_only_then(sharing: Runner, name: str) -> None:
    kind, reports = KINDS[name], sharing.by_fork("coprep", name)
    if any(report.error for report in reports):
        pytest.skip("the samples are compared by another test")
    first, second, after = (report.stream for report in reports)
    if kind.counts is not None:
        assert (first != second) is kind.counts
    if kind.shares:
        assert first == after


@each_other_method
@each_moment
def test_by_other_start_methods_samples_are_pytorchs_too(sharing: Runner, method: Method, when: When) -> None:
    expected, expected_harm = sharing.together("torch", method, when)
    samples, harm = sharing.together("coprep", method, when)
    assert samples.keys() == expected.keys() == set(TOGETHER)
    assert {name: (sample, expected[name]) for name, sample in samples.items() if sample != expected[name]} == {}
    # By these methods PyTorch's workers end their copies of objects, and with them what these remove at their end.
    assert harm <= expected_harm


@each_other_method
@pytest.mark.parametrize(
    ("name", "when"), [(name, when) for name in ALONE for when in MOMENTS if KINDS[name].loads or when == "before"]
)
def test_by_other_start_methods_what_cannot_travel_is_refused(
    sharing: Runner, method: Method, name: str, when: When
) -> None:
    expected, report = sharing.alone(("torch", "coprep"), method, when, name)
    if not (KINDS[name].fails or is_refused(name, method, report)):
        assert report.samples == expected.samples, report.error
    assert report.harm <= expected.harm
