"""The report in a browser: sliders that decide as Python does, links, texts that stay texts, and the keyboard."""

import dataclasses
import random
import re
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.mr2ag import ChoiceSettings, choose_again, decide_again
from reflectune.inference.report.page import write_report
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.losses import counted, outcomes
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.metrics.reporting.breakdown import headline

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")

EVIL = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
GAMMA, QUESTIONS = 0.5, 2000
MEASURE, SETTINGS = (
    TraceScorer("infoseek"),
    ChoiceSettings(exponents=[1.0, 2.0, 0.5], votes=True, s_ret_temperature=0.05),
)


def answered(make: SimpleNamespace, number: int, draw: random.Random) -> Any:
    """Return a trace of mR²AG: its relevant passages are answered from, or all if none is relevant."""
    gate = draw.random() ** 0.3
    if gate < GAMMA:
        return make.trace(number, "mr2ag", draw.choice(("oak", "fir")), gate=gate)
    hits = tuple(make.hit(f"e{k}", rank, draw.uniform(0.6, 0.9)) for rank, k in enumerate(draw.sample(range(6), 5), 1))
    read = [make.read(hit.entry_id, section, rel=draw.random() ** 3) for hit in hits for section in (0, 1)]
    anyhow = not any(passage.relevant for passage in read)
    passages = tuple(
        dataclasses.replace(passage, answer=draw.choice(("oak", "fir", "", EVIL)), s_ans=draw.random())
        if passage.relevant or anyhow
        else passage
        for passage in read
    )
    trace = make.trace(number, "mr2ag", "", gate=gate, retrieved=True, hits=hits, passages=passages)
    return dataclasses.replace(decide_again(trace, SETTINGS), passages=passages)


