"""Tests the pure parts of the benchmark of drop-in cost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.drop_in import figures, identity, one_pass, ragged, running
from tests.benchmarks.drop_in.__main__ import CASES
from tests.benchmarks.drop_in.case import Case, Once, Setting, as_json, column, known
from tests.benchmarks.drop_in.datasets import opened
from tests.benchmarks.drop_in.figures import Figure, ratios, shown
from tests.benchmarks.drop_in.passes import Pass, all_passes_s, border_to_gap, first_pass_s, later_pass_s, passes_of
from tests.benchmarks.drop_in.plan import Part, Plan
from tests.benchmarks.drop_in.report import Results, write


def figure(*values: float, at_most: float | None = 1.1) -> Figure:
    return Figure("case", "what", "x", values, at_most)


def test_a_bar_is_met_by_the_median_and_by_a_figure_that_is_just_as_large() -> None:
    assert figure(1.0, 9.0, 1.1).verdict == "met"
    assert figure(1.0, 1.2, 1.2).verdict == "NOT MET"
    assert figure(-3.0).verdict == "met"
    assert figure(60, at_most=60).verdict == "met"
    assert figure(61, at_most=60).verdict == "NOT MET"


def test_what_was_not_measured_or_has_no_bar_is_neither_met_nor_missed() -> None:
    assert figure().verdict == "not measured"
    assert figure(at_most=None).verdict == "not measured"
    assert figure(5.0, at_most=None).verdict == ""
    assert figures.missed([figure(), figure(5.0, at_most=None), figure(5.0), figure(1.0)]) == 1


def test_runs_differ_by_the_distance_from_the_lowest_to_the_highest() -> None:
    assert figure(0.9, 1.0, 1.2).differs_percent == pytest.approx(30)
    assert figure(-0.9, -1.0, -1.2).differs_percent == pytest.approx(30)
    assert figure(1.0).differs_percent is None
    assert figure(-1.0, 0.0, 1.0).differs_percent is None


def test_a_row_has_its_bar_its_median_with_its_range_and_its_verdict() -> None:
    assert figure(0.9, 1.0, 1.2).cells() == [
        "case: what",
        "at most 1.1 x",
        "1.00 x (0.900 to 1.20)",
        "30 %",
        "met",
    ]
    assert figure(2.0, at_most=None).cells() == ["case: what", "", "2.00 x", "one run", ""]
    assert figure().cells() == ["case: what", "at most 1.1 x", "", "", "not measured"]


def test_numbers_have_three_digits_or_all_before_the_point() -> None:
    assert [shown(value) for value in (0.0049, 0.5, 1.02, 12.34, 123.4, 5575.0, -0.25)] == [
        "0.005",
        "0.500",
        "1.02",
        "12.3",
        "123",
        "5,575",
        "-0.250",
    ]


def test_ratios_are_of_runs_side_by_side() -> None:
    assert ratios([2, 9], [1, 3]) == [2, 3]
    assert ratios([], [1, 3]) == []


def test_a_value_that_one_repetition_lacks_is_no_column() -> None:
    runs = [Once(known(a=1.0, b=2.0), []), Once(known(a=3.0, b=None), [])]
    assert column(runs, "a") == [1.0, 3.0]
    assert column(runs, "b") == []


def passes(*arrivals: list[float], made: float = 0.0) -> list[Pass]:
    return [Pass(0, made, each) for each in arrivals]


def test_a_pause_is_between_batches_and_the_first_batch_counts_from_the_making_of_the_loader() -> None:
    (one,) = passes([5.0, 5.1, 5.6, 5.7], made=3.0)
    assert (one.first_batch_s, one.longest_pause_s) == (2.0, pytest.approx(0.5))
    assert passes([5.0])[0].longest_pause_s == 0


def test_a_later_pass_begins_where_the_one_before_it_ends() -> None:
    some = passes([3.0, 4.0], [6.0, 7.0], [8.0, 9.0], made=1.0)
    assert (first_pass_s(some), later_pass_s(some), all_passes_s(some)) == (3.0, 2.5, 8.0)


def test_the_first_border_of_epochs_does_not_count_and_gaps_at_borders_are_no_usual_gaps() -> None:
    some = passes([1.0, 2.0, 3.0], [93.0, 94.0, 95.0], [99.0, 100.0, 101.0], [103.0, 104.0, 105.0])
    assert border_to_gap(some) == 4.0


def test_what_a_job_says_is_told_apart_by_its_loaders() -> None:
    said: list[dict[str, Any]] = [
        {"event": "ready", "at": 1.0},
        {"event": "pass", "loader": 0, "made": 1.0, "arrivals": [2.0]},
        {"event": "pass", "loader": 1, "made": 3.0, "arrivals": [5.0, 6.0]},
        {"event": "done"},
    ]
    assert [one.first_batch_s for one in passes_of(said)] == [1.0]
    assert [one.end for one in passes_of(said, 1)] == [6.0]


def test_a_plan_travels_as_text() -> None:
    plan = Plan("coprep", [Part(["counted", 60, 0.0, "file"], 2)], 8, options={"seed": 1})
    assert Plan.of(json.loads(json.dumps(plan.as_json()))) == plan


def test_sides_take_turns() -> None:
    taken: list[str] = []
    for first in (True, False):
        Setting(Path(), True, first).in_turn(lambda side: taken.append(side))
    assert taken == ["coprep", "torch", "torch", "coprep"]


def test_staging_is_that_of_all_streams() -> None:
    assert running.staging_bytes({"streams": [{"staging_bytes": 5}, {"staging_bytes": 7}]}) == 12
    assert running.staging_bytes({"streams": []}) == 0
    assert running.highest_mib([1 << 20, 3 << 20, 0]) == 3
    assert running.highest_mib([]) is None


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_case_without_measurements_says_so_at_each_bar(case: Case) -> None:
    found = case.figures([Once({}, [])])
    assert {one.verdict for one in found} == {"not measured"}
    assert {one.case for one in found} == {case.name}
    assert any(one.at_most is not None for one in found)


def test_the_report_has_all_values_as_json_and_each_figure_in_the_table(tmp_path: Path) -> None:
    case = one_pass.CASE
    runs = [Once({"cohort": 1.0, "validation": 1.0, "border": 2.0, "torch": 9.0}, [0.5]) for _ in range(2)]
    runs[1].values["validation"] = 2.0
    write(Results({case.name: runs}, [case], quick=False), tmp_path)
    (record,) = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert record == json.loads(json.dumps(as_json(case, runs)))
    verdicts = {one["what"]: (one["median"], one["verdict"]) for one in record["figures"]}
    assert verdicts["60 samples iterated over once: calls for each sample"] == (1.5, "NOT MET")
    page = (tmp_path / "report.md").read_text()
    for one in case.figures(runs):
        assert "| " + " | ".join(one.cells()) + " |" in page
    assert "others used 0.50 to 0.50 cores" in page


def test_the_package_of_many_files_can_be_imported_from_its_tree(tmp_path: Path) -> None:
    identity.write_package(tmp_path, 6)
    files = sorted(path.name for path in (tmp_path / "drop_in_package").glob("*.py"))
    assert len(files) == 6
    for name in files:
        compile((tmp_path / "drop_in_package" / name).read_text(), name, "exec")
    pytest.importorskip("torch")
    program = "from drop_in_package import dataset; d = dataset.Packaged(); print(len(d), d[3].tolist()[0] > 3)"
    said = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert said.stdout.split() == ["64", "True"], said.stderr


def test_calls_of_all_processes_are_counted(tmp_path: Path) -> None:
    calls = one_pass.counted(tmp_path, 3)
    assert calls != one_pass.counted(tmp_path, 3)
    program = (
        "from tests.benchmarks.drop_in.datasets import opened; "
        f"d = opened(['counted', 3, 0.0, {str(calls)!r}]); [d[i] for i in range(len(d))]"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert calls.stat().st_size == 6


def test_large_samples_of_the_ragged_set_are_apart() -> None:
    plan = ragged.plan(Setting(Path(), False), "coprep")
    name, samples, cost, large = json.loads(json.dumps(asdict(plan)))["parts"][0]["dataset"]
    data = opened([name, samples, 0.0, large])
    sizes = [len(data[index]) for index in range(len(data))]
    assert cost > 0
    assert [size for size in sizes if size != 100_000] == [1_000_000, 4_000_000, 10_000_000]
    assert [size != 100_000 for size in sizes].count(True) == 3
    # Each large sample lies in a batch of its own.
    assert len({index // plan.batch_size for index, size in enumerate(sizes) if size != 100_000}) == 3
