from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.documents import DocumentFinder, DocumentFinderSettings
from reflectune.inference.pipelines.mmkb_rag import ReflectionScores
from reflectune.inference.pipelines.stages import Relevance


def test_relevance_judges_gold_and_the_rest_and_answers_from_gold(make, scripted, knowledge, tmp_path) -> None:
    reader = scripted.reader(relevance={"a#1.0": 0.9, "a#0.0": 0.3}, answers={"a#1.0": ("mice", 0.8)})
    stage = Relevance(reader, DiagnosticPassages(tmp_path, {}, knowledge, "none", seed=0))
    good, bare = stage.run([make.question(0, evidence=make.evidence("a", 1)), make.question(1)], scripted.images(2))
    assert [(p.source, p.passage.id, p.relevant) for p in good.passages] == [
        ("gold", "a#1.0", True),
        ("same_article", "a#0.0", False),
    ]
    assert (good.answer, good.chosen, good.passages[0].s_ans) == ("mice", 0, 0.8)
    assert (bare.answer, bare.passages, bare.chosen) == ("", (), None)
    assert reader.answered == ["a#1.0"]  # gold is answered from whether it was judged relevant or not


def test_reflection_scores_every_question_whatever_ret_says(make, scripted, knowledge) -> None:
    reader = scripted.prompted(gates={"q000": 0.1, "q001": 0.9}, relevance={"b#1.0": 0.8, "a#0.0": None})
    finder = DocumentFinder(scripted.retriever({"a": 0.8, "b": 0.4}), knowledge, DocumentFinderSettings(lead="none"))
    questions = [make.question(0, answer="b", entity_ids=("b",)), make.question(1, answer="b", entity_ids=("a",))]
    first, second = ReflectionScores(reader, finder).run(questions, scripted.images(2))
    assert (first.pipeline, first.gate, second.gate) == ("reflection", 0.1, 0.9)
    assert [p.s_rel for p in first.passages] == [None, 0.1, 0.1, 0.8]
    assert [p.source for p in first.passages] == ["", "", "stating", "stating"]
    assert [p.source for p in second.passages] == ["", "", "", ""]  # they hold the answer, but of another entity
    assert (first.answer, reader.contexts) == ("", {})


def test_reflection_asks_of_a_visual_question_only_whether_to_look_it_up(make, scripted, knowledge) -> None:
    reader = scripted.prompted(gates={"q000": 0.1, "q001": 0.9}, relevance={})
    finder = DocumentFinder(scripted.retriever({"a": 0.8}), knowledge, DocumentFinderSettings(lead="none"))
    questions = [make.question(0, requires_retrieval=False), make.question(1)]
    visual, known = ReflectionScores(reader, finder).run(questions, scripted.images(2))
    assert (visual.gate, visual.retrieved, visual.hits, visual.passages) == (0.1, False, (), ())
    assert (known.gate, known.retrieved, len(known.hits)) == (0.9, True, 1)
