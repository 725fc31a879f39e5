"""The demo in a real browser, on a tiny model: what a visitor clicks on, sees, and gets told. Needs Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import smolvlm_model, tiny_smolvlm
from toys import language_part

from mmspec.checkpoints import save_drafter
from mmspec.demos import app
from mmspec.demos.studio import Studio
from mmspec.drafters.independent import Independent

pytest.importorskip("gradio")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")]
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page whose drafter is the target's own language part: often right, and wrong where the picture matters."""
    import mmspec

    folder = tiny_smolvlm(tmp_path_factory.mktemp("target"))
    drafter = tmp_path_factory.mktemp("drafter") / "spd"
    save_drafter(Independent(language_part(smolvlm_model()), length=3), drafter, mmspec.load(folder, "none").target)
    blocks = app.page(Studio(str(folder), [str(drafter), "prompt-lookup"]))
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **app.LAUNCH)
    yield address
    blocks.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=[(1280, 1000), (390, 844)], ids=["desk", "phone"])
def page(browser: Any, url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    width, height = request.param
    shown = browser.new_page(viewport={"width": width, "height": height})
    shown.set_default_timeout(PATIENCE)
    shown.goto(url)
    yield shown
    shown.close()


def test_an_example_is_raced_replayed_and_explained(page: Any, tmp_path: Path) -> None:
    page.locator("#mm-examples img").first.click()
    page.locator("#mm-message", has_text="Now ask").wait_for()
    page.locator("#mm-picture img").wait_for()
    assert page.locator("#mm-question textarea").input_value()
    page.get_by_label("Most tokens").first.fill("24")
    page.get_by_label("Draft size").first.click()
    page.get_by_role("option", name="4", exact=True).click()  # auto depends on clocks
    page.locator("#mm-race").click()
    page.locator("#mm-message", has_text="see mmspec bench").wait_for()
    page.screenshot(path=tmp_path / "race.png", full_page=True)
    slow, fast = (page.locator(f"#{name} .mm-text").inner_text() for name in ("mm-slow", "mm-fast"))
    assert slow == fast != ""
    drafted = page.locator("#mm-fast .mm-drafted").first
    assert "underline" in drafted.evaluate("span => getComputedStyle(span).textDecorationLine")
    assert page.locator("#mm-slow .mm-drafted").count() == 0
    cards = page.locator("#mm-cards").inner_text()
    assert "yes, lossless" in cards
    assert "..." not in cards
    assert page.locator("#mm-chart rect").count() > 1
    before = page.locator("#mm-tree").inner_html()
    assert "accepted" in before
    page.locator("#mm-round input[type=number]").fill("1")
    page.locator("#mm-round input[type=number]").press("Enter")
    page.wait_for_function("before => document.querySelector('#mm-tree').innerHTML != before", arg=before)
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")  # nothing hangs over the edge


def test_a_bad_upload_is_told_in_the_page(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    page.locator("input[type=file]").first.set_input_files(bad)
    told = page.locator("#mm-message [role=alert]")
    told.wait_for()
    assert "not a readable image" in told.inner_text()
    page.locator("#mm-race").click()
    page.locator("#mm-message", has_text="the question is empty").wait_for()
