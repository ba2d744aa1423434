"""The page as a browser shows it: on a desktop and on a phone, in light and in dark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.report.drawings import figures_of
from ablate.report.page import write_page
from tests.report import example
from tests.report.browser import Page, browser, executable

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
DESKTOP, PHONE = (1280, 800), (375, 812)
CONTRAST = """
(() => {
  const channel = value => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const colour = text => text.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  let least = 21;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, script, style") || !element.getClientRects().length) continue;
    const [a, b] = [light(colour(getComputedStyle(element).color)), light(behind(element))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("browser")
    analysis, loaded = example.analysis(), example.loaded(root)
    return write_page(analysis, figures_of(analysis, loaded), loaded, root / "results" / "made").as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if executable() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_shows_without_a_complaint_or_a_request(page: Page, url: str, size: tuple[int, int], dark: bool, tmp_path: Path) -> None:
    page.show(url, *size, dark=dark)
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert page.requests() == [url]
    assert page.complaints() == []
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.ask(CONTRAST) >= 4.5


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_verdicts_and_forest_are_on_the_first_screen(page: Page, url: str, size: tuple[int, int]) -> None:
    page.show(url, *size)
    ends = page.ask(
        "[...document.querySelectorAll('h1, .answer, .banners.red, .verdicts, .first figure')]"
        ".filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect().bottom)"
    )
    assert len(ends) == 5
    assert max(ends) <= size[1]


@pytest.mark.parametrize(("size", "shown"), [(DESKTOP, "figure-forest"), (PHONE, "figure-forest-narrow")], ids=["desktop", "phone"])
def test_one_forest_is_shown(page: Page, url: str, size: tuple[int, int], shown: str) -> None:
    page.show(url, *size)
    visible = "[...document.querySelectorAll('.first figure')].filter(e => e.getClientRects().length).map(e => e.id)"
    assert page.ask(visible) == [shown]


def test_a_click_on_a_column_sorts_the_runs(page: Page, url: str) -> None:
    page.show(url, *DESKTOP)
    losses = (
        "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[8].querySelector('data')?.value ?? null).map(Number)"
    )
    page.ask("[...document.querySelectorAll('.sortable th button')].find(b => b.textContent.startsWith('loss')).click()")
    numbers = [value for value in page.ask(losses) if value]
    assert len(numbers) > 60
    assert numbers == sorted(numbers)
    page.ask("[...document.querySelectorAll('.sortable th button')].find(b => b.textContent.startsWith('loss')).click()")
    assert [value for value in page.ask(losses) if value] == sorted(numbers, reverse=True)


def test_print_shows_every_run_on_white(page: Page, url: str) -> None:
    page.show(url, *DESKTOP, dark=True, media="print")
    assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.ask("getComputedStyle(document.querySelector('.sortable')).maxHeight") == "none"
    assert page.ask(CONTRAST) >= 4.5
