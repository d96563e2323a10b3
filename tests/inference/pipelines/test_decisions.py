"""Deciding a question again from traces of both alternatives gives what the pipeline gives by the same settings."""

import dataclasses
from typing import Any

import pytest

from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.decisions import Alternatives, Controls, closed_settings, decide, opened_settings
from reflectune.inference.pipelines.documents import DocumentFinder
from reflectune.inference.pipelines.gated import GatedSettings
from reflectune.inference.pipelines.mmkb_rag import MMKBRAG, MmkbRagSettings
from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings, Unjudged
from reflectune.inference.trace import PassageTrace, Trace

RELEVANCE = {"a#0.0": 0.2, "a#1.0": 0.3, "b#0.0": 0.9, "b#1.0": 0.6, "c#0.0": 0.1, "c#1.0": 0.95}
ANSWERS = {"a#0.0": ("a0", 0.95), "b#0.0": ("b0", 0.7), "b#1.0": ("b1", 0.9), "c#1.0": ("c1", 0.9)}


@pytest.fixture
def ask(make, scripted, knowledge):
    """Return a function that asks a kind of pipeline about three entries, with settings."""

    def run(kind=MR2AG, settings=None, **more) -> Trace:
        settings = settings or Mr2agSettings(lead="none", **more)
        retriever = scripted.retriever({"a": 0.8, "b": 0.6, "c": 0.3})
        if kind is MMKBRAG:
            reader = scripted.prompted({"q000": 0.7}, RELEVANCE, "1.")
            pipeline = MMKBRAG(reader, DocumentFinder(retriever, knowledge, settings), settings)
        else:
            reader = scripted.reader({"q000": 0.7}, RELEVANCE, {**ANSWERS, "direct": ("by heart", 0.5)})
            pipeline = kind(reader, retriever, knowledge, settings)
        return pipeline.run([make.question(0)], scripted.images(1))[0]

    return run


@pytest.fixture
def alternatives(ask):
    """Return a function that asks a question of both alternatives."""

    def run(settings=None) -> Alternatives:
        settings = settings or Mr2agSettings(lead="none", top_n=2)
        opened, closed = opened_settings(settings, 3), closed_settings(settings)
        return Alternatives(ask(Unjudged, opened), ask(MR2AG, closed), "mr2ag")

    return run


@pytest.mark.parametrize(
    ("controls", "settings"),
    [
        ({}, {}),
        ({"gamma": 0.71}, {"gamma": 0.71}),
        ({"gamma": 0.7}, {"gamma": 0.7}),
        ({"entries": 1}, {"top_n": 1}),
        ({"entries": 1}, {"top_n": 1, "fallback": "closed_book"}),
        ({"entries": 1}, {"top_n": 1, "fallback": "abstain"}),
        ({"entries": 1}, {"top_n": 1, "fallback": "random"}),
        ({"entries": 2}, {"top_n": 2, "s_ret_temperature": 0.1, "relevant_shift": 2.0}),
        ({}, {"exponents": [0.0, 1.0, 1.0]}),
    ],
)
def test_a_decision_is_the_pipelines(ask, alternatives, controls, settings) -> None:
    made = Mr2agSettings(lead="none", **{"top_n": 3, **settings})
    asked, found = ask(settings=made), decide(alternatives(made), Controls(**controls), made)
    passages = {p.passage.id: p for p in asked.passages}
    opened = alternatives(made).opened
    judged = {p.passage.id: (p.s_rel, p.s_irr) for p in opened.passages}
    assert all(judged[name] == (read.s_rel, read.s_irr) for name, read in passages.items())
    assert (found.answer, found.retrieved, found.hits) == (asked.answer, asked.retrieved, asked.hits)
    if asked.chosen is not None:
        assert [opened.passages[k].passage.id for k in found.used] == [asked.passages[asked.chosen].passage.id]
        scores = {opened.passages[k].passage.id: scores for k, scores in found.scores.items()}
        assert scores == {name: passages[name].scores for name in scores}
        assert found.fallback == asked.fallback


def test_the_threshold_and_unticked_passages_choose_among_the_rest(alternatives) -> None:
    asked, settings = alternatives(), Mr2agSettings()
    assert decide(asked, Controls(threshold=0.93), settings).answer == "c1"
    assert sorted(decide(asked, Controls(threshold=0.0), settings).scores) == list(range(6))
    assert decide(asked, Controls(threshold=1.0), settings).fallback == "best_product"
    first = decide(asked, Controls(), settings)
    assert first.answer == "b0"
    assert decide(asked, Controls(without=first.used), settings).answer == "b1"
    assert decide(asked, Controls(without=range(6)), settings).answer == "by heart"


