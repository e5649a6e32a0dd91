"""Tests the page of `coprep analyze` in a browser. Pictures are saved in $COPREP_PICTURES, if that is set."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the package websockets is not installed")
from browser import Page, browser, chromium  # noqa: E402

REPORT = Path(__file__).parents[2] / "support" / "analyze_report.json"
PROGRAM = chromium()
LOOKS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]
GROUND = "getComputedStyle(document.body).backgroundColor"

needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads(REPORT.read_text())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / "report.html"
    analyze("--html", made)
    return made


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    assert PROGRAM
    with browser(PROGRAM) as tab:
        yield tab


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def page(request: pytest.FixtureRequest, tab: Page, file: Path) -> Page:
    tab.open(file, *request.param)
    if folder := os.environ.get("COPREP_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.picture().save(Path(folder) / f"{request.param[0]}-{request.param[1]}.png", optimize=True)
    return tab


def analyze(*args: object, saved: Path = REPORT) -> str:
    command = ["coprep", "analyze", "--render", str(saved), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def texts(page: Page, selector: str) -> list[str]:
    return page.value(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def boxes(page: Page, selector: str, within: str = "document") -> list[dict[str, Any]]:
    """Returns the places of elements, their paint and their text."""
    return page.value(f"""[...{within}.querySelectorAll({json.dumps(selector)})].map(e => {{
        const box = e.getBoundingClientRect(), style = getComputedStyle(e);
        return {{x: box.x, y: box.y, width: box.width, height: box.height, right: box.right, bottom: box.bottom,
                 fill: style.fill, stroke: style.stroke, text: e.textContent, seen: style.visibility == "visible"}};
    }})""")


def figure(series: dict[str, Any]) -> str:
    return f"document.getElementById({json.dumps(series['key'])})"


def luminance(colour: str) -> float:
    """Returns the relative luminance by the definition of WCAG."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_a_saved_page_is_rendered_as_its_report_is(file: Path, tmp_path: Path) -> None:
    assert analyze(saved=file) == analyze()
    assert json.loads(analyze("--json", saved=file)) == json.loads(REPORT.read_text())
    analyze("--html", tmp_path / "again.html", saved=file)
    assert (tmp_path / "again.html").read_bytes() == file.read_bytes()


