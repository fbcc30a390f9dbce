"""The playground in Chromium, with a real server: ask, slide, add, ask again, phone, dark."""

from contextlib import ExitStack

import pytest
import tiny
from conftest import EXAMPLES
from server import in_thread
from test_page import DESKTOP, PHONE, background, browser, playwright, watch  # noqa: F401

import trueline as tl
from trueline.serve.access import Keys
from trueline.serve.app import create_app
from trueline.types import Example

pytestmark = pytest.mark.browser
ADMIN, USER = "tl-admin-" + "a" * 40, "tl-user-" + "u" * 40
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e"


@pytest.fixture
def visit(browser, embedder):  # noqa: F811
    """Open the page of a server; it may request nothing else, and nothing may go wrong."""
    noise = []
    with ExitStack() as stack:

        def open_page(examples=EXAMPLES, key=f"#key={ADMIN}", keys=None, **options):
            lm = tiny.language_model("llama", chat=True)
            space = tl.build(None, examples, embedder=embedder)
            app = create_app(lm, {"facts": space}, keys=keys or Keys().also("admin", ADMIN))
            running = stack.enter_context(in_thread(app))
            context = browser.new_context(**{"viewport": DESKTOP, **options})
            stack.callback(context.close)
            page = context.new_page()
            watch(page, (running.url, "data:"), noise)
            page.goto(f"{running.url}/{key}")
            return page

        yield open_page
    assert noise == []


def ask(page, text="Are bats blind?"):
    page.fill("#question", text)
    page.press("#question", "Enter")
    ended(page)


def ended(page):
    """Wait for the next answer to be whole."""
    page.answers = getattr(page, "answers", 0) + 1
    page.locator(f"body[data-answered='{page.answers}']").wait_for()


def test_both_answers_stream_with_shades_sources_and_scope(visit):
    page = visit()
    assert "key" not in page.url  # it does not stay in the address
    playwright.expect(page.locator("#count")).to_have_text("4")
    ask(page)
    assert page.locator("#plain").inner_text().strip()
    assert page.locator(".tok").count() > 2
    assert page.locator(".tok:not([data-level='0'])").count() > 0
    assert "Covered." in page.locator("#verdict").inner_text()
    assert "bats" in page.locator("#sources").inner_text().lower()
    scope = page.locator("#scope").inner_text()
    assert "in scope" in scope
    assert "For" in scope
    page.locator(".tok").first.hover()
    assert "Before" in page.locator("#token").inner_text()


def test_the_dials_change_the_corrected_answer_and_nothing_covered_is_said(visit):
    page = visit()
    ask(page)
    plain, corrected = page.locator("#plain").inner_text(), page.locator("#true").inner_text()
    assert plain != corrected
    page.locator("#strength").fill("0")
    ended(page)
    assert page.locator("#true").inner_text() == plain
    page.locator("#strength").fill("1")
    page.locator("#threshold").fill("1")  # both at once, asked once
    ended(page)
    assert "Not covered" in page.locator("#verdict").inner_text()
    assert page.locator("#true").inner_text() == plain
    assert "None" in page.locator("#sources").inner_text()
    page.get_by_role("button", name="As fitted").click()
    ended(page)
    assert page.locator("#true").inner_text() == corrected


def test_an_example_is_added_found_asked_for_and_removed(visit):
    page = visit()
    ask(page, "Is ice cold?")
    page.get_by_role("button", name="Add one").click()
    page.get_by_label("Question", exact=True).fill("Is ice cold?")
    page.get_by_label("True answer").fill("Ice is as cold as water gets.")
    page.get_by_role("button", name="Add and ask again").click()
    ended(page)
    assert page.locator("#count").inner_text() == "5"
    assert "Is ice cold?" in page.locator("#scope").inner_text()
    page.fill("#search", "water gets")
    page.locator("#book li", has_text="Ice is as cold").wait_for()
    playwright.expect(page.locator("#book li")).to_have_count(1)
    page.get_by_role("button", name="Ask this").click()
    ended(page)
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it for good?").click()
    playwright.expect(page.locator("#count")).to_have_text("4")


def test_hostile_text_stays_text(visit):
    hostile = Example(f"Is {HOSTILE} true?", [f"No {HOSTILE}"], id=HOSTILE, source=HOSTILE)
    page = visit([*EXAMPLES, hostile])
    ask(page, f"Is {HOSTILE} true?")
    page.fill("#search", "onerror")
    page.locator("#book li", has_text="onerror").wait_for()
    assert page.locator("img, main script").count() == 0
    assert HOSTILE in page.locator("#scope").inner_text() + page.locator("#book").inner_text()


def test_the_keyboard_alone_will_do(visit):
    page = visit()
    page.locator("#book li").first.wait_for()
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("Are bats blind?")
    page.keyboard.press("Enter")
    ended(page)
    page.locator(".tok").first.focus()
    page.keyboard.press("End")
    last = page.locator(".tok.shown").inner_text()
    assert last == page.locator(".tok").last.inner_text()
    page.keyboard.press("ArrowUp")
    assert page.locator("#token").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#token").is_visible()


def test_a_phone_sees_all_of_it_and_dark_is_dark(visit):
    page = visit(viewport=PHONE, color_scheme="dark", has_touch=True)
    page.locator("#book li").first.wait_for()
    ask(page)
    page.locator(".tok").first.tap()
    assert page.locator("#token").is_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    dark = background(page)
    page.get_by_role("button", name="Light theme").click()
    assert background(page) != dark


def test_a_server_with_keys_asks_for_one(visit):
    page = visit(key="", keys=Keys().also("admin", ADMIN).also("user", USER))
    page.get_by_role("dialog").wait_for()
    page.get_by_label("Key", exact=True).fill(USER)
    page.get_by_role("button", name="Use it").click()
    page.locator("#book li").first.wait_for()
    page.get_by_role("button", name="Remove").first.click()
    page.get_by_role("button", name="Remove it for good?").click()
    page.get_by_text("this needs an admin's key").first.wait_for()
