"""The pages in a real Chromium. Without one these are skipped, unless HOLDFAST_BROWSER says that there has to be one."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pytest
from monitor_server import serving
from monitor_shop import NASTY, Item, asks, decides, echoes, fails, fans, nasty, prices, sleeps, total, twice
from msgspec import Raw, json
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast import App
from holdfast.core import events as ev
from holdfast.engine.records import to_record
from holdfast.errors import StoreUnavailableError
from holdfast.monitor import monitor
from holdfast.ports import NewRun

TOKEN = "a-token-of-the-tests"
PLACES = [
    "workflows/runs", "workflows/runs?q=status:failed", "workflows/runs/good", "workflows/runs/bad?view=graph",
    "workflows/runs/good?view=events&event=2", "workflows/runs/good?view=statuses", "workflows/", "workflows/?name=total",
    "workers", "schedules", "hooks", "failures", "invocations", "timeline", "import",
]  # fmt: skip
MAIN_PLACES = [
    "workflows/runs",
    "workflows/runs/bad?view=graph",
    "workflows/runs/good?view=events&event=2",
    "hooks",
    "failures",
]
CHROMIUM = os.environ.get("HOLDFAST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.usefixtures("worker"), pytest.mark.xdist_group("browser")]
"""Together: one Chromium is enough for two cores."""
WIDTHS = (1120, 1020, 860, 360)

expect.set_options(timeout=30_000)  # a machine that does other things too; what is right is there at once


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
    expect(page.get_by_text("Waiting for hook 'signature'")).to_be_visible()
    page.get_by_role("button", name="Answer hook").click()
    page.get_by_role("textbox", name="Answer").fill('{"ok": true}')
    page.get_by_role("button", name="Send the answer").click()
    expect(page.locator(".run-title .state")).to_have_text("Success")
    assert run.result(timeout=20) == "ann: {'ok': True}"
    done(page)


def test_a_run_is_cancelled_after_being_told_what_happens(browser: Browser, url: str) -> None:
    sleeps.options(id="s").start()
    page = open_page(browser, url, "/workflows/runs/s")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("dialog")).to_contain_text("clean-up and compensations still run")
    page.get_by_label("Why").fill("no longer needed")
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".run-title .state")).to_have_text("Cancelled")
    expect(page.get_by_text("Was cancelled: no longer needed.")).to_be_visible()
    done(page)


def test_rows_do_not_move_under_the_pointer(browser: Browser, url: str) -> None:
    total.options(id="first").start(1).result(timeout=20)
    page = open_page(browser, url)
    page.get_by_role("link", name="first").hover()
    expect(page.locator(".live.is-live")).to_be_visible()
    total.options(id="second").start(1)
    expect(page.get_by_role("button", name="1 new run")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="1 new run").click()
    expect(page.get_by_role("row")).to_have_count(3)
    done(page)


def test_a_page_goes_on_after_the_server_was_away(browser: Browser, shop: App) -> None:
    with serving(monitor(shop, token=TOKEN)) as url:
        page = open_page(browser, url)
        expect(page.get_by_text("No runs yet")).to_be_visible()
    sleeps.options(id="meanwhile").start()
    expect(page.locator(".live.is-lost")).to_be_visible()
    with serving(monitor(shop, token=TOKEN), port=int(url.rpartition(":")[2])):
        expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    page.context.close()


def test_a_link_on_another_site_opens_a_run_and_the_token_can_be_given_there(browser: Browser, url: str) -> None:
    sleeps.options(id="s").start()
    page = browser.new_context().new_page()
    link = f'<a href="{url}/workflows/runs/s?view=events">the run</a>'
    page.route("http://chat.example/", lambda route: route.fulfill(body=link, content_type="text/html"))
    page.goto("http://chat.example/")
    page.get_by_role("link", name="the run").click()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_have_text("This is not its token.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("link", name="Events")).to_have_attribute("aria-current", "page")
    assert "token" not in page.url
    page.goto("http://chat.example/")
    page.get_by_role("link", name="the run").click()
    expect(page.get_by_role("link", name="Events")).to_have_attribute("aria-current", "page")
    page.context.close()


HIDDEN = """
window.isHidden = true;
Object.defineProperty(document, "hidden", { get: () => window.isHidden });
window.turn = (hidden) => { window.isHidden = hidden; document.dispatchEvent(new Event("visibilitychange")); };
"""


def test_tabs_that_nobody_sees_leave_the_others_their_connections(browser: Browser, url: str) -> None:
    first = open_page(browser, url, "/workflows/runs")
    first.context.add_init_script(HIDDEN)
    others = [first.context.new_page() for _ in range(7)]
    for page in others:
        page.goto(f"{url}/workflows/runs")
        expect(page.get_by_text("No runs yet")).to_be_visible()
    sleeps.options(id="s").start()
    expect(first.get_by_role("link", name="s", exact=True)).to_be_visible()
    expect(others[-1].get_by_text("No runs yet")).to_be_visible()
    others[-1].evaluate("turn(false)")
    expect(others[-1].get_by_role("link", name="s", exact=True)).to_be_visible()
    others[-1].evaluate("turn(true)")
    total.options(id="t").start(1)
    expect(first.get_by_role("link", name="t", exact=True)).to_be_visible()
    others[-1].evaluate("turn(false)")
    expect(others[-1].get_by_role("link", name="t", exact=True)).to_be_visible()
    done(first)


def test_a_store_that_cannot_be_read_is_told_until_it_can(
    browser: Browser, url: str, shop: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(browser, url, "/workflows/runs")
    expect(page.get_by_role("status").get_by_text("Live")).to_be_visible()

    def fail(*given: object) -> list[object]:
        raise StoreUnavailableError("no connection to the database")

    with monkeypatch.context() as broken:
        broken.setattr(shop.store, "runs", fail)
        expect(page.get_by_role("status").get_by_text("Store can't be read")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("no connection to the database")
    expect(page.get_by_role("status").get_by_text("Live")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
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


@pytest.mark.parametrize(
    ("light", "dark"),
    [(MAIN_PLACES, ["workflows/runs/bad"]), pytest.param(PLACES, PLACES, marks=pytest.mark.torture)],
    ids=["main pages", "all pages"],
)
def test_nobody_is_kept_out_by_how_a_page_is_made_nor_by_a_small_screen(
    browser: Browser, url: str, light: list[str], dark: list[str]
) -> None:
    """What axe finds: names of controls, roles, contrast, in both themes. And what is wider than its window, whatever the
    names are like."""
    total.options(id="good").start(1).result(timeout=20)
    fails.options(id="bad").start("x" * 300).result(timeout=20, propagate=False)
    asks.options(id="i" * 180).start("k" * 200)
    axe = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
    ask = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then(found => found.violations)"
    for theme, places in (("light", light), ("dark", dark)):
        page = open_page(browser, url, color_scheme=theme, bypass_csp=True, reduced_motion="reduce")
        for path in places:
            page.set_viewport_size({"width": 1280, "height": 720})
            page.goto(f"{url}/{path}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            page.evaluate(axe)
            found = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in page.evaluate(ask)]
            assert found == [], f"{path}, {theme}"
            for width in WIDTHS if theme == "light" else ():
                page.set_viewport_size({"width": width, "height": 720})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        done(page)


def test_a_long_name_leaves_the_buttons_in_sight(browser: Browser, url: str) -> None:
    asks.options(id="i" * 180).start("k" * 200)
    page = open_page(browser, url, "/hooks")
    expect(page.get_by_role("button", name="Answer…")).to_be_in_viewport(ratio=1)
    done(page)


def test_what_is_chosen_on_a_small_screen_is_seen_at_once(browser: Browser, url: str) -> None:
    fans.options(id="f").start(11).result(timeout=20)
    page = open_page(browser, url, "/workflows/runs/f", viewport={"width": 900, "height": 600})
    page.get_by_role("button", name="add").first.click()
    expect(page.get_by_label("Step add")).to_be_in_viewport(ratio=0.99)
    page.get_by_label("Step add").get_by_role("button", name="Close").click()
    expect(page.get_by_label("Step add")).to_have_count(0)
    page.goto(f"{url}/workflows/runs/f?view=events")
    page.get_by_role("option").first.click()
    expect(page.get_by_label("Event 1", exact=True)).to_be_in_viewport(ratio=0.99)
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


def test_a_text_that_looks_like_a_mark_of_a_moment_breaks_no_page(browser: Browser, url: str) -> None:
    page = open_page(browser, url, "/workflows/runs")
    say = "async text => (await import('/static/format.js')).spoken(text, 0)"
    impossible = f"hook '⟦until {'9' * 20}⟧'"
    assert page.evaluate(say, impossible) == impossible
    assert "33658" in page.evaluate(say, f"⟦until {'9' * 18}⟧")
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
    expect(page.get_by_text("3 runs are asked to be retried.")).to_be_visible()
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
    expect(page.locator("tbody .state", has_text="Cancelled")).to_have_count(2)
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
    expect(listed.get_by_role("option").first).to_contain_text("RunStarted")
    listed.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(listed.locator("#event-50000")).to_contain_text("DataSet")
    assert listed.get_by_role("option").count() < 150
    listed.locator("#event-50000").click()
    expect(page.get_by_role("complementary", name="Event 50000")).to_contain_text("RunStarted")
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


def test_a_run_from_a_file_began_when_it_did(browser: Browser, url: str, shop: App, tmp_path: Path) -> None:
    then = shop.store.now() - 2 * 3600 * 1_000_000 - 1_000_000
    events = (ev.RunStarted(seq=1, ts=then, workflow="old"), ev.RunCompleted(seq=2, ts=then + 1, result=Raw(b"1")))
    file = tmp_path / "old.jsonl"
    file.write_bytes(b"\n".join(json.encode(event) for event in events))
    page = open_page(browser, url, "/import")
    page.locator("input[type=file]").set_input_files(file)
    expect(page.locator(".facts")).to_contain_text("(2 h ago)")
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


def test_numbers_are_typed_key_by_key_into_a_form(browser: Browser, url: str) -> None:
    page = open_page(browser, url, "/workflows/runs")
    for i, typed in enumerate(("1.05", "0.001", "-0.5", "12")):
        run = prices.options(id=f"p{i}").start()
        page.goto(f"{url}/workflows/runs/p{i}")
        page.get_by_role("button", name="Answer hook…").click()
        page.get_by_role("spinbutton", name="price").press_sequentially(typed)
        expect(page.get_by_role("spinbutton", name="price")).to_have_value(typed)
        page.get_by_role("button", name="Send the answer").click()
        assert run.result(timeout=20) == float(typed)
    done(page)


def test_a_run_is_started_in_a_form_of_its_arguments(browser: Browser, url: str, shop: App) -> None:
    asks.options(id="taken").start("ann")
    page = open_page(browser, url, "/workflows/?name=orders")
    page.get_by_role("button", name="Start a run…").click()
    dialog = page.get_by_role("dialog", name="Start a run of orders")
    dialog.get_by_label("item").fill('{"name": "book", "price": "cheap"}')
    dialog.get_by_label("count").press_sequentially("12")
    dialog.get_by_label("rebate").press("Control+a")
    dialog.get_by_label("rebate").press_sequentially("1.05")
    dialog.get_by_label("size").select_option("s")
    dialog.get_by_label("Id of the run").fill("taken")
    dialog.get_by_role("button", name="Start it").click()
    wrong = dialog.locator("label", has_text="item").get_by_role("alert")
    expect(wrong).to_contain_text("item.price: expected decimal.Decimal, got 'cheap'")
    dialog.get_by_label("item").fill('{"name": "book", "price": "12.50"}')
    dialog.get_by_role("button", name="Start it").click()
    expect(dialog.locator("label", has_text="Id of the run").get_by_role("alert")).to_contain_text("there is a run")
    dialog.get_by_label("Id of the run").fill("mine")
    page.complaints.clear()  # type: ignore[attr-defined]  # of the answers that refused
    dialog.get_by_role("button", name="Start it").click()
    expect(page).to_have_url(re.compile("/workflows/runs/mine$"))
    expect(page.locator(".run-title .state")).to_have_text("Success")
    expect(page.locator(".facts", has_text="Started by")).to_contain_text("admin at 127.0.0.1")
    assert shop.get_run("mine").result(timeout=20) == {
        "item": Item("book", Decimal("12.50")), "count": 12, "rebate": 1.05, "size": "s", "gift": False, "note": None,
    }  # fmt: skip
    page.goto(f"{url}/workflows/?name=collects")
    page.get_by_role("button", name="Start a run…").click()
    page.get_by_label("Arguments").fill("[1, 9007199254740993]")
    page.get_by_role("button", name="Start it").click()
    expect(page.locator(".run-title h1")).to_have_text("collects")
    assert shop.get_run(page.url.rpartition("/")[2]).result(timeout=20) == 9007199254740994
    done(page)


def test_who_may_only_look_is_not_offered_to_start_a_run(browser: Browser, shop: App) -> None:
    with serving(monitor(shop, viewer_token=TOKEN)) as url:
        page = open_page(browser, url, "/workflows/?name=orders")
        expect(page.get_by_text("No steps yet")).to_be_visible()
        expect(page.get_by_role("button", name="Start a run…")).to_have_count(0)
        done(page)


def test_numbers_beyond_2_53_are_shown_and_sent_as_they_are(browser: Browser, url: str) -> None:
    run = echoes.options(id="e").start(2**63 + 1)
    page = open_page(browser, url, "/workflows/runs/e")
    page.get_by_role("button", name="Answer hook…").click()
    page.get_by_role("textbox", name="Answer").fill(
        '{"a": [9007199254740993, -18446744073709551617, 1.5], "b": "9007199254740993"}'
    )
    expect(page.get_by_text("Sent as:")).to_contain_text("9007199254740993,-18446744073709551617,1.5")
    page.get_by_role("button", name="Send the answer").click()
    sent = {"a": [9007199254740993, -18446744073709551617, 1.5], "b": "9007199254740993"}
    assert run.result(timeout=20)["answer"] == sent
    page.goto(f"{url}/workflows/runs/e?view=values")
    expect(page.locator("main")).to_contain_text("9223372036854775809")
    for shown in ("-18446744073709551617", '"nan": "<nan>"', '"raw": "<bytes AP8=>"', '"text": "AP8="'):
        expect(page.locator("main")).to_contain_text(shown)
    done(page)


def test_a_fork_is_given_numbers_beyond_2_53_as_they_are(browser: Browser, url: str, shop: App) -> None:
    total.options(id="t").start(2**60 + 1).result(timeout=20)
    page = open_page(browser, url, "/workflows/runs/t")
    page.get_by_role("button", name="Fork…").click()
    page.get_by_label("Last event to keep").fill("1")
    page.get_by_label(re.compile("^Other arguments")).fill("[1152921504606846979]")
    page.get_by_role("button", name="Start the fork").click()
    page.wait_for_url(lambda to: "/runs/t?" not in to and not to.endswith("/runs/t"))
    assert shop.get_run(unquote(page.url.rpartition("/")[2])).result(timeout=20) == 1152921504606846979 + 1 + 2
    done(page)


def test_what_is_waited_for_is_told_in_the_zone_of_who_looks_and_as_time_goes_on(
    browser: Browser, url: str, shop: App
) -> None:
    sleeps.options(id="s").start()
    page = open_page(browser, url, "/workflows/runs", timezone_id="Asia/Tokyo")
    expect(page.locator("tbody")).to_contain_text("(in 23 h 59 m)")
    page.clock.install()
    page.goto(f"{url}/workflows/runs/s")
    row = shop.store.get("s")
    assert row is not None
    assert row.wake_at is not None
    due = dt.datetime.fromtimestamp(row.wake_at / 1e6, ZoneInfo("Asia/Tokyo")).strftime("%Y-%m-%d %H:%M:%S")
    expect(page.locator(".why")).to_have_text(f"Sleeping until {due} (in 23 h 59 m).")
    page.clock.fast_forward("02:00:00")
    expect(page.locator(".why")).to_contain_text("(in 21 h 59 m)")
    done(page)


def test_every_page_says_what_keeps_runs_from_going_on(browser: Browser, url: str, shop: App) -> None:
    page = open_page(browser, url, "/schedules")
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    told = page.get_by_label("What keeps runs from going on")
    expect(told).to_have_count(0)
    shop.remote("nobody").options(id="lost").start()
    page.goto(f"{url}/hooks")
    expect(told).to_contain_text("Run lost is stuck")
    told.get_by_role("link", name="Look").click()
    expect(page.get_by_role("link", name="lost", exact=True)).to_be_visible()
    done(page)


def test_pages_of_a_list_lead_to_those_before_them_wherever_one_comes_from(browser: Browser, url: str) -> None:
    sleeps.options(delay="1h").start_many([()] * 130, ids=[f"r{i:03}" for i in range(130)])
    page = open_page(browser, url, "/workflows/runs?q=status:paused,pending,stuck")
    expect(page.get_by_role("link", name="r129", exact=True)).to_be_visible()
    page.get_by_role("link", name="Older ›").click()
    expect(page.get_by_role("link", name="r079", exact=True)).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_role("link", name="r029", exact=True)).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("link", name="‹ Newer").click()
    expect(other.get_by_role("link", name="r079", exact=True)).to_be_visible()
    other.keyboard.press("p")
    expect(other.get_by_role("link", name="r129", exact=True)).to_be_visible()
    expect(other.get_by_role("link", name="‹ Newer")).to_have_count(0)
    assert other.url == f"{url}/workflows/runs?q=status%3Apaused%2Cpending%2Cstuck"
    done(page)


def test_a_workflow_shows_how_many_runs_it_has(browser: Browser, url: str) -> None:
    sleeps.options(delay="1h").start_many([()] * 1_200)
    page = open_page(browser, url, "/workflows/")
    expect(page.get_by_role("row", name="sleeps").locator("td[data-label=Runs]")).to_have_text("1,200")
    page.get_by_role("link", name="sleeps", exact=True).click()
    expect(page.get_by_text("From its last 500 runs of 1,200.")).to_be_visible()
    done(page)


def test_a_text_that_looks_like_a_mark_of_ours_breaks_no_list(browser: Browser, url: str) -> None:
    sleeps.options(id="s").start().pause("⟦until 99999999999999999999⟧")
    page = open_page(browser, url, "/workflows/runs")
    expect(page.get_by_text("⟦until 99999999999999999999⟧")).to_be_visible()
    page.goto(f"{url}/workflows/runs/s")
    expect(page.locator(".why")).to_contain_text("⟦until 99999999999999999999⟧")
    done(page)


def test_only_an_id_that_nobody_chose_is_cut(browser: Browser, url: str) -> None:
    for id in ("20260131-0200-invoice-ann", "20260131-0200-invoice-bob"):
        sleeps.options(id=id).start()
    unnamed = sleeps.start().id
    page = open_page(browser, url, "/workflows/runs")
    for id in ("20260131-0200-invoice-ann", "20260131-0200-invoice-bob", unnamed[:8]):
        expect(page.get_by_role("link", name=id, exact=True)).to_be_visible()
    done(page)


def test_a_page_beyond_the_last_run_says_so(browser: Browser, url: str) -> None:
    sleeps.options(id="s").start()
    page = open_page(browser, url, "/workflows/runs?after=1")
    expect(page.get_by_role("heading", name="None on this page")).to_be_visible()
    page.get_by_role("link", name="« Newest").click()
    expect(page.get_by_role("link", name="s", exact=True)).to_be_visible()
    done(page)


def test_the_next_page_of_a_list_is_shown_from_its_top(browser: Browser, url: str) -> None:
    sleeps.options(delay="1h").start_many([()] * 60)
    page = open_page(browser, url, "/workflows/runs")
    page.get_by_role("link", name="Older ›").click()
    expect(page.get_by_role("row")).to_have_count(11)
    assert page.evaluate("scrollY") == 0
    done(page)


def test_squares_of_a_workflow_stand_under_their_runs_on_a_small_screen(browser: Browser, url: str) -> None:
    for i in range(4):
        total.options(id=f"t{i}").start(1).result(timeout=20)
    page = open_page(browser, url, "/workflows/?name=total", viewport={"width": 390, "height": 700})
    expect(page.get_by_role("link", name="t0, Success", exact=True)).to_be_visible()
    for i in range(4):
        places = [
            page.get_by_role("link", name=name, exact=True).bounding_box()
            for name in (f"t{i}, Success", f"add in t{i}, Success", f"flaky in t{i}, Success, 2 attempts")
        ]
        assert len({round(place["x"]) for place in places if place is not None}) == 1
        assert None not in places
    done(page)


def test_what_is_shown_can_be_copied_where_a_browser_gives_no_clipboard(browser: Browser, url: str) -> None:
    total.options(id="t").start(1).result(timeout=20)
    page = open_page(browser, url, "/workflows/runs/t")
    page.context.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.reload()
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.goto(f"{url}/workflows/runs")
    page.locator("#filter").press("Control+v")
    expect(page.locator("#filter")).to_have_value("t")
    done(page)


def test_a_run_whose_id_is_dots_is_opened_and_so_are_its_steps(browser: Browser, url: str) -> None:
    for id in (".", ".."):
        total.options(id=id).start(1).result(timeout=20)
        page = open_page(browser, url, "/workflows/runs")
        page.get_by_role("link", name=id, exact=True).click()
        expect(page).to_have_title(f"Success: total {id}")
        page.get_by_role("link", name="Events").click()
        expect(page).to_have_url(re.compile("view=events"))
        page.get_by_role("option", name=re.compile("RunStarted")).click()
        expect(page.get_by_label("Event 1", exact=True)).to_contain_text("RunStarted")
        page.reload()
        expect(page.get_by_label("Event 1", exact=True)).to_contain_text("RunStarted")
        page.goto(f"{url}/invocations?q=step:add")
        page.locator(f"tr:has(a[title='{id}'])").get_by_role("link", name="add").click()
        expect(page.get_by_role("heading", name="add")).to_be_visible()
        done(page)


def test_the_step_that_is_looked_at_is_in_the_address(browser: Browser, url: str) -> None:
    total.options(id="t").start(1).result(timeout=20)
    page = open_page(browser, url, "/workflows/runs/t")
    page.get_by_role("button", name=re.compile("^add")).click()
    expect(page.get_by_label("Step add")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Step add")).to_be_visible()
    page.get_by_role("link", name="Graph").click()
    expect(page.get_by_label("Step add")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Step add")).to_have_count(0)
    page.go_back()
    expect(page.get_by_label("Step add")).to_be_visible()
    done(page)


def test_what_a_second_attempt_has_kept_is_told_from_what_it_has_executed(browser: Browser, url: str) -> None:
    twice.options(id="t").start().result(timeout=20, propagate=False)
    page = open_page(browser, url, "/workflows/runs/t")
    expect(page.locator(".legend")).to_contain_text("kept from an earlier attempt")
    kept = page.locator(".lane", has=page.get_by_text("kept", exact=True))
    expect(kept).to_have_count(2)
    expect(page.get_by_role("button", name="add, success, kept", exact=True)).to_have_count(2)
    expect(kept.locator(".took")).to_have_count(0)
    page.get_by_role("button", name="Retry…").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 completed steps are kept and not done again.")
    expect(page.get_by_role("dialog")).to_contain_text("What failed runs anew: explode.")
    page.goto(f"{url}/workflows/runs/t?view=family")
    expect(page.locator(".node", has=page.get_by_text("kept", exact=True))).to_have_count(2)
    done(page)


def test_a_run_that_failed_says_why_once_and_offers_one_thing_first(browser: Browser, url: str, shop: App) -> None:
    fails.options(id="bad").start("no address").result(timeout=20, propagate=False)
    page = open_page(browser, url, "/workflows/runs/bad")
    expect(page.locator(".error-box > p")).to_contain_text("no address")
    expect(page.locator(".why")).to_have_text("Failed.")
    page.get_by_role("link", name="Statuses").click()
    expect(page.locator(".why")).to_contain_text("no address")
    fails.options(id="long").start("x" * 900).result(timeout=20, propagate=False)
    page.goto(f"{url}/workflows/runs/long?view=statuses")
    expect(page.locator(".why")).to_contain_text("…")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(".why")).to_contain_text("x" * 900)
    shop.remote("nobody").options(id="lost").start()
    page.goto(f"{url}/workflows/runs/lost")
    expect(page.get_by_role("button", name="Resume…")).to_be_visible()
    expect(page.locator(".actions .primary")).to_have_text(["Resume…"])
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
        expect(page.get_by_text(NASTY).first).to_be_visible()
    page.goto(f"{url}/failures")
    expect(page.get_by_text("onerror").first).to_be_visible()
    for view in ("", "?view=graph", "?view=events", "?view=values", "?view=family", "?view=statuses"):
        page.goto(f"{url}/workflows/runs/{id.replace('<', '%3C').replace('/', '%2F')}{view}")
        expect(page.get_by_text("onerror").first).to_be_visible()
        assert page.evaluate("document.querySelectorAll('#root script, #root img[src=x]').length") == 0
        assert page.title() != "owned"
    done(page)
