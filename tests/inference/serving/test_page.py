"""The page in a real browser: ask, decide again without the model, follow a link, and resist injected text."""

import dataclasses
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs chromium", allow_module_level=True)

import uvicorn  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402

from reflectune.examples.space.app import build  # noqa: E402
from reflectune.inference.serving.page import mount_page  # noqa: E402

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>${1+1}{{value}}"


@pytest.fixture(scope="module")
def site(service, world) -> Iterator[SimpleNamespace]:
    """The page of a service whose first entry has a hostile title, and the batches that it asks of the models."""
    knowledge, batches, get = service.dataset.knowledge, [], service.dataset.knowledge.get
    service.on_batch = lambda pipeline, count: batches.append(pipeline)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knowledge, "get", lambda name: dataclasses.replace(get(name), title=f"{EVIL} {name}"))
        app = FastAPI()
        mount_page(app, service)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            thread.join(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}/", batches=batches, world=world)
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(site, browser) -> Iterator["playwright.Page"]:
    opened = browser.new_page(viewport={"width": 400, "height": 900})
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.goto(site.url)
    yield opened
    assert not opened.errors
    assert opened.title() == "reflectune"
    opened.close()


def ask(page, image: Path, question: str) -> None:
    page.locator("input[type=file]").first.set_input_files(image)
    page.get_by_role("img", name="").first.wait_for()
    field = page.get_by_label("Question")
    field.fill(question)
    field.press("Enter")


def answered(page) -> str:
    """Return the answer, once it is there with its link."""
    page.get_by_role("link", name="Link to this trace").wait_for()
    return page.locator("#rt-answer").inner_text()


def slide(page, label: str, value: float) -> None:
    page.get_by_role("spinbutton", name=label).fill(str(value))
    page.get_by_role("spinbutton", name=label).press("Tab")


def test_an_example_is_asked_and_decided_again_without_the_model(site, page) -> None:
    page.get_by_role("button", name="to retrieve for").first.click()
    opened = answered(page)
    asked = page.request.get(page.locator("img[src*='/file=']").first.get_attribute("src")).body()
    assert asked in [file.read_bytes() for file in (site.world / "images").iterdir()]
    gate = page.get_by_role("img", name="retrieve")
    value = float(gate.get_attribute("aria-label").split()[1].strip(","))
    assert gate.get_attribute("aria-label").endswith("threshold 0.00")
    assert page.locator("#rt-status").inner_text().startswith(f"Answer: {opened}")
    assert page.get_by_role("cell").count() >= 5
    asked = len(site.batches)
    assert {"closed_book", "naive_rag_articles", "mr2ag_unjudged", "mr2ag"} <= {*site.batches}
    slide(page, "Gate γ", round(value + 0.01, 2))
    page.locator("#rt-why", has_text="Answered from the image").wait_for()
    slide(page, "Gate γ", 0)
    page.locator("#rt-why", has_text="Retrieved from").wait_for()
    assert page.locator("#rt-answer").inner_text() == opened
    slide(page, "Titles", 1)
    note = page.get_by_role("note").get_by_text("ask again to search by it")
    note.wait_for()
    assert len(site.batches) == asked  # the model was not asked
    page.get_by_role("button", name="Ask", exact=True).click()
    note.wait_for(state="detached")
    answered(page)
    assert len(site.batches) > asked
    assert page.get_by_role("spinbutton", name="Titles").input_value() == "1"


def test_a_passage_is_unticked_by_keyboard_and_a_link_opens_the_trace(site, page) -> None:
    ask(page, site.world / "images/e1.png", "What does it eat?")
    opened = answered(page)
    asked, link = len(site.batches), page.url
    box = page.get_by_role("checkbox", checked=True).first
    name = box.get_attribute("id")
    box.focus()
    page.keyboard.press("Space")
    page.locator(f".rt-out #{name}:not(:checked)").wait_for()  # decided again
    page.wait_for_function("name => document.activeElement.id === name", arg=name)  # the focus stays
    chosen = page.locator(".rt-chosen th").inner_text()
    assert not chosen.startswith(f"{int(name.split('-')[-1]) + 1}. ")
    page.goto(link)
    assert (answered(page), len(site.batches)) == (opened, asked)
    playwright.expect(page.locator("#rt-answer")).to_be_in_viewport()
    assert page.get_by_role("checkbox", checked=False).count() == 0
    page.goto(f"{site.url}?trace=../../etc/passwd")
    page.get_by_text("has expired").wait_for()


def test_hostile_text_is_shown_and_never_run(site, page) -> None:
    ask(page, site.world / "images/e0.png", f"{EVIL} what?")
    answered(page)
    assert page.locator(".rt-asked figcaption").inner_text() == f"{EVIL} what?"
    assert page.locator(".rt-entries li b").first.inner_text().startswith(f"1. {EVIL}")
    assert page.locator(".rt script, .rt img[src=x]").count() == 0


def test_bad_input_gets_a_sentence(page, tmp_path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"no image")
    page.set_viewport_size({"width": 400, "height": 600})
    with page.expect_response(lambda response: "/upload" in response.url):
        page.locator("input[type=file]").first.set_input_files(image)
    page.get_by_label("Question").fill("What does it eat?")
    page.get_by_role("button", name="Ask", exact=True).click()
    problem = page.locator("#rt-status").get_by_text("format is not supported")
    playwright.expect(problem).to_be_in_viewport()


def test_the_page_fits_a_phone_and_names_every_control(page) -> None:
    page.get_by_role("button", name="to retrieve for").first.click()
    answered(page)
    edges = "[...document.querySelectorAll('.rt, .rt-scroll, input')].map(it => it.getBoundingClientRect().right)"
    assert max(page.evaluate(edges)) <= 400
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, input:not([type=file]), img')].filter(it => it.checkVisibility()
        && !(it.ariaLabel || it.title || it.innerText || it.labels?.length || it.hasAttribute('alt'))).length"""
    )
    assert unnamed == 0


def test_a_space_serves_the_page_of_its_config(world, checkpoints, make, tmp_path) -> None:
    keys = {**make.keys(world, checkpoints), "pipelines": ["closed_book", "mr2ag"]}
    (tmp_path / "serve.yaml").write_text(json.dumps(keys))
    reply = TestClient(build(tmp_path / "serve.yaml")).get("/")
    assert (reply.status_code, "to answer from the image" in reply.text) == (200, True)