def test_the_weight_of_titles_orders_the_judged_entries(alternatives) -> None:
    asked = alternatives()
    parts = ({"image": 0.9, "title": 0.7}, {"image": 0.6, "title": 0.6}, {"image": 0.2, "title": 0.95})
    hits = tuple(
        dataclasses.replace(hit, parts=part, score=(part["image"] + part["title"]) / 2)
        for hit, part in zip(asked.opened.hits, parts, strict=True)
    )
    asked = dataclasses.replace(asked, opened=dataclasses.replace(asked.opened, hits=hits))
    found = decide(asked, Controls(title_weight=1.0, entries=1), Mr2agSettings())
    assert [(hit.entry_id, hit.rank, hit.score) for hit in found.hits] == [("c", 1, 0.95)]
    assert found.answer == "c1"
    assert decide(asked, Controls(title_weight=0.0, entries=2), Mr2agSettings()).answer == "b0"


@pytest.mark.parametrize(
    ("fallback", "used", "answer"),
    [
        ("closed_book", (), "by heart"),
        ("abstain", (), ""),
        ("random", (1,), "from the second"),
        ("best_product", (0,), "from the first"),
    ],
)
def test_reflectivas_fallback_is_the_pipelines(fallback, used, answer) -> None:
    passages = tuple(PassageTrace(Passage("a", 0, k, "", "", "", ""), 0.5, 0.2 - k / 10, 0.8) for k in range(2))
    closed = Trace("q", "reflectiva", answer="by heart", gate=0.9)
    found: Any = {"hits": (Hit("a", 0.5, 1),), "passages": passages, "used": used, "fallback": fallback}
    opened = Trace("q", "reflectiva", answer=answer, gate=0.9, retrieved=True, **found)
    decision = decide(Alternatives(opened, closed, "reflectiva"), Controls(), GatedSettings(fallback=fallback))
    assert (decision.answer, decision.used, decision.fallback) == (answer, used, fallback)


@pytest.mark.parametrize("controls", [{}, {"threshold": 0.95}, {"documents": 1}, {"threshold": 0.15}, {"gamma": 0.7}])
def test_mmkb_rag_answers_from_documents_that_were_read_together(ask, controls) -> None:
    settings = MmkbRagSettings(lead="none", top_n=3, mct="none")
    asked = Alternatives(
        ask(MMKBRAG, opened_settings(settings, 1)), ask(MMKBRAG, closed_settings(settings)), "mmkb_rag"
    )
    found = decide(asked, Controls(**controls), settings)
    renamed = {"k" if name == "documents" else name: value for name, value in controls.items()}
    again = ask(MMKBRAG, settings.model_copy(update=renamed))
    assert (found.retrieved, found.used) == (again.retrieved, again.used)
    assert found.answer == (again.answer if again.used in (asked.opened.used, ()) else None)
    left_out = decide(asked, Controls(without=asked.opened.used[:1]), settings)
    assert (left_out.used, left_out.answer) == (asked.opened.used[1:], None)


@pytest.mark.parametrize("fusion", [[], [1.0, 1.0, 0.0]])
def test_another_weight_of_titles_moves_the_share_that_orders_mmkb_rags_documents(fusion) -> None:
    settings = MmkbRagSettings(k=1, s_ret_temperature=0.1, srt_fusion=fusion, mct="none", documents=2)
    passages = tuple(
        PassageTrace(Passage(name, 0, 0, "", "", "", name), s_ret=s_ret, s_rel=0.5, s_irr=0.5)
        for name, s_ret in (("a", 0.9), ("b", 0.1))
    )
    hits = (Hit("a", 0.6, 1, parts={"image": 0.6, "title": 0.1}), Hit("b", 0.4, 2, parts={"image": 0.4, "title": 0.9}))
    opened = Trace("q", "mmkb_rag", gate=0.9, retrieved=True, hits=hits, passages=passages, kept=(0,), used=(0,))
    asked = Alternatives(opened, Trace("q", "mmkb_rag"), "mmkb_rag", title_weight=0.0)
    assert decide(asked, Controls(documents=1), settings).used == (0,)
    assert decide(asked, Controls(title_weight=1.0, documents=1), settings).used == (1,)
    assert decide(asked, Controls(title_weight=1.0, entries=1), settings.model_copy(update={"srt": False})).used == (1,)


def test_without_a_candidate_mr2ag_abstains_where_its_fallback_says_so() -> None:
    opened = Trace("q", "mr2ag_unjudged", gate=0.9, retrieved=True)
    asked = Alternatives(opened, Trace("q", "mr2ag", answer="by heart", confidence=0.5), "mr2ag")
    decision = decide(asked, Controls(), Mr2agSettings(fallback="abstain"))
    assert (decision.answer, decision.fallback) == ("", "abstain")
