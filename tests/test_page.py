"""The page of an explanation, opened in Chromium: hover, click, keys, dark mode, phone."""

import os
import shutil
from dataclasses import replace

import pytest
from test_explain import ANSWER, GREEDY, HOSTILE, SCOPED, UNCOVERED, hostile_answer

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
if not os.access(CHROMIUM, os.X_OK):
    pytest.skip(
        "no Chromium; install it with `apt-get install chromium`", allow_module_level=True
    )
playwright = pytest.importorskip(
    "playwright.sync_api", reason="no Playwright; install it with `pip install playwright`"
)
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
CHANGED = 2  # the place of a changed token, " not" for " very"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield opened
        opened.close()


def watch(page, known, noise):
    """Note the errors of a page, its dialogs, and requests to what is not known."""
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda r: r.url.startswith(known) or noise.append(r.url))


@pytest.fixture
def visit(browser, tmp_path):
    """Open the page of an answer; it may request nothing, and nothing may go wrong."""
    contexts, noise = [], []

    def open_page(answer=ANSWER, beside=GREEDY, viewport=DESKTOP, **options):
        made = answer.explain(beside, settings={"model": "tiny", "alpha": 0.5})
        made.save(tmp_path / "page.html")
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(message.text))
        address = (tmp_path / "page.html").as_uri()
        watch(page, (address, "data:,"), noise)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noise == []


def tokens(page):
    return page.get_by_role("toolbar").get_by_role("button")


def evidence(page):
    return page.get_by_role("complementary").inner_text()


def region(page, name):
    return page.get_by_role("region", name=name)


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''")


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_tokens_read_as_the_answer_and_their_names_and_looks_say_what_changed(visit):
    page = visit()
    assert page.get_by_role("toolbar").inner_text() == "It is not blue <eos>"
    assert page.get_by_role("heading", level=1).inner_text() == "Is the sky blue?"
    names = [node.get_attribute("aria-label") for node in tokens(page).all()]
    assert names == [
        "token 1: 'It', unchanged, 0 neighbors",
        "token 2: ' is', unchanged, 2 neighbors",
        "token 3: became ' not', was ' very', 1 neighbor",
        "token 4: became ' blue', was ' red', 7 neighbors",
        "token 5: '<eos>', unchanged, 1 neighbor",
    ]
    levels = [int(node.get_attribute("data-level")) for node in tokens(page).all()]
    assert levels == [0, 3, 5, 4, 1]  # 0, 1.5, 3.5, 2.5 and 0.5, in fifths of 3.5


def test_hover_shows_the_evidence(visit):
    page = visit()
    expected = {
        1: "Token 2 of 5|What of a?|a it is.|the book of a|0.80 cosine|75% weight|+1.00 push",
        0: "No example moved this token",
        CHANGED: "␣very → ␣not|+3.50 logits over ␣very|The model alone|With rad",
        3: "+2.75 logits over ␣red|The strongest 2 of 7 neighbors",
    }
    for number, parts in expected.items():
        tokens(page).nth(number).hover()
        shown = evidence(page).replace("\n", " ")
        assert all(part in shown for part in parts.split("|")), shown


def test_a_click_or_a_key_pins_and_a_second_click_or_escape_unpins(visit):
    page = visit()
    token = tokens(page).nth(CHANGED)
    token.click()
    assert token.get_attribute("aria-pressed") == "true"
    tokens(page).nth(1).hover()
    assert "Token 3 of 5" in evidence(page)
    token.click()
    assert token.get_attribute("aria-pressed") == "false"
    tokens(page).nth(1).hover()
    assert "Token 2 of 5" in evidence(page)
    tokens(page).nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert "Token 2 of 5" in evidence(page)  # pinned, though the focus is elsewhere
    assert page.get_by_role("status").inner_text() == "Evidence for token 2 is pinned"
    page.keyboard.press("Escape")
    assert page.locator("[aria-pressed=true]").count() == 0
    assert "Token 3 of 5" in evidence(page)


def test_arrow_keys_move_from_token_to_token(visit):
    page = visit()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    moves = {"ArrowRight": 2, "ArrowLeft": 1, "ArrowDown": 3, "End": 5, "ArrowUp": 4, "Home": 1}
    for key, number in moves.items():  # down and up: the next and the last changed token
        page.keyboard.press(key)
        assert focused(page).startswith(f"token {number}"), key
        assert f"Token {number} of 5" in evidence(page)


