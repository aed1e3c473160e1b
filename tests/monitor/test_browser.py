"""The pages in a real Chromium. Without one these are skipped, unless HOLDFAST_BROWSER says that there has to be one."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator

import pytest
from monitor_server import serving
from monitor_shop import NASTY, asks, fails, nasty, sleeps, total
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast import App
from holdfast.monitor import monitor

TOKEN = "a-token-of-the-tests"
CHROMIUM = os.environ.get("HOLDFAST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None or not os.path.exists(CHROMIUM):
        missing = "there is no Chromium here; install it, or name one with HOLDFAST_BROWSER"
        if os.environ.get("CI") and os.environ.get("HOLDFAST_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def url(shop: App) -> Iterator[str]:
    with serving(monitor(shop, token=TOKEN)) as found:
        yield found


def open_page(browser: Browser, url: str, path: str = "/", **options: object) -> Page:
    """A page that has the token. Whatever a browser complains about is a failure, and so is a request to elsewhere."""
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(url) else complaints.append(asked.url))
    page.complaints = complaints  # type: ignore[attr-defined]
    page.goto(f"{url}{path}{'&' if '?' in path else '?'}token={TOKEN}")
    return page


def done(page: Page) -> None:
    assert page.complaints == []  # type: ignore[attr-defined]
    page.context.close()


def test_runs_are_listed_filtered_and_opened_with_the_keyboard_alone(browser: Browser, url: str) -> None:
    total.options(id="good").start(1).result(timeout=20)
    fails.options(id="bad").start("boom").result(timeout=20, propagate=False)
    page = open_page(browser, url)
    expect(page).to_have_url(re.compile(r"/workflows/runs$"))
    expect(page.get_by_role("row")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("status:failed")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"q=status%3Afailed"))
    expect(page.get_by_role("row")).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/workflows/runs/bad$"))
    expect(page.get_by_text("ValueError: boom").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    done(page)


def test_an_open_run_shows_what_happens_and_an_answer_given_there_arrives(browser: Browser, url: str) -> None:
    run = asks.options(id="a").start("ann")
    page = open_page(browser, url, "/workflows/runs/a")
    expect(page.get_by_text("Waiting for hook 'signature'")).to_be_visible(timeout=20_000)
    page.get_by_role("button", name="Answer hook").click()
    page.get_by_role("textbox", name="Answer").fill('{"ok": true}')
    page.get_by_role("button", name="Send the answer").click()
    expect(page.locator(".run-title .state")).to_have_text("Success", timeout=20_000)
    assert run.result(timeout=20) == "ann: {'ok': True}"
    done(page)


def test_a_run_is_cancelled_after_being_told_what_happens(browser: Browser, url: str) -> None:
    sleeps.options(id="s").start()
    page = open_page(browser, url, "/workflows/runs/s")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("dialog")).to_contain_text("clean-up and compensations still run")
    page.get_by_label("Why").fill("no longer needed")
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".run-title .state")).to_have_text("Cancelled", timeout=20_000)
    expect(page.get_by_text("Was cancelled: no longer needed.")).to_be_visible()
    done(page)


def test_rows_do_not_move_under_the_pointer(browser: Browser, url: str) -> None:
    total.options(id="first").start(1).result(timeout=20)
    page = open_page(browser, url)
    page.get_by_role("link", name="first").hover()
    expect(page.locator(".live.is-live")).to_be_visible()
    total.options(id="second").start(1)
    expect(page.get_by_role("button", name="1 new run")).to_be_visible(timeout=20_000)
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="1 new run").click()
    expect(page.get_by_role("row")).to_have_count(3)
    done(page)


def test_a_page_goes_on_after_the_server_was_away(browser: Browser, shop: App) -> None:
    with serving(monitor(shop, token=TOKEN)) as url:
        page = open_page(browser, url)
        expect(page.get_by_text("No runs yet")).to_be_visible()
    sleeps.options(id="meanwhile").start()
    expect(page.locator(".live.is-lost")).to_be_visible(timeout=20_000)
    with serving(monitor(shop, token=TOKEN), port=int(url.rpartition(":")[2])):
        expect(page.get_by_role("link", name="meanwhile")).to_be_visible(timeout=30_000)
    page.context.close()


@pytest.mark.parametrize(
    "path", ["workflows/runs", "workflows/runs/good", "workflows/", "workers", "schedules", "hooks"]
)
def test_nothing_is_wider_than_a_small_screen(browser: Browser, url: str, path: str) -> None:
    total.options(id="good").start(1).result(timeout=20)
    asks.options(id="a").start("ann")
    page = open_page(browser, url, f"/{path}", viewport={"width": 360, "height": 720})
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".live.is-live")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    done(page)


def test_the_theme_follows_the_system_and_can_be_turned(browser: Browser, url: str) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page = open_page(browser, url, color_scheme="dark")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    dark = ground(page)
    page.get_by_role("button", name="Light theme").click()
    light = ground(page)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Dark theme")).to_be_visible()
    assert ground(page) == light
    done(page)


def test_script_in_what_users_write_is_shown_and_never_run(browser: Browser, url: str) -> None:
    id = "<script>document.title='owned'</script>"
    run = nasty.options(id=id).start(NASTY)
    while run.status != "WAITING":
        time.sleep(0.02)
    page = open_page(browser, url, "/hooks")
    expect(page.get_by_text(NASTY[:60]).first).to_be_visible()
    run.send("nasty", NASTY, key=NASTY[:60])
    run.result(timeout=20, propagate=False)
    sleeps.options(id="held").start().pause(NASTY)
    for path in ("", "/held"):
        page.goto(f"{url}/workflows/runs{path}")
        expect(page.get_by_text(NASTY).first).to_be_visible(timeout=20_000)
    for view in ("", "?view=events", "?view=values", "?view=family"):
        page.goto(f"{url}/workflows/runs/{id.replace('<', '%3C').replace('/', '%2F')}{view}")
        expect(page.get_by_text("onerror").first).to_be_visible(timeout=20_000)
        assert page.evaluate("document.querySelectorAll('#root script, #root img[src=x]').length") == 0
        assert page.title() != "owned"
    done(page)
