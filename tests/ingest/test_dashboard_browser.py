"""The dashboard in a real headless browser: a job appears, streams and ends; keys, keyboard, phone.

Needs Debian's chromium (or one that LOCKSTEP_CHROMIUM names) and the extra `browser`; else skipped.
"""

import os
import shutil

import pytest

from ingest.access.keys import Key, add_key
from tests.ingest.conftest import running
from tests.ingest.named_nodes import IDENTITY, NamedNode
from tests.ingest.stub_node import Play
from workers.settings import Settings

CHROMIUM = os.environ.get("LOCKSTEP_CHROMIUM") or shutil.which("chromium")
api = pytest.importorskip("playwright.sync_api", reason="pip install '.[browser]'")
if CHROMIUM is None:
    pytest.skip("there is no chromium: apt-get install chromium", allow_module_level=True)

WAIT_MS = 60_000  # only ends a test that hangs


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, door):
    """Opens the page; afterwards: it complained of nothing, and asked nobody else."""
    contexts, complaints, asked = [], [], []

    def open_one(width=1280, scheme="dark"):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda said: complaints.append(said.text) if "401" not in said.text else 0
        )
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{door.base}/")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith(door.base) for url in asked)


def create(door, name):
    body = {"prompt": "The capital of France is", "id": name, "sla": "realtime"}
    assert door.http.post("/v1/jobs", json=body).status_code == 202


def test_a_job_appears_streams_and_ends(door, node, open_page):
    node.report(running=1, capacity=4)
    node.play = Play(pause_after=2)
    page = open_page()
    page.locator("#state[data-state=live]").wait_for()
    create(door, "capital")
    row = page.locator("#running button", has_text="capital")
    row.wait_for()
    row.click()
    text = page.locator("#job-text")
    api.expect(page.locator("#job-facts")).to_contain_text("running")
    api.expect(text).to_have_text("Paris, of", timeout=WAIT_MS)
    assert text.get_attribute("data-live") is not None
    node.go.set()
    api.expect(text).to_have_text("Paris, of course.", timeout=WAIT_MS)
    api.expect(page.locator("#job-facts")).to_contain_text("finished", timeout=WAIT_MS)
    api.expect(page.locator("#job-actions")).to_be_hidden()
    page.keyboard.press("Escape")
    page.locator("#ended button", has_text="capital").wait_for()


def test_keys_alone_are_enough(door, node, open_page):
    """The skip link first; arrows move among jobs; Enter opens one; focus comes back."""
    for name in ("first", "second"):
        create(door, name)
    page = open_page()
    page.locator("#ended button", has_text="first").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#ended button").first.focus()
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.querySelector('.id').textContent"
    assert page.evaluate(focused).startswith("first")
    page.keyboard.press("Enter")
    api.expect(page.locator("#job-title")).to_have_text("first")
    api.expect(page.locator("#job-text")).to_have_text("Paris, of course.", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    assert page.evaluate(focused).startswith("first")


def test_a_running_job_is_cancelled_from_its_panel(door, node, open_page):
    node.play = Play(pause_after=1)
    create(door, "long")
    page = open_page()
    page.locator("#running button", has_text="long").click()
    page.locator("#job-cancel").click()
    api.expect(page.locator("#job-facts")).to_contain_text("cancelled", timeout=WAIT_MS)


def test_where_a_key_is_needed_it_is_asked_for(door, node, open_page):
    secret = add_key(door.desk.store, Key(id="ops", scopes=("metrics", "jobs")))
    door.desk.gate.read_at = float("-inf")
    page = open_page()
    page.locator("#key[open]").wait_for()
    page.locator("#key-input").fill("lsk-wrong")
    page.keyboard.press("Enter")
    api.expect(page.locator("#key-error")).to_contain_text("not known", timeout=WAIT_MS)
    page.locator("#key-input").fill(secret)
    page.keyboard.press("Enter")
    page.locator("#state[data-state=live]").wait_for()


@pytest.fixture
def named_door(tiny_home, redis_url, free_port):
    """A door of node a, in whose fleet b has other weights."""
    a, b = NamedNode(redis_url, "a"), NamedNode(redis_url, "b")
    a.report(running=1, tokens_per_s=10.0)
    b.report(running=3, tokens_per_s=20.0)
    a.say(speed=1.0)
    b.say(identity=IDENTITY.replace("0123", "ffff"))
    settings = Settings(
        home=tiny_home, redis_url=redis_url, model="tiny", port=free_port(), node="a"
    )
    with running(settings) as door:
        yield door


def test_all_nodes_of_a_fleet_are_shown_and_why_one_takes_no_part(named_door, browser):
    context = browser.new_context(viewport={"width": 375, "height": 900})
    page = context.new_page()
    page.goto(f"{named_door.base}/")
    nodes = page.locator("#nodes tbody tr")
    api.expect(nodes).to_have_count(3, timeout=WAIT_MS)
    api.expect(nodes.nth(0)).to_contain_text("a (this one)")
    api.expect(nodes.nth(1)).to_contain_text("refused")
    api.expect(nodes.nth(2)).to_contain_text("ffff456789abcdef")
    api.expect(page.locator("#speed")).to_have_text("30.0")
    api.expect(page.locator("#pools-title")).to_have_text("Pools of a")
    assert page.locator("#pools article").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    context.close()


def test_a_node_that_is_alone_has_no_list_of_nodes(door, node, open_page):
    node.report()
    page = open_page()
    page.locator("#pools article").wait_for()
    assert page.locator("#nodes-section").is_hidden()
    api.expect(page.locator("#pools-title")).to_have_text("Pools")


def test_colors_follow_the_system_and_a_switch(door, node, open_page):
    page = open_page(scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator("#theme").click()
    dark = page.evaluate(paper)
    page.reload()
    assert light != dark == page.evaluate(paper)


def test_nothing_is_wider_than_a_phone(door, node, open_page):
    create(door, "a-job-with-a-rather-long-name-that-goes-on-and-on-for-64-letters")
    page = open_page(width=375)
    page.locator("#ended button").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
