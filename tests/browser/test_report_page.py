"""The page in a real Chromium, from disk: drawn, silent, dark when asked, and hostile names are text.

A missing Chromium is a failure, not a skip: nobody else looks at the page.
"""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.report import write_report
from playwright.sync_api import sync_playwright
from tests.rows import write_run
from tests.unit.panels.drawn import HOSTILE, small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

OVERVIEW = Path(__file__).parents[2] / "dashboards" / "overview.toml"
READY = "document.documentElement.dataset.ready"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_run(folder / "exact", {"synthetic": HOSTILE[2]}, **small(steps=True)),
        write_run(folder / "native", {"recording": {"scenario": HOSTILE[0]}}, **small(steps=False)),
        write_run(folder / "empty"),
    ]
    write_report(runs, folder / "report.html")
    return folder / "report.html"


class Opened:
    """A page that is drawn, with everything it said and asked for on the way."""

    def __init__(self, browser: Browser, report: Path, **context: Any) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(report.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000, state="attached")

    def until(self, expression: str, seconds: float = 20) -> bool:
        """Whether it becomes true in time; the policy forbids the eval of wait_for_function."""
        end = time.monotonic() + seconds
        while not (found := bool(self.page.evaluate(expression))) and time.monotonic() < end:
            self.page.wait_for_timeout(50)
        return found


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    page = Opened(browser, report, viewport={"width": 1280, "height": 900})
    yield page
    page.page.context.close()


def test_every_figure_is_drawn_without_a_word_or_a_request(opened: Opened, report: Path) -> None:
    assert opened.page.evaluate(READY) == "drawn"
    figures = opened.page.locator(".figure")
    assert figures.count() > 10
    assert (
        opened.page.locator(
            ".figure .main-svg .xaxislayer-above, .figure .main-svg .xaxislayer-below"
        ).count()
        > 0
    )
    for number in range(figures.count()):
        assert figures.nth(number).locator("svg.main-svg").count() > 0
        assert figures.nth(number).locator(".trace").count() > 0
    assert opened.said == []
    assert [
        url for url in opened.asked if url != report.as_uri() and not url.startswith(("data:", "blob:"))
    ] == []


def test_hostile_names_are_text_in_titles_tables_and_figures(opened: Opened) -> None:
    page = opened.page
    assert page.locator("h1.run-title", has_text=HOSTILE[0]).count() == 1
    assert page.locator("td", has_text=HOSTILE[0]).count() > 0
    drawn = page.evaluate(
        "[...document.querySelectorAll('.figure svg text')].map((text) => text.textContent).join('\\n')"
    )
    for hostile in HOSTILE[:3]:
        assert hostile in drawn
    assert "<b>bold</b>&lt;%{x}\\u202e\\u001b[31m" in drawn
    assert page.locator("img, iframe").count() == 0
    assert (
        page.evaluate(
            "[...document.scripts].filter((script) => script.textContent.startsWith('alert')).length"
        )
        == 0
    )


def test_hostile_names_are_text_when_hovered(opened: Opened) -> None:
    page = opened.page
    place = page.evaluate(
        "async () => { const hostile = (row) => String(row[0]).includes('script');"
        " const figures = [...document.querySelectorAll('.figure')];"
        " const has = (t) => t.customdata?.some(hostile);"
        " const place = figures.findIndex((at) => at.data?.some(has));"
        " const at = figures[place]; at.scrollIntoView();"
        " const found = at.data.findIndex(has);"
        " const point = at.data[found].customdata.findIndex(hostile);"
        " Plotly.Fx.hover(at, [{ curveNumber: found, pointNumber: point }]); return place; }"
    )
    text = page.locator(".hoverlayer").nth(place).text_content() or ""
    assert "</script><script>alert(1)</script>" in text
    assert opened.said == []


def test_dark_mode_changes_page_and_figures_and_follows_the_reader(opened: Opened) -> None:
    page = opened.page
    ink = "getComputedStyle(document.querySelector('.figure svg .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = (page.evaluate(ink), page.evaluate(paper))
    page.emulate_media(color_scheme="dark")
    assert opened.until(f"{ink} !== '{light[0]}'")
    dark = (page.evaluate(ink), page.evaluate(paper))
    assert dark == ("rgb(213, 219, 229)", "rgb(19, 25, 34)")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.until(f"{ink} === '{light[0]}'")


def test_a_tall_figure_opens_on_demand(opened: Opened) -> None:
    frame = opened.page.locator(".frame.tall.cut").first
    before = frame.bounding_box()
    frame.locator("button.more").click()
    after = opened.page.locator(".frame.tall.whole").first.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > before["height"] + 200


def test_empty_panels_are_sentences(opened: Opened) -> None:
    """Every panel of every run is a figure or a sentence, never both and never neither."""
    texts = opened.page.locator(".empty").all_text_contents()
    panels = len(tomllib.loads(OVERVIEW.read_text(encoding="utf-8"))["panel"])
    assert len(texts) + opened.page.locator(".figure").count() == 3 * panels
    assert len(texts) >= panels, "a run without rows has sentences alone"
    assert all(text.strip() for text in texts)
    assert sum("would fill" in text for text in texts) > 1


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, report: Path, width: int) -> None:
    opened = Opened(browser, report, viewport={"width": width, "height": 800})
    assert opened.page.evaluate(OVERFLOW) == 0
    opened.page.context.close()


def test_without_scripts_words_and_tables_are_there(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("noscript").first.is_visible()
    assert page.locator("table tbody tr").count() > 20
    context.close()


def test_it_prints(browser: Browser, report: Path, tmp_path: Path) -> None:
    opened = Opened(browser, report)
    opened.page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert opened.said == []
    opened.page.context.close()
