"""The page as text, and in a real browser: headless Chromium opens it from disk.

The browser test skips where there is no Chromium, unless ADAGP_BROWSER_TEST=required. Screenshots for people to look at are
written to runs/screenshots.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.program.report import charts, curves, page
from adagp.program.report.page import write_report
from adagp.program.report.run_groups import MethodRuns, chapters
from adagp.program.run.record import collect

pytestmark = pytest.mark.medium

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

NASTY = "</script><img src=x onerror=alert(1)>&\"'"
DESKTOP, PHONE = (1280, 900), (390, 844)
OpenPage = Callable[..., "Page"]


class _Text(HTMLParser):
    """Reads a page: its tags, and the charts' data."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.specs: list[dict[str, Any]] = []
        self._in_spec = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_spec = tag == "script" and ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self._in_spec:
            self.specs.append(json.loads(data))
            self._in_spec = False


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def test_the_page_holds_everything(study: Path, study_page: Path) -> None:
    content = study_page.read_text("utf-8")
    assert len(content) < 3_000_000
    text = _Text(content)
    titles = re.findall(r"<h3>(.*?)</h3>", content)
    for title in ("Accuracy against time", "Pareto plot", "Training loss", "Test accuracy", "Mean squared error"):
        assert title in titles
    assert len(text.specs) == 17
    assert all(spec["description"] for spec in text.specs)
    assert "adagp train --method bp --epochs 4 --seed 1" in content
    assert f"adagp report {study} --out {study_page}" in content
    assert "What is missing" not in content
    assert not re.search(r"(src|href)=\"?(https?:)?//", content)


def test_the_same_runs_give_the_same_page(study: Path, study_page: Path, tmp_path: Path) -> None:
    write_report([study], tmp_path / "again.html")
    again = (tmp_path / "again.html").read_text("utf-8")
    assert again.replace(str(tmp_path / "again.html"), str(study_page)) == study_page.read_text("utf-8")


def test_other_phases_of_the_pipelines(write_run: Any, tmp_path: Path) -> None:
    write_report([write_run("bp", method="bp")], tmp_path / "report.html", "GP,GP,BP")
    content = (tmp_path / "report.html").read_text("utf-8")
    assert "batches GP,GP,BP on 4 devices" in content
    assert "--phases GP,GP,BP</code>" in content


def test_the_curves_are_the_runs_own(study_page: Path) -> None:
    curve = values(_Text(study_page.read_text("utf-8")).specs[0])
    last = next(row for row in curve if row["group"] == "bp" and row["epoch"] == 4)
    assert last["value"] == pytest.approx(0.91)
    assert last["low"] == pytest.approx(0.91 - 4.303 * 0.01 / 3**0.5, abs=1e-4)
    assert (last["seconds"], last["seeds"]) == (pytest.approx(4.4), 3)


def test_a_dozen_long_runs_of_deep_models_stay_small(write_run: Any, tmp_path: Path) -> None:
    for seed in range(12):
        run = write_run(f"many/{seed}", epochs=90, lr=0.001 * (seed + 1))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            figures = {"cosine": 0.123456, "mse": 1.23456e-5, "mape": 7.65432, "cosine_previous": -0.0345678}
            row["sites"] = {f"features.block{place}.convolution": figures for place in range(60)}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "report.html"
    assert write_report([tmp_path / "many"], out) == 12
    assert out.stat().st_size < 3_000_000


def test_html_in_names_is_escaped(write_run: Any, rewrite: Any, tmp_path: Path) -> None:
    run = write_run(NASTY.replace("/", "∕"), method="adagp")
    figures = {"cosine": 0.5, "mse": 0.1, "mape": 1.0, "cosine_previous": 0.1}
    for place in range(4):
        rewrite(run, place, {"label": NASTY, "sites": {NASTY: figures}})
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"model": NASTY, "command": NASTY}))
    write_report([run], tmp_path / "report.html")
    text = _Text((tmp_path / "report.html").read_text("utf-8"))
    assert "img" not in text.tags
    assert any(row.get("site") == NASTY for spec in text.specs for row in values(spec))


