"""The page decides as the pipeline does, for each scheme, and keeps the questions that were asked last."""

import dataclasses
import io
from collections.abc import Iterator

import pytest

from reflectune.core.config import make_config
from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.decisions import Alternatives, Controls, decide
from reflectune.inference.pipelines.gated import GatedSettings
from reflectune.inference.reading.ranking import product
from reflectune.inference.serving import questions
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.questions import PageQuestions
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.serving.views import AskedQuestion, view
from reflectune.inference.trace import PassageTrace, Trace

ASKED = "What does it eat?"


@pytest.fixture(scope="module", params=["mr2ag", "mmkb_rag"])
def asking(request, service, world, prompted, make) -> Iterator[PageQuestions]:
    if request.param == "mr2ag":
        yield PageQuestions(service, "mr2ag")
        return
    more = {"gamma": 0.0, "top_n": 2, "pipelines": ["mmkb_rag", "closed_book"], "max_reply_tokens": 4}
    with AnswerService(make_config(ServeConfig, **make.keys(world, prompted, **more))) as opened:
        yield PageQuestions(opened, "mmkb_rag")


def test_the_page_decides_as_the_pipeline_and_forgets_old_questions(asking, photo, monkeypatch) -> None:
    monkeypatch.setattr(questions, "KEPT", 1)
    buffer = io.BytesIO()
    photo.save(buffer, "PNG")
    *partial, asked = asking.ask(ASKED, buffer.getvalue())
    trace = asking.service.submit(ASKED, photo, asking.name).result()
    opened = [early.alternatives.opened for early in partial]
    assert [early.gate for early in opened] == [pytest.approx(trace.gate, abs=1e-5)] * 2
    assert [len(early.hits) for early in opened] == [0, len(asked.alternatives.opened.hits)] == [0, 3]
    controls = Controls(gamma=0.0, entries=2) if asking.name == "mr2ag" else Controls(gamma=0.0)
    decision = decide(asked.alternatives, controls, asking.settings)
    assert (decision.retrieved, decision.answer) == (True, trace.answer)
    assert [hit.entry_id for hit in decision.hits][:2] == [hit.entry_id for hit in trace.hits]
    closed = view(asked, Controls(gamma=1.0), asking.settings)
    assert "Answered from the image" in closed.answer
    assert f"threshold {1:.2f}" in closed.status
    assert asked.alternatives.closed.answer in closed.status
    again = Controls(title_weight=1.0) if asking.name == "mr2ag" else Controls(gamma=0.0, threshold=1.0, documents=2)
    *_, later = asking.ask(ASKED, buffer.getvalue(), again)
    if asking.name == "mr2ag":
        hits = later.alternatives.opened.hits
        assert [hit.score for hit in hits] == pytest.approx([hit.parts["title"] for hit in hits])
        assert [hit.score for hit in hits] != [hit.score for hit in asked.alternatives.opened.hits]
        powers = asking.settings.model_copy(update={"exponents": [2.0, 1.0, 0.5]})
        chosen = decide(asked.alternatives, controls, powers)
        opened = dataclasses.replace(asked.alternatives.opened, exponents=tuple(powers.exponents))
        weighed = dataclasses.replace(asked, alternatives=dataclasses.replace(asked.alternatives, opened=opened))
        shown = view(weighed, controls, powers).evidence
        assert "S_ret^2 · S_rel · S_ans^0.5 of each candidate" in shown
        assert f"<td>{product(chosen.scores[chosen.used[0]], exponents=powers.exponents):.3f}</td>" in shown
    else:
        assert decide(asked.alternatives, again, asking.settings).answer is None
        assert decide(later.alternatives, again, asking.settings).answer == later.alternatives.opened.answer
    assert (asking.find(asked.id), asking.find(later.id)) == (None, later)


def test_a_visitor_who_leaves_asks_nothing_more(asking, photo, busy) -> None:
    photo.save(buffer := io.BytesIO(), "PNG")
    batches: list[str] = []
    asking.service.on_batch = lambda pipeline, count: batches.append(pipeline)
    answers = asking.ask(ASKED, buffer.getvalue())
    next(answers)
    answers.close()
    asking.service.submit(ASKED, photo, "closed_book").result()
    assert len(batches) < 2 + len(asking.others())


def test_a_question_without_words_or_image_is_refused_in_a_sentence(asking, photo) -> None:
    photo.save(buffer := io.BytesIO(), "PNG")
    for text, image, problem in (
        (ASKED, b"", "an image is needed"),
        (" ", buffer.getvalue(), "the question is empty"),
    ):
        with pytest.raises(UserError, match=problem):
            next(asking.ask(text, image))


@pytest.mark.parametrize(
    ("fallback", "why"), [("random", "was drawn at random"), ("best_product", "has the best score")]
)
def test_the_page_says_how_a_passage_was_chosen_if_none_is_relevant(fallback, why: str) -> None:
    passages = (PassageTrace(Passage("a", 0, 0, "Oak", "", "", ""), 0.5, 0.2, 0.8),)
    found = Trace(
        "q", "reflectiva", gate=0.9, hits=(Hit("a", 0.5, 1),), passages=passages, used=(0,), fallback=fallback
    )
    alternatives = Alternatives(found, Trace("q", "reflectiva"), "reflectiva")
    asked = AskedQuestion("id", ASKED, "", alternatives, entries={"a": ("Oak", "")})
    assert (
        f"no passage is relevant, this one {why}." in view(asked, Controls(), GatedSettings(fallback=fallback)).status
    )
