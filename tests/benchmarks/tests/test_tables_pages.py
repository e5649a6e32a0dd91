"""Tests the pages of complete tables that the benchmarks leave for the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.drop_in import one_pass
from tests.benchmarks.drop_in.case import Once
from tests.benchmarks.drop_in.report import Results as DropInResults
from tests.benchmarks.gpu import report as gpu
from tests.benchmarks.loaders import report as loaders
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.loaders.records import Spread
from tests.benchmarks.loaders.tables import Section, TablesPage
from tests.benchmarks.native_data import report as native_data
from tests.benchmarks.native_data.running import Plan, Run
from tests.benchmarks.slow_samples import report as slow_samples
from tests.benchmarks.slow_samples.cost import CostResults
from tests.benchmarks.slow_samples.forms import FormsResults
from tests.benchmarks.slow_samples.pairs import PairRecord
from tests.benchmarks.storage import report as storage
from tests.benchmarks.what_if import __main__ as what_if

DOCS = Path(__file__).parents[3] / "docs" / "results"
DATA = Dataset(Path("images"), [], 0)
PAIR = PairRecord("cost", "costs measured", "images", 99, 100, Spread.of([0.99]), Spread.of([1.0]), 3, True)
SETTING = what_if.Setting("cache", "cache 0 %", 0)


def row(predicted_s: float) -> what_if.Row:
    return what_if.Row(SETTING, predicted_s, 1.0, 0.05, [0.8, 0.19], [0.93, 0.06], 0.01)


def slow(cost: CostResults | None = None, forms: FormsResults | None = None) -> slow_samples.Results:
    return slow_samples.Results(DATA, [], repeat=3, quick=False, cost=cost, forms=forms)


def test_a_page_names_its_command_and_has_each_table_under_its_heading(tmp_path: Path) -> None:
    table = ["loader", "images/s"], [["limit", "1,145"], ["coprep", "1,154"]]
    page = TablesPage("loaders", "Against others", "make bench", "2 cores.", [Section("Rates", [table])])
    written = page.write(tmp_path)
    assert written == tmp_path / "tables" / "loaders.md"
    assert written.read_text() == (
        "# Against others: complete tables\n\n"
        "`make bench` made these tables. [Against others](../loaders.md) explains them.\n\n"
        "2 cores.\n\n"
        "## Rates\n\n"
        "| loader | images/s |\n| --- | --: |\n| limit | 1,145 |\n| coprep | 1,154 |\n"
    )


@pytest.mark.parametrize(
    ("name", "title"),
    [
        *((name, page.title) for name, page in slow_samples.PAGES.items()),
        *(
            (page.name, page.title)
            for page in (
                loaders.page(loaders.Results(DATA, 8)),
                DropInResults({one_pass.CASE.name: [Once({}, [])]}, [one_pass.CASE], quick=False).page(),
                what_if.page([row(1.0)], 3),
                gpu.page(gpu.NOT_MEASURED),
                storage.Results(DATA, [], {}, quick=False).page(),
                native_data.Results({Plan("tokens", "coprep", 1): [Run(1, 1, 1, 0)]}, {}, 5, quick=False).page(),
            )
        ),
    ],
)
def test_a_page_has_the_name_and_the_title_of_the_page_that_explains_it(name: str, title: str) -> None:
    assert (DOCS / f"{name}.md").read_text().startswith(f"# {title}\n")
    assert (DOCS / "tables" / f"{name}.md").read_text().startswith(f"# {title}: complete tables\n")


def test_a_part_that_was_not_measured_has_no_page() -> None:
    assert slow_samples.pages(slow()) == []
    (page,) = slow_samples.pages(slow(cost=CostResults([PAIR])))
    assert (page.name, page.command) == ("costs", "make bench-slow ONLY=cost,watch")


def test_bars_lie_on_the_page_of_their_part_and_in_one_table_of_the_report() -> None:
    results = slow(cost=CostResults([PAIR]), forms=FormsResults(DATA, ["slowed"]))
    (page,) = slow_samples.pages(results)
    header, bars = slow_samples.tables(results)[-1]
    assert header[0] == "against the bar"
    assert any("slower by costs measured" in bar[0] for bar in bars) and any("storage slowed" in bar[0] for bar in bars)
    assert "slower by costs measured" in page.text() and "storage slowed" not in page.text()


def test_a_prediction_that_is_too_far_off_is_marked_in_the_table_and_counted() -> None:
    text = what_if.page([row(1.05), row(1.2)], 3).text()
    assert "| cache 0 % | 1.050 | 1.000 | 1.05 | 80 %, 19 % | 93 %, 6 % |" in text
    assert "| cache 0 % | 1.200 | 1.000 | **1.20** | 80 %, 19 % | 93 %, 6 % |" in text
    assert "3 rounds; others used up to 0.01 cores" in text and "within 10%: 1 of 2 (NOT MET)" in text