def test_unfinished_runs_have_no_final_value_and_empty_ones_are_incomplete(write_run: Any, tmp_path: Path) -> None:
    begun = write_run("begun", method="bp", epochs=20, finished=False, done=1)
    empty = write_run("empty", method="skip", epochs=20)
    (empty / "metrics.jsonl").write_text("")
    write_report([begun, empty], tmp_path / "report.html")
    content = (tmp_path / "report.html").read_text("utf-8")
    assert content.count("–<small>4.50% after 1 of 20 epochs</small>") == 2  # of the method, and of the run
    assert "<strong>empty</strong>: Incomplete: metrics.jsonl holds no epoch." in content
    assert "incomplete: no epoch" in content
    assert "Pareto plot" not in content


def test_problems_of_broken_runs_are_listed(write_run: Any, rewrite: Any, tmp_path: Path) -> None:
    nothing, cut, odd = tmp_path / "nothing", write_run("cut", finished=False), write_run("odd", method="bp")
    nothing.mkdir()
    (cut / "metrics.jsonl").write_text((cut / "metrics.jsonl").read_text()[:-30])
    (cut / "sites.csv").unlink()
    for place in range(4):
        rewrite(
            odd, place, {"train_loss": float("nan"), "test_accuracy": None, "seconds": {}, "sites": {}, "batches": {}}
        )
    write_report([nothing, cut, odd], tmp_path / "report.html")
    content = (tmp_path / "report.html").read_text("utf-8")
    for words in (
        "<strong>nothing</strong>: The folder holds no files of a run.",
        "<strong>cut</strong>: Missing: sites.csv. Not finished",
        "<strong>odd</strong>: No finite train loss in epochs 1, 2, 3, 4.",
        "No run has a finished epoch yet: there is nothing to draw.",
        "# nothing: its command is not known",
    ):
        assert words in content


def test_wrong_input_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="^cannot write the report to 'report.pdf'; the name must end in .html.$"):
        write_report([tmp_path], Path("report.pdf"))
    with pytest.raises(OptionError, match="^cannot write the report to 'none/a.html': there is no folder 'none'.$"):
        write_report([tmp_path], Path("none/a.html"))
    with pytest.raises(OptionError, match="XP"):
        write_report([tmp_path], tmp_path / "a.html", "GP,XP")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = "^a report needs jinja2 and vl-convert-python; install them: pip install '.\\[report\\]'.$"
    with pytest.raises(OptionError, match=message):
        write_report([tmp_path], tmp_path / "a.html")


def column(page: "Page", table: str, place: int) -> list[str]:
    cells = page.locator(f"{table} tbody tr td:nth-child({place})").all()
    return [cell.inner_text().splitlines()[0] for cell in cells]


def _has_tooltip(page: "Page") -> bool:
    return page.locator("#vg-tooltip-element.visible").count() > 0


@pytest.mark.slow
def test_in_a_browser(study_page: Path, open_page: OpenPage, screenshots: Path) -> None:
    page = open_page(study_page, DESKTOP)
    assert page.evaluate("document.documentElement.dataset.drawn") == "17"
    charts = page.locator(".canvas").all()
    assert len(charts) == 17
    for chart in charts:
        drawn = chart.locator("svg .mark-line path, svg .mark-rect path, svg .mark-symbol path, svg .mark-rule line")
        assert drawn.count() > 2
        assert chart.get_attribute("aria-label")
    page.screenshot(path=screenshots / "desktop.png", full_page=True)

    phone = open_page(study_page, PHONE)
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    assert all(
        box["width"] <= PHONE[0] for chart in phone.locator(".canvas svg").all() if (box := chart.bounding_box())
    )
    phone.screenshot(path=screenshots / "phone.png", full_page=True)
    for chart in phone.locator(".canvas").all():
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        for share in (0.3, 0.6, 0.9):
            phone.mouse.move(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])
            tooltip = phone.locator("#vg-tooltip-element.visible").bounding_box() if _has_tooltip(phone) else None
            if tooltip is not None:
                assert 0 <= tooltip["x"] <= tooltip["x"] + tooltip["width"] <= PHONE[0], chart.get_attribute(
                    "aria-label"
                )


