"""The pages in a real Chromium. Without one these are skipped, unless HOLDFAST_BROWSER says that there has to be one."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitor_server import serving
from monitor_shop import NASTY, asks, decides, fails, fans, nasty, sleeps, total
from msgspec import Raw
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast import App
from holdfast.core import events as ev
from holdfast.engine.records import to_record
from holdfast.monitor import monitor
from holdfast.ports import NewRun

TOKEN = "a-token-of-the-tests"
PLACES = [
    "workflows/runs", "workflows/runs?q=status:failed", "workflows/runs/good", "workflows/runs/bad?view=graph",
    "workflows/runs/good?view=events&event=2", "workflows/runs/good?view=statuses", "workflows/", "workflows/?name=total",
    "workers", "schedules", "hooks", "failures", "invocations", "timeline", "import",
]  # fmt: skip
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


def test_a_page_with_nothing_to_show_says_what_would_be_there(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    for path, words in {
        "workflows/runs": "No runs yet", "failures": "Nothing has failed", "invocations": "No steps yet",
        "workflows/?name=total": "No steps yet", "hooks": "Nothing waits for you", "import": "Choose a file",
    }.items():  # fmt: skip
        page.goto(f"{url}/{path}")
        expect(page.get_by_text(words).first).to_be_visible()
    done(page)


def test_nobody_is_kept_out_by_how_a_page_is_made_nor_by_a_small_screen(browser: Browser, url: str) -> None:
    """What axe finds: names of controls, roles, contrast, in both themes. And what is wider than a small screen."""
    total.options(id="good").start(1).result(timeout=20)
    fails.options(id="bad").start("x").result(timeout=20, propagate=False)
    asks.options(id="a").start("ann")
    axe = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
    ask = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then(found => found.violations)"
    for theme, places in (("light", PLACES), ("dark", ["workflows/runs", "workflows/runs/bad", "failures"])):
        page = open_page(browser, url, color_scheme=theme, bypass_csp=True, reduced_motion="reduce")
        for path in places:
            page.set_viewport_size({"width": 1280, "height": 720})
            page.goto(f"{url}/{path}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            page.evaluate(axe)
            found = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in page.evaluate(ask)]
            assert found == [], f"{path}, {theme}"
            page.set_viewport_size({"width": 360, "height": 720})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        done(page)


def test_a_graph_is_drawn_and_its_fan_opens_with_the_keyboard(browser: Browser, url: str) -> None:
    fans.options(id="wide").start(12).result(timeout=20)
    page = open_page(browser, url, "/workflows/runs/wide?view=graph")
    page.get_by_role("button", name="add × 13").focus()
    page.keyboard.press("Enter")
    steps = page.get_by_role("button", name="add, step, Success")
    expect(steps).to_have_count(13)
    steps.first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Step add")).to_contain_text("Called with")
    done(page)


def test_runs_that_failed_alike_are_retried_together(browser: Browser, url: str) -> None:
    runs = [fails.options(id=f"f{i}").start(f"no address for {i}") for i in range(3)]
    for run in runs:
        run.result(timeout=20, propagate=False)
    page = open_page(browser, url, "/failures")
    page.get_by_role("button", name="Retry all 3…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 runs")
    dialog.get_by_role("button", name="Retry 3").click()
    expect(page.get_by_text("3 runs are asked to be retried.")).to_be_visible(timeout=20_000)
    done(page)
    for run in runs:
        while "AttemptStarted" not in [event.kind for event in run.history()]:
            time.sleep(0.02)


def test_chosen_runs_are_cancelled_after_their_number_was_told(browser: Browser, url: str) -> None:
    runs = [sleeps.options(id=f"s{i}").start() for i in range(3)]
    page = open_page(browser, url)
    expect(page.get_by_role("row")).to_have_count(4)
    for key in "jxjx":
        page.keyboard.press(key)
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 runs")
    page.get_by_label("Why").fill("stocktaking")
    page.get_by_role("button", name="Cancel 2").click()
    expect(page.locator("tbody .state", has_text="Cancelled")).to_have_count(2, timeout=20_000)
    assert runs[0].status != "CANCELLED"
    done(page)


def test_fifty_thousand_events_scroll(browser: Browser, url: str, shop: App) -> None:
    now = shop.store.now()
    first = ev.RunStarted(seq=1, ts=now, workflow="sleeps")
    data = (ev.DataSet(seq=i, ts=now, cmd=f"1d{i}", cause=1, name="n", args=Raw(b"1")) for i in range(2, 50_001))
    records = [to_record(event) for event in (first, *data)]
    shop.store.create(
        NewRun(id="long", workflow="nobody", records=records, wake_at=now + 10**12, created_at=now, fingerprint=b"")
    )
    page = open_page(browser, url, "/workflows/runs/long?view=events")
    listed = page.get_by_role("listbox", name="50000 events")
    expect(listed.get_by_role("option").first).to_contain_text("RunStarted", timeout=20_000)
    listed.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(listed.locator("#event-50000")).to_contain_text("DataSet", timeout=20_000)
    assert listed.get_by_role("option").count() < 150
    listed.locator("#event-50000").click()
    expect(page.get_by_role("complementary", name="Event 50000")).to_contain_text("RunStarted", timeout=20_000)
    done(page)


def test_a_run_from_a_file_is_shown(browser: Browser, url: str, shop: App, tmp_path: Path) -> None:
    total.options(id="t").start(1).result(timeout=20)
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"\n".join(shop.store.payloads("t")))
    page = open_page(browser, url, "/import")
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_text("imported, not in this store")).to_be_visible()
    page.get_by_role("link", name="Values").click()
    expect(page.get_by_text("Result")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("option").first).to_contain_text("RunStarted")
    done(page)


def test_a_hook_with_a_type_is_answered_in_a_form(browser: Browser, url: str) -> None:
    run = decides.options(id="d").start()
    page = open_page(browser, url, "/hooks")
    page.get_by_role("button", name="Answer…").click()
    page.get_by_label("approved").check()
    page.get_by_label("note").fill("fine")
    page.get_by_role("button", name="Send the answer").click()
    assert run.result(timeout=20) is True
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
    page.goto(f"{url}/failures")
    expect(page.get_by_text("onerror").first).to_be_visible(timeout=20_000)
    for view in ("", "?view=graph", "?view=events", "?view=values", "?view=family", "?view=statuses"):
        page.goto(f"{url}/workflows/runs/{id.replace('<', '%3C').replace('/', '%2F')}{view}")
        expect(page.get_by_text("onerror").first).to_be_visible(timeout=20_000)
        assert page.evaluate("document.querySelectorAll('#root script, #root img[src=x]').length") == 0
        assert page.title() != "owned"
    done(page)