@pytest.fixture(scope="module")
def run(make: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A report of 2,000 questions, with markup in every text, and the traces behind it."""
    folder, draw = tmp_path_factory.mktemp("report"), random.Random(0)
    (folder / "images").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "images/a.png")
    entries = [dataclasses.replace(make.entry(k), title=EVIL) for k in range(6)]
    splits = ("val_unseen_question", "val_unseen_entity")
    questions = [
        make.question(
            *(number, splits[number % 2]),
            text=f"{EVIL} {number}?",
            entity_ids=("e0",),
            evidence=make.evidence("e0"),
            requires_retrieval=number % 5 > 0,
        )
        for number in range(QUESTIONS)
    ]
    make.data_set(folder, entries, questions)
    traces = {
        "mr2ag": {q.id: answered(make, number, draw) for number, q in enumerate(questions)},
        "closed_book": {q.id: make.trace(number, "closed_book", EVIL) for number, q in enumerate(questions)},
    }
    official = MEASURE.official(questions)
    metrics = evaluate(questions[:50], traces, measure=MEASURE, gamma=GAMMA, seed=0)
    metrics |= {"names": {"mr2ag": "mR²AG", "closed_book": EVIL}, "readers": {}}
    metrics["losses"] = {name: counted(outcomes(official, made, MEASURE)) for name, made in traces.items()}
    path = folder / "report.html"
    shown = {"title": EVIL, "facts": {EVIL: EVIL}, "notices": [EVIL]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reflectune.inference.report.page.MAX_QUESTIONS", QUESTIONS)
        write_report(
            *(path,),
            dataset=Dataset(folder),
            questions=questions,
            traces=traces,
            metrics=metrics,
            measure=MEASURE,
            gamma=GAMMA,
            choice=SETTINGS,
            seed=0,
            **shown,
        )
    return SimpleNamespace(path=path, questions=questions, traces=traces["mr2ag"], metrics=metrics)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, run: SimpleNamespace) -> Iterator[Any]:
    """The report, opened again; neither an error nor a refused policy may have been logged at the end."""
    opened, problems = browser.new_page(), []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(run.path.as_uri())
    yield opened
    opened.close()
    assert problems == []


def decision(trace: Any, gamma: float, threshold: float, entries: int, **more: Any) -> list[Any] | None:
    """Return the position and the answer that Python chooses; None for an answer that isn't stored."""
    if (trace.gate >= gamma) != trace.retrieved:
        return None
    if not trace.retrieved:
        return [None, trace.answer]
    known = dataclasses.replace(trace, hits=trace.hits[:entries])
    choice = choose_again(known, SETTINGS.model_copy(update=more), threshold=threshold)
    return None if choice is None else [choice.chosen, trace.passages[choice.chosen].answer]


AS_IT_RAN = (GAMMA, 0.5, 5)
CASES = [AS_IT_RAN, (0.5, 0.97, 5), (0.2, 0.6, 5), (0.9, 0.9, 3)]
DECIDE = """([gamma, threshold, entries, votes]) => Object.fromEntries(data.questions.map((question) => {
  const trace = question.traces.mr2ag;
  const again = trace.again && { ...trace.again, read: trace.again.read.map((row) => row.slice(0, votes ? 7 : 6)) };
  const now = decide({ ...trace, again }, { gamma, threshold, entries });
  return [question.id, now && [now.chosen, now.answer]];
}))"""


def test_sliders_decide_as_python_does(page, run) -> None:
    official = MEASURE.official(run.questions)
    rows, weights = headline("infoseek", official), np.ones((1, len(official)))
    for case in CASES:
        for label, value in zip(("γ", "Relevance", "Entries"), case, strict=True):
            page.get_by_label(re.compile(f"^{label}")).fill(str(value))
        for votes in (False, True):
            decided = {q.id: decision(run.traces[q.id], *case, votes=votes) for q in run.questions}
            assert page.evaluate(DECIDE, [*case, votes]) == decided, (case, votes)
        known = [(q, decided[q.id]) for q in official]
        worth = [[0.0, 1.0] if now is None else [MEASURE.worth(now[1], q)] * 2 for q, now in known]
        scored = [rows.statistic(rows.rows(values), weights).item() for values in zip(*worth, strict=True)]
        least, most = (f"{100 * value:.1f}" for value in scored)
        shown = page.locator("#decided").inner_text()
        assert f"→ {least}{f' to {most}' if least != most else ''} %" in shown
        if case == AS_IT_RAN:
            assert all(now[1] == run.traces[key].answer for key, now in decided.items())
            assert "become right: 0, wrong: 0. The gate" in shown


def test_a_slider_takes_less_than_100_ms_and_ends_where_no_answer_is_stored(page) -> None:
    slider = page.get_by_label("Relevance threshold")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("0.5", "1")
    assert page.locator("#least").is_visible()
    took = (
        "(s) => { const start = performance.now(); s.value = 0.9; s.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    assert min(slider.evaluate(took + "return performance.now() - start; }") for _ in range(5)) < 100


def test_a_part_of_a_chart_leads_to_its_questions_and_a_question_has_an_address(page, run) -> None:
    lost = run.metrics["losses"]["mr2ag"]["outranked"]
    for _ in range(2):  # a second click leads there again
        page.get_by_label("Outcome").select_option("all")
        page.locator("svg a[href='#pipeline=mr2ag&outcome=outranked']").click()
        assert page.locator("#count").inner_text() == f"{lost} of {QUESTIONS} questions"
    first = page.locator("details.question").first
    assert "other passage preferred" in first.inner_text()
    first.locator("summary").click()
    link = first.get_by_role("link", name="Link to this question").get_attribute("href")
    page.goto(run.path.as_uri() + link)
    page.reload()
    assert page.locator("#count").inner_text() == f"1 of {QUESTIONS} questions"
    assert page.locator("details.question[open] .passage").count() == 10


def test_what_changes_at_the_sliders_is_shown_at_each_question(page, run) -> None:
    page.get_by_label("Relevance threshold").fill("0.9")
    page.get_by_label("Outcome").select_option("changed by the sliders")
    changed = [
        q
        for q in run.questions
        if decision(run.traces[q.id], GAMMA, 0.9, 5) != decision(run.traces[q.id], GAMMA, 0.5, 5)
    ]
    assert page.locator("#count").inner_text() == f"{len(changed)} of {QUESTIONS} questions"
    assert "at the sliders: " in page.locator("details.question .again").first.inner_text()
    page.get_by_role("button", name="As it ran").click()
    playwright.expect(page.locator("#count")).to_have_text(f"0 of {QUESTIONS} questions")


def test_texts_of_data_and_models_stay_texts(page) -> None:
    page.locator("details.question summary").first.click()
    assert EVIL in page.locator("h1").inner_text()
    assert EVIL in page.locator("details.question .asked").first.inner_text()
    assert page.locator("details.question .detail").first.inner_text().count(EVIL) > 5
    assert page.locator("[onerror], [src='x']").count() == 0
    assert page.locator("script").count() == 2  # the data and ours
    assert page.title() != "hit"


def test_the_keyboard_reaches_sliders_links_and_questions(page, run) -> None:
    gamma = page.get_by_label(re.compile("^γ"))
    gamma.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#again output").first.inner_text() == "0.51"
    page.locator(".numbers summary").focus()
    for key in ("Enter", "Tab", "Enter"):  # open the numbers, and follow the first
        page.keyboard.press(key)
    assert "outcome=right" in page.evaluate("location.hash")
    right = run.metrics["losses"]["mr2ag"]["right"]
    playwright.expect(page.locator("#count")).to_have_text(f"{right} of {QUESTIONS} questions")  # a later event's work
    page.locator("details.question summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.question[open]").count() == 1