@pytest.mark.slow
def test_tables_sort_by_click_and_by_keyboard(study_page: Path, open_page: OpenPage) -> None:
    page = open_page(study_page, DESKTOP)
    table = "#chapter-1-runs table >> nth=-1 >>"
    heading = page.locator(f"{table} th:nth-child(5)")
    assert heading.get_attribute("aria-sort") is None
    heading.locator("button").click()
    rising = column(page, table, 5)
    assert rising == sorted(rising)
    assert rising[0] == "80.00%"
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, table, 5) == rising[::-1]
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator(f"{table} th:nth-child(1) button").focus()
    page.keyboard.press("Space")
    assert column(page, table, 1)[:2] == ["adagp-0", "adagp-1"]
    assert heading.get_attribute("aria-sort") is None


TIP = "#vg-tooltip-element"
MARKS = "svg .mark-rect path, svg .mark-symbol path, svg .mark-path path"
MIDDLES = """(places, most) => {
  const boxes = places.map((one) => one.getBoundingClientRect()).filter((box) => box.width && box.height);
  const step = Math.max(1, Math.floor(boxes.length / most));
  return boxes.filter((_, place) => place % step === 0).map((box) => [box.x + box.width / 2, box.y + box.height / 2]);
}"""


def told_by(page: "Page", chart: "Locator", most: int = 12) -> list[str]:
    """Return what is shown under the pointer at some of a chart's marks."""
    chart.scroll_into_view_if_needed()
    found = []
    for x, y in chart.locator(MARKS).evaluate_all(MIDDLES, most):
        page.mouse.move(x, y)
        page.wait_for_timeout(20)
        tip = page.locator(f"{TIP}.visible")
        if tip.count():
            found.append(tip.inner_text())
    page.mouse.move(0, 0)
    return found


@pytest.mark.slow
def test_every_chart_has_tooltips(study_page: Path, open_page: OpenPage) -> None:
    page = open_page(study_page, DESKTOP)
    charts = page.locator(".canvas").all()
    assert len(charts) == 17
    for chart in charts:
        told = told_by(page, chart)
        assert told, chart.get_attribute("id")
        for text in told:
            assert not re.search("undefined|NaN|null|Infinity", text), (chart.get_attribute("id"), text)
    curves = "".join(told_by(page, charts[0]))
    for label in ("bp", "adagp", "remap"):
        assert re.search(rf"method\s+{label}\b", curves), curves


