"""The page in a real browser: no accessibility violation, no sideways scrolling, printable, works by keyboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report_inputs import report_data
from specprefill_repro.report.build import render_report

pytestmark = pytest.mark.browser
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SITUATIONS = ("gain", "invalid", "not run")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox, since it renders our own pages, often inside a container that has no user namespaces.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for situation in SITUATIONS:
        path = folder / f"{situation.replace(' ', '-')}.html"
        path.write_text(render_report(report_data(situation, blocks=1)))
        made[situation] = path.as_uri()
    hostile = folder / "hostile.html"
    words = {"title": "w" * 190, "question": "w" * 900, "answer_text": "w" * 500}
    hostile.write_text(render_report(report_data("gain", blocks=1, **words)))
    return {**made, "hostile": hostile.as_uri()}


@pytest.mark.parametrize(
    ("situation", "scheme", "width"),
    [
        ("gain", "light", 1280),
        ("gain", "dark", 1280),
        ("gain", "light", 390),
        ("gain", "dark", 390),
        ("invalid", "dark", 1280),
        ("not run", "light", 390),
    ],
)
def test_axe_finds_no_violation(
    browser: Any, addresses: dict[str, str], situation: str, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page.goto(addresses[situation])
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.close()


@pytest.mark.parametrize("situation", [*SITUATIONS, "hostile"])
def test_a_phone_never_scrolls_the_page_sideways(browser: Any, addresses: dict[str, str], situation: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(addresses[situation])
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_the_table_of_what_ran_fits_a_window_of_1280(browser: Any, addresses: dict[str, str]) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(addresses["gain"])
    place = page.locator("[aria-label='Table: evidence by arm']")
    assert place.evaluate("place => place.scrollWidth - place.clientWidth") <= 0
    page.close()


def test_a_number_of_the_first_screen_leads_over_its_pairs_to_the_records(
    browser: Any, addresses: dict[str, str]
) -> None:
    page = browser.new_page()
    page.goto(addresses["gain"])
    for link in page.locator("header dl.facts a, header .verdicts td[data-name=Measured] a").all():
        target = page.locator(f"[id='{link.get_attribute('href')[1:]}']")
        assert target.count() == 1
    page.locator("header dl.facts a").first.click()
    pairs = page.locator("tbody:target")
    assert pairs.is_visible()
    pairs.locator("td a").first.click()
    assert page.locator("tr:target").is_visible()
    page.close()


def test_print_is_never_smaller_than_7_5_points_and_nothing_is_cut_off(browser: Any, addresses: dict[str, str]) -> None:
    # A4 without its margins, in pixels of CSS.
    page = browser.new_page(viewport={"width": 680, "height": 1000})
    page.goto(addresses["gain"])
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    points = page.evaluate(
        """Math.min(...[...document.querySelectorAll('th, td, p, li, dd, caption')]
            .filter(each => each.getClientRects().length)
            .map(each => parseFloat(getComputedStyle(each).fontSize) * 0.75))"""
    )
    assert points >= 7.49
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    page.close()


def test_nothing_is_requested_and_nothing_complains(browser: Any, addresses: dict[str, str]) -> None:
    page = browser.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(addresses["gain"])
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert messages == []
    page.close()


def test_the_page_is_whole_without_script(browser: Any, addresses: dict[str, str]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(addresses["gain"])
    assert page.locator("h1").is_visible() and page.locator("figure svg").first.is_visible()
    context.close()


def test_the_first_key_leads_past_the_question_to_the_answer(browser: Any, addresses: dict[str, str]) -> None:
    page = browser.new_page()
    page.goto(addresses["gain"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.close()


def test_it_prints(browser: Any, addresses: dict[str, str], tmp_path: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(addresses["gain"])
    printed = page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_chart_text_stays_inside_the_drawing(browser: Any, addresses: dict[str, str]) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(addresses["gain"])
    outside = page.evaluate(
        """[...document.querySelectorAll('figure svg text')].filter(text => {
            const inner = text.getBoundingClientRect(), outer = text.closest('figure').getBoundingClientRect();
            return inner.left < outer.left - 4 || inner.right > outer.right + 4;
        }).map(text => text.textContent)"""
    )
    assert outside == []
    page.close()
