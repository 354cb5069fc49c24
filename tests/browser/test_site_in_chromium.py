"""The index of a site in a real browser: its links work, nothing is asked of the network, axe finds nothing."""

import shutil
from pathlib import Path

import pytest

from report_inputs import report_data
from specprefill_repro.bundles.contents import Report, bundle_files
from specprefill_repro.publish.folder import Folder
from specprefill_repro.publish.site import new_files
from specprefill_repro.report.build import render_report
from specprefill_repro.trials.table import Trials

pytestmark = pytest.mark.browser
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Folder(tmp_path_factory.mktemp("site"))
    for situation, more in (("gain", {}), ("loss", {"synthetic": True, "natural": False})):
        data = report_data(situation, blocks=1, **more)
        report = Report(render_report(data).encode(), data, Trials.of_records(data.records), data.receipts, {})
        folder.write(new_files(bundle_files(report, {}), folder.read())[1], "")
    return folder.path / "index.html"


def test_the_index_opens_its_links_work_and_axe_finds_no_violation(site: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed; on Debian: apt-get install chromium")
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, width in (("light", 1280), ("dark", 390)):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(site.as_uri())
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
            page.close()
        page = browser.new_page()
        page.goto(site.as_uri())
        links = page.locator("tbody th a")
        assert links.count() == 2
        for number in range(2):
            address = links.nth(number).get_attribute("href")
            links.nth(number).click()
            assert page.url.endswith(address) and page.locator("#answer").is_visible()
            page.go_back()
        for bundle in page.locator("td a").all():
            assert (site.parent / (bundle.get_attribute("href") or "")).is_file()
        browser.close()