def test_without_anything_to_analyse_it_says_what_is_missing() -> None:
    ended = subprocess.run(["coprep", "analyze"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "name a folder of images, or a command after --" in ended.stderr


@needs_browser
def test_it_asks_for_nothing_and_complains_of_nothing(page: Page, file: Path) -> None:
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
    assert page.complaints == []


@needs_browser
def test_what_would_be_refused_is_refused(tab: Page, file: Path, tmp_path: Path) -> None:
    """The test for requests means something only if a page that makes some is noticed."""
    bad = tmp_path / "bad.html"
    evil = '<img src="http://127.0.0.1:9/"><script>document.title = "run"</script></body>'
    bad.write_text(file.read_text().replace("</body>", evil))
    tab.open(bad, 1280)
    assert tab.value("document.title") != "run"
    assert len(tab.complaints) >= 2


@needs_browser
def test_names_stand_as_they_are(page: Page, report: dict[str, Any]) -> None:
    assert texts(page, ".eyebrow span") == [report["dataset"]["name"].replace("\x1b", "\ufffd")]
    assert page.value("document.querySelectorAll('.eyebrow b, dd b').length") == 0
    assert page.value("[...document.scripts].map(s => s.type)") == ["application/json"]
    assert page.value("JSON.parse(document.getElementById('report').textContent)") == report


@needs_browser
def test_every_chart_is_drawn(page: Page, report: dict[str, Any]) -> None:
    ground = page.value(GROUND)
    for series in report["series"]:
        marks = boxes(page, ".mark", figure(series))
        assert marks, series["key"]
        for mark in marks:
            is_line = mark["fill"] == "none"
            paint = mark["stroke"] if is_line else mark["fill"]
            assert mark["width"] > 1 and (is_line or mark["height"] > 0.2), (series["key"], mark)
            assert contrast(paint, ground) >= 3, (series["key"], mark)


@needs_browser
def test_bars_are_as_high_as_their_epochs(page: Page, report: dict[str, Any]) -> None:
    for series in (series for series in report["series"] if series["shape"] == "bars"):
        heights: dict[float, float] = {}
        for mark in boxes(page, "rect.mark", figure(series)):
            heights[mark["x"]] = heights.get(mark["x"], 0) + mark["height"]
        epochs = [point["outcome"]["epoch_s"] for point in series["lines"][0]["points"]]
        drawn = [heights[x] for x in sorted(heights)]
        assert [height / max(drawn) for height in drawn] == pytest.approx(
            [epoch / max(epochs) for epoch in epochs], abs=0.01
        )


@needs_browser
def test_present_settings_and_measured_epochs_are_marked(page: Page, report: dict[str, Any]) -> None:
    for series in report["series"]:
        (drawing,) = boxes(page, "svg", figure(series))
        (now,) = boxes(page, ".now", figure(series))
        assert now["seen"] and now["height"] > 5
        assert drawing["x"] <= now["x"] and now["right"] <= drawing["right"]
        points = [point for line in series["lines"] for point in line["points"]]
        measured = [point for point in points if point["measured_epoch_s"] is not None]
        assert len(boxes(page, ".measured", figure(series))) == len(measured), series["key"]
    assert len(boxes(page, ".knee")) == 1


@needs_browser
def test_nothing_is_cut_off_and_no_labels_meet(page: Page, report: dict[str, Any]) -> None:
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert len([box for box in boxes(page, "figure table") if box["height"] > 20]) >= len(report["series"])
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    for series in report["series"]:
        (drawing,) = boxes(page, "svg", figure(series))
        # Texts that appear only under the pointer must fit as well.
        for text in boxes(page, "svg text", figure(series)):
            assert text["x"] >= drawing["x"] - 1 and text["right"] <= drawing["right"] + 1, (series["key"], text)
        ticks = boxes(page, ".tick", figure(series))
        for a in ticks:
            for b in ticks:
                beside = a["right"] <= b["x"] or b["right"] <= a["x"]
                assert a is b or beside or a["bottom"] <= b["y"] + 2 or b["bottom"] <= a["y"] + 2, (a, b)


@needs_browser
def test_it_can_be_read(page: Page) -> None:
    ground = page.value(GROUND)
    for selector in ("body", ".quiet", ".lead", "dt", "summary", "figcaption p", ".advice .gain"):
        colour = page.value(f"getComputedStyle(document.querySelector({json.dumps(selector)})).color")
        assert contrast(colour, ground) >= 4.5, selector
    sizes = page.value("[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)")
    assert min(sizes) >= 10


@needs_browser
def test_colours_follow_the_system(tab: Page, file: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        tab.open(file, 1280, scheme)
        grounds.append(luminance(tab.value(GROUND)))
    assert grounds[0] > 0.9 and grounds[1] < 0.02


@needs_browser
def test_pointing_at_a_bar_shows_what_it_says(tab: Page, file: Path) -> None:
    tab.open(file, 1280)
    says = "#cpus .at-present .says", "#cpus .point:not(.at-present) .says"
    tab.value("document.getElementById('cpus').scrollIntoView()")
    assert [box["seen"] for box in boxes(tab, says[0])] == [True]
    assert not any(box["seen"] for box in boxes(tab, says[1]))
    bar = boxes(tab, "#cpus .point:not(.at-present) .hit")[0]
    tab.point_at(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    assert [box["seen"] for box in boxes(tab, says[0])] == [False]
    assert [box["text"] for box in boxes(tab, says[1]) if box["seen"]] == [boxes(tab, says[1])[0]["text"]]


@needs_browser
def test_on_paper_all_numbers_are_there(tab: Page, file: Path, report: dict[str, Any]) -> None:
    tab.open(file, 718, media="print")
    rows = boxes(tab, "figure tbody tr")
    assert len(rows) == sum(len(line["points"]) for series in report["series"] for line in series["lines"])
    assert all(row["height"] > 5 for row in rows)
    assert all(table["right"] <= 718 for table in boxes(tab, "table"))
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