@pytest.mark.slow
def test_one_run_of_one_epoch_is_visible_and_has_tooltips(write_run: Any, tmp_path: Path, open_page: OpenPage) -> None:
    write_report([write_run("one", epochs=1, method="bp")], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", DESKTOP)
    for number in (1, 2):
        chart = page.locator(f"#chapter-1-curves-chart-{number}")
        assert chart.locator("svg .mark-symbol path").first.get_attribute("opacity") in (None, "1")
        (text,) = set(told_by(page, chart))
        assert not re.search("undefined|NaN|null", text)
        labels = chart.locator("svg .role-axis-label text").all_text_contents()
        assert "1" in labels
        assert not any(re.fullmatch(r"[01]\.\d+", label) for label in labels[:3])
    seconds = page.locator("#chapter-1-time-chart-1 svg .role-axis-label text").all_text_contents()
    assert seconds[0].strip("0.") == ""
    assert len(seconds) > 3  # the one point has a time that can be read


@pytest.mark.slow
def test_every_table_sorts_by_every_column(study_page: Path, open_page: OpenPage) -> None:
    page = open_page(study_page, DESKTOP)
    for table in page.locator("table.sortable").all():
        for place, heading in enumerate(table.locator("th").all(), start=1):
            numeric = "number" in (heading.get_attribute("class") or "")
            read = f"(rows) => rows.map((row) => row.cells[{place - 1}].dataset.value)"
            for falling in (False, True):
                heading.locator("button").click()
                texts = [text for text in table.locator("tbody tr").evaluate_all(read) if text]
                values: list[Any] = [float(text) for text in texts] if numeric else texts
                assert values == sorted(values, reverse=falling)


@pytest.mark.slow
def test_sixteen_methods_have_separate_labels_and_distinct_colours(
    write_run: Any, tmp_path: Path, open_page: OpenPage
) -> None:
    for place in range(16):
        for seed in (0, 1):
            best = 0.9 + 0.0005 * place + 0.001 * seed
            write_run(f"{place}-{seed}", method="adagp", lr=0.001 * (place + 1), seed=seed, best=best, pace=0.1)
    write_report([tmp_path], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", DESKTOP)
    chart = page.locator("#chapter-1-time-chart-2")
    names = chart.locator("svg .mark-text.role-mark text").all()
    boxes = sorted((box["y"], box["height"]) for name in names if (box := name.bounding_box()))
    assert len(boxes) == 16
    assert all(lower[0] - upper[0] >= 0.8 * upper[1] for upper, lower in pairwise(boxes))
    colours = page.locator("#chapter-1-time .legend line").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('stroke'))"
    )
    assert len(set(colours)) == 16


@pytest.mark.slow
def test_tooltips_and_choices(study_page: Path, open_page: OpenPage) -> None:
    page = open_page(study_page, DESKTOP)
    page.locator("#chapter-1-parts svg .mark-rect path").first.hover()
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert "seconds" in tip.inner_text()
    cell = page.locator("#chapter-1-sites-chart-1 svg .mark-rect path").first
    select = page.locator("#chapter-1-sites-of")
    assert select.locator("option").all_inner_texts() == ["adagp", "remap"]
    select.select_option("remap")
    cell.hover()
    page.wait_for_function("document.getElementById('vg-tooltip-element').innerText.includes('remap')")