def test_greedy_is_next_to_it_and_the_summary_has_the_figures(visit):
    page = visit()
    section = region(page, "Answer with greedy")
    assert "It is very red" in section.inner_text()
    assert section.locator("mark").inner_text() == "very"
    assert "The two differ from token 3." in section.inner_text()
    summary = region(page, "In sum").inner_text().replace("\n", " ")
    for part in ("Grounded 80%", "Changed 40%", "Mean entropy 1.00", "Examples cited 2"):
        assert part in summary
    assert summary.count(" changed ") == 4  # a bar a quartile
    cited = region(page, "Examples cited").inner_text()
    assert all(part in cited for part in ("a it is.", "2.15", "+5.10", "b it is."))
    region(page, "Changed tokens").get_by_role("button").nth(1).click()
    assert focused(page).startswith("token 4")
    assert tokens(page).nth(3).get_attribute("aria-pressed") == "true"


def test_dark_mode_follows_the_system_and_the_button_overrules_it(visit):
    page = visit(color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    page.get_by_role("button", name="Light theme").click()
    assert background(page) == light


def test_on_a_phone_nothing_scrolls_sideways_and_the_pinned_evidence_is_below(visit):
    long = replace(ANSWER, trace=ANSWER.trace * 12, token_ids=ANSWER.token_ids * 12)
    for answer, number in ((hostile_answer(), 1), (long, 41)):
        beside = replace(GREEDY, question=answer.question, text=answer.text * 3)
        options = {"is_mobile": True, "has_touch": True, "reduced_motion": "reduce"}
        page = visit(answer, beside, PHONE, **options)
        token = tokens(page).nth(number)
        token.tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert token.get_attribute("aria-pressed") == "true"
    box, panel = token.bounding_box(), page.get_by_role("complementary").bounding_box()
    assert 0 <= box["y"] < box["y"] + box["height"] <= panel["y"]
    assert panel["y"] + 100 < PHONE["height"]


def test_hostile_text_stays_text(visit):
    answer = hostile_answer()
    page = visit(answer, replace(GREEDY, question=HOSTILE, text=HOSTILE))
    for number in range(tokens(page).count()):
        tokens(page).nth(number).click()
    assert "<img src=x onerror=alert(1)>" in evidence(page) + page.locator("main").inner_text()
    assert "</script><script>alert(1)</script>" in page.locator("h1").inner_text()
    assert page.locator("img, iframe, object, a").count() == 0
    assert page.locator("script").count() == 2


def test_a_page_without_its_script_or_with_almost_nothing_opens(visit):
    text = visit(java_script_enabled=False).locator("body").inner_text()
    assert "It is not blue" in text
    assert "It is very red" in text
    for trace in ((), ANSWER.trace[:1]):
        page = visit(replace(ANSWER, trace=trace, text="It" if trace else ""), None)
        assert tokens(page).count() == len(trace)
        assert page.locator("#beside").count() == 0


def test_sources_are_quoted_and_the_scope_has_reasons_and_unfolds(visit):
    page = visit(replace(SCOPED, scope=SCOPED.scope + SCOPED.scope[1:] * 3))
    sources = region(page, "Sources").inner_text()
    for part in ("What of a?", "“a it is.”", "a · the book of a", "80% of the tokens"):
        assert part in sources
    assert region(page, "Examples cited").count() == 0
    section = region(page, "Scope")
    first, second, third, *others = section.locator("li").all()
    for part in ("0.90", "in, above 0.70", "For: its answer", "Against: you say 'sky'"):
        assert part in first.inner_text()
    first.get_by_text("Numbers").click()
    assert "for cosine with its wrong answers 0.80 (+4.00)" in first.inner_text()
    assert "out, not above 0.70" in second.inner_text()
    assert third.is_visible()
    assert not any(item.is_visible() for item in others)
    section.get_by_role("button", name="Show all 9").click()
    assert all(item.is_visible() for item in others)
    assert section.get_by_role("button").count() == 0
    tokens(page).nth(1).hover()
    assert "2 votes" in evidence(page)
    assert "0.80 probability" in evidence(page)


def test_a_page_that_nothing_covers_says_so(visit):
    page = visit(UNCOVERED, GREEDY)
    assert "Not covered by your examples." in region(page, "Sources").inner_text()
    assert "not covered by your examples" in page.locator("#chips").inner_text()
    assert region(visit(ANSWER), "Sources").count() == 0