@pytest.mark.slow
def test_light_and_dark_and_print(study_page: Path, open_page: OpenPage, screenshots: Path) -> None:
    page = open_page(study_page, DESKTOP, "dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.canvas svg .role-axis-label text')).fill"
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(20, 24, 29)", "rgb(230, 234, 238)")
    page.screenshot(path=screenshots / "dark.png", full_page=True)
    toggle = page.locator("#theme")
    assert toggle.inner_text() == "Light"
    toggle.focus()
    page.keyboard.press("Enter")
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(255, 255, 255)", "rgb(28, 33, 39)")
    toggle.click()
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not toggle.is_visible()
    page.set_viewport_size({"width": 703, "height": 900})  # the text on A4
    charts = "[...document.querySelectorAll('.chart:not(.wide)')].slice(0, 2)"
    left, right = page.evaluate(
        f"{charts}.map(each => [each.getBoundingClientRect().top, each.getBoundingClientRect().right])"
    )
    assert left[0] == right[0], "two charts in a line"
    assert left[1] < right[1] <= 703


@pytest.mark.slow
def test_html_in_names_is_shown_as_text(write_run: Any, rewrite: Any, tmp_path: Path, open_page: OpenPage) -> None:
    run = write_run("<b>bold</b>")
    for place in range(4):
        rewrite(run, place, {"label": NASTY, "sites": {NASTY: {"cosine": 0.5, "mse": 0.1, "mape": 1.0}}})
    write_report([run], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", DESKTOP)
    page.set_default_timeout(10_000)
    assert page.locator("main b, main img").count() == 0
    page.locator("#chapter-1-sites-chart-1 svg .mark-rect path").first.hover()
    page.locator("#vg-tooltip-element").wait_for(state="visible")
    assert page.locator("#vg-tooltip-element img").count() == 0
    assert NASTY in page.locator("#vg-tooltip-element").inner_text()


@pytest.mark.slow
def test_broken_runs_are_drawn_without_errors(
    write_run: Any, rewrite: Any, tmp_path: Path, open_page: OpenPage
) -> None:
    (tmp_path / "nothing").mkdir()
    odd = write_run("odd")
    for place in range(4):
        rewrite(
            odd, place, {"train_loss": float("nan"), "test_accuracy": None, "seconds": {}, "sites": {}, "batches": {}}
        )
    runs = [tmp_path / "nothing", odd, write_run("begun", method="bp", finished=False, done=1)]
    write_report(runs, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", PHONE)
    assert "What is missing" in page.locator(".notice").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]


@given(st.lists(st.none() | st.floats(-10, 10), max_size=300), st.integers(1, 20))
def test_thinned_curves_keep_the_extremes_of_every_pixel(values: list[float | None], pixels: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "MOST_PIXELS", pixels)
        drawn = curves.thinned(values)
    present = [index for index, value in enumerate(values) if value is not None]
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(present)
    assert len(drawn) <= 2 * pixels + 2
    if len(present) <= 2 * pixels:
        assert drawn == present
        return
    stride = -(-len(present) // pixels)
    for begin in range(0, len(present), stride):
        block = [values[index] or 0.0 for index in present[begin : begin + stride]]
        kept = [values[index] or 0.0 for index in drawn if index in present[begin : begin + stride]]
        assert (min(block), max(block)) == (min(kept), max(kept))
    assert {present[0], present[-1]} <= set(drawn)


def test_the_digest_of_the_plotting_library() -> None:
    """So the copy in the cache is used, and no other text."""
    assert hashlib.sha256(page.bundle_library().encode()).hexdigest() == page.LIBRARY_DIGEST


def test_the_page_of_a_long_run_stays_small(write_run: Any, tmp_path: Path) -> None:
    """As large as that of a run of 2,000 epochs, though with the extremes of all 12,000."""
    run = write_run("long", epochs=12_000, done=12_000)
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[7000]["train_loss"] = 123.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (chapter,) = chapters(collect([run]))
    (loss, _) = curves.over_epochs(chapter, "#of")
    values = [row["value"] for row in loss.spec["data"]["values"]]
    assert 1000 < len(values) <= 2002
    assert max(values) == 123.0
    shades = loss.spec["layer"][0]["data"]["values"]
    assert len(shades) <= 1000
    assert (shades[0]["left"], shades[-1]["right"]) == (0.5, 12_000.5)
    assert all(row["right"] == after["left"] for row, after in pairwise(shades))
    maps = charts.heat_maps(chapter, "#of")
    assert all(len(row["value"]) <= charts.MOST_COLUMNS for chart in maps for row in chart.spec["data"]["values"])


def test_estimates_are_made_only_for_points_that_are_drawn(write_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (chapter,) = chapters(collect([write_run("long", epochs=500, done=500)]))
    made: list[int] = []
    at_epoch = MethodRuns.at_epoch

    def counted(runs: MethodRuns, index: int, *arguments: Any) -> Any:
        made.append(index)
        return at_epoch(runs, index, *arguments)

    monkeypatch.setattr(MethodRuns, "at_epoch", counted)
    monkeypatch.setattr(curves, "MOST_PIXELS", 20)
    drawn = [len(chart.spec["data"]["values"]) for chart in curves.over_epochs(chapter, "#of")]
    assert len(made) == sum(drawn) <= 2 * (2 * 20 + 2)
