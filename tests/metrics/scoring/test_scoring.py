import dataclasses

import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.mmkb.run import score_by_metric
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.metrics.judging.bem import TooLongError
from reflectune.metrics.official import evqa
from reflectune.metrics.scoring.predictions import Prediction
from reflectune.metrics.scoring.registry import evqa_candidate, evqa_type, find_metric
from reflectune.metrics.scoring.scoring import join, score

QUESTIONS = [
    Question("q0", "", "Where?", answers=("China", "PRC"), split="val_unseen_question"),
    Question("q1", "", "How tall?", range=(9.0, 11.0), answer_type="numerical", split="val_unseen_question"),
    Question("e0", "", "Which?", answers=("France",), split="val_unseen_entity"),
    Question("e1", "", "When?", answers=("1887",), answer_type="time", split="val_unseen_entity"),
]


def predictions(*pairs: tuple[str, str]) -> list[Prediction]:
    return [Prediction(f"p.jsonl:{n}", (key,), answer) for n, (key, answer) in enumerate(pairs, start=1)]


class Words:
    """A stand-in for BEM in the signature of `Bem`: equivalent if the first letters agree; reads 512 letters."""

    def __init__(self) -> None:
        self.triples_read = 0

    def length(self, triple: tuple[str, str, str]) -> int:
        return sum(map(len, triple))

    def logits(self, triples: list[tuple[str, str, str]]) -> np.ndarray:
        self.triples_read += len(triples)
        return np.array([[0.0, 1.0] if c[:1] == r[:1] else [1.0, 0.0] for c, r, _ in triples])

    def __call__(self, *segments: str) -> list[float]:
        if self.length(segments) > 512:  # type: ignore[arg-type]
            raise TooLongError("too long")
        return list(self.logits([segments])[0])  # type: ignore[list-item]


def test_official_counts_what_is_written_and_strict_what_is_asked() -> None:
    rows = predictions(("q0", "PRC"), ("e0", "x"), ("zzz", "?"), ("e0", "France"))
    joined = join(rows, QUESTIONS, "official")
    counts = {"questions": 4, "predictions": 4, "missing": 2, "unknown": 1, "doubled": 1, "left_out": 0}
    assert joined.counts == {**counts, "coverage": 0.5}
    assert list(score(joined, "infoseek", "official").values) == [1, 0, 1]
    strict = score(join(rows[:2], QUESTIONS, "strict"), "infoseek", "strict")
    by_id = dict(zip((q.id for q in strict.questions), strict.values, strict=True))
    assert by_id == {"q0": 1, "e0": 0, "q1": 0, "e1": 0}


def test_strict_refuses_doubled_and_unknown_predictions() -> None:
    with pytest.raises(UserError, match=r"p\.jsonl:2: id q0 was answered at p\.jsonl:1"):
        join(predictions(("q0", "a"), ("q0", "b")), QUESTIONS, "strict")
    with pytest.raises(UserError, match=r"p\.jsonl:1: no question is known as 'zzz'"):
        join(predictions(("zzz", "a")), QUESTIONS, "strict")
    with pytest.raises(UserError, match="two questions"):
        join([], QUESTIONS + QUESTIONS[:1], "official")


def test_questions_that_need_no_retrieval_are_left_out() -> None:
    visual = Question("v", "", "Colour?", answers=("red",), requires_retrieval=False)
    rows = predictions(("v", "red"), ("v", "red"), ("q0", "PRC"))
    joined = join(rows, [*QUESTIONS[:1], visual], "strict")
    assert [question.id for question, _ in joined.pairs] == ["q0"]
    assert (joined.counts["left_out"], joined.counts["missing"], joined.counts["coverage"]) == (2, 0, 1.0)


def test_the_score_has_the_questions_of_an_evaluation() -> None:
    two_hop = Question("h", "", "Who?", answers=("Ann",), split="val_unseen_entity", meta={"two_hop": "yes"})
    bare, free = Question("b", "", "Who?"), Question("f", "", "Why?", answers=("So.",), answer_type="free_form")
    questions = [*QUESTIONS, two_hop, bare, free]
    rows = predictions(*((question.id, "x") for question in questions))
    joined = join(rows, questions, "strict", "infoseek")
    assert [q.id for q, _ in joined.pairs] == [q.id for q in TraceScorer("infoseek").official(questions)]
    assert (joined.counts["left_out"], joined.counts["missing"]) == (3, 0)
    assert "h" in [q.id for q, _ in join(rows, questions, "strict", "exact_match").pairs]


def test_the_second_name_of_a_row_is_tried() -> None:
    (pair,) = join([Prediction("p:1", ("row:3", "e0"), "France")], QUESTIONS, "strict").pairs
    assert pair[0].id == "e0"


def test_echosights_row_numbers() -> None:
    questions = [Question(f"evqa_test_{n:08d}", "", "Q?", answers=("a",)) for n in range(12)]
    assert join(predictions(("E-VQA_11", "a")), questions, "official").pairs[0][0].id == "evqa_test_00000011"
    named = [Question("x7", "", "Q?", meta={"row": "3"}), Question("x3", "", "Q?", meta={"row": "7"})]
    assert join(predictions(("E-VQA_3", "a")), named, "official").pairs[0][0].id == "x7"
    assert join(predictions(("E-VQA_99", "a")), questions, "official").unknown


def test_rows_without_ids_are_found_by_text_and_references_each_once() -> None:
    questions = [Question(f"q{n}", "", "Q?", answers=("a", "b")) for n in range(2)]
    questions.append(Question("z", "", "Q?", answers=("c",)))
    rows = [Prediction(f"p:{n}", (), "a", question="Q?", references=("a", "b")) for n in range(3)]
    joined = join(rows, questions, "official")
    assert [question.id for question, _ in joined.pairs] == ["q0", "q1"]
    assert len(joined.unknown) == 1
    assert [question.id for question in joined.missing] == ["z"]
    spaced = [dataclasses.replace(row, question="Q? ", references=("a ", " b", "")) for row in rows]
    assert [question.id for question, _ in join(spaced, questions, "official").pairs] == ["q0", "q1"]
    images = [Question("q0-2", "", "Q?", answers=("a", "b"), meta={"row_image": "2"}), *questions]  # isn't scored
    assert join(rows, images, "official").pairs == joined.pairs
    twin = Question("v", "", "Q?", answers=("a", "b"), split="val")
    with pytest.raises(UserError, match=r"p:0: 'Q\?' is in test and val; set `splits`"):
        join(rows, [*(dataclasses.replace(question, split="test") for question in questions), twin], "official")


def test_a_difficult_direct_answer_of_aokvqa_is_not_scored() -> None:
    difficult = Question("d", "", "Why?", answers=("red",), meta={"difficult_direct_answer": "true"})
    easy = Question("e", "", "Why?", answers=("red",), meta={"difficult_direct_answer": "false"})
    rows = predictions(("d", "red"), ("e", "red"))
    assert [question.id for question, _ in join(rows, [difficult, easy], "strict", "vqa").pairs] == ["e"]
    assert len(join(rows, [difficult, easy], "strict", "choice").pairs) == 2


EVQA = [
    Question("0", "", "A?", answers=("red", "blue"), meta={"question_type": "automatic"}),
    Question("1", "", "B?", answers=("red&&blue", "green&&blue"), answer_type="multi_answer"),
    Question("2", "", "C?", answers=("Rome",), meta={"two_hop": "yes"}),
]


def test_evqa_is_the_official_function_with_bem_asked_in_one_go() -> None:
    rows = predictions(("0", "bluish"), ("1", "red and blue"), ("2", "Paris"), ("0", "grey"))
    bem = Words()
    result = score(join(rows, EVQA, "official"), "evqa", "official", bem)  # type: ignore[arg-type]
    expected = [
        evqa.evaluate_example(q.text, q.answers, str(p.answer), evqa_type(q), Words())
        for q, p in join(rows, EVQA, "official").pairs
    ]
    assert list(result.values) == expected == [1.0, 1.0, 0.0, 0.0]
    assert bem.triples_read == 6


LIST = Question("l", "", "?", answers=("red&&blue",), answer_type="multi_answer")
LISTS = ("red&&blue", "blue && red", "red, blue", "red and blue")


@pytest.mark.parametrize("answer", LISTS)
@pytest.mark.parametrize("metric", ["evqa", "evqa_exact", "infoseek", "exact_match"])
def test_a_list_is_read_whether_it_is_connected_as_we_ask_or_as_official_code_reads_it(metric, answer) -> None:
    bem = Words() if metric == "evqa" else None
    result = score(join(predictions(("l", answer)), [LIST], "official"), metric, "official", bem)  # type: ignore[arg-type]
    assert list(result.values) == [1.0]
    (value,) = score_by_metric([("l", answer)], {"l": LIST}, metric, bem).values()  # type: ignore[arg-type]
    assert value == find_metric(metric, bem)(answer, LIST) == 1.0
    assert bem is None or bem.triples_read == 0


def test_official_code_is_handed_commas_and_so_is_bem() -> None:
    class Noting(Words):
        def logits(self, triples: list[tuple[str, str, str]]) -> np.ndarray:
            handed.extend(triples)
            return super().logits(triples)

    handed: list[tuple[str, str, str]] = []
    rows = predictions(("1", "crimson&&navy"))
    result = score(join(rows, EVQA, "official"), "evqa", "official", Noting())  # type: ignore[arg-type]
    by_hand = evqa.evaluate_example("B?", EVQA[1].answers, "crimson,navy", "multi_answer", Words())
    assert list(result.values) == [by_hand]
    assert handed == [("crimson,navy", "red,blue", "B?"), ("crimson,navy", "green,blue", "B?")]


def test_only_a_list_has_its_ampersands_read_as_commas() -> None:
    title = Question("t", "", "Which?", answers=("Mason && Dixon",), meta={"question_type": "automatic"})
    assert evqa_candidate("Mason && Dixon", title) == "Mason && Dixon"
    joined = join(predictions(("t", "Mason & Dixon")), [title], "official")
    assert list(score(joined, "evqa_exact", "official").values) == [1]


def test_exact_match_reads_numbers_by_their_range_and_lists_by_their_items() -> None:
    questions = [QUESTIONS[1], EVQA[1], Question("x", "", "?", answers=("red",), answer_type="multi_answer")]
    said = {"q1": ("about 10 m", "12"), "1": ("blue, the red", "red"), "x": ("red", "red && blue")}
    for number, expected in enumerate((1.0, 0.0)):
        rows = predictions(*((key, answers[number]) for key, answers in said.items()))
        assert set(score(join(rows, questions, "official"), "exact_match", "official").values) == {expected}


def test_exact_match_of_an_answer_of_which_normalisation_leaves_nothing() -> None:
    vitamin = Question("q", "", "Which vitamin?", answers=("A", "retinol"))
    values = {answer: find_metric("exact_match")(answer, vitamin) for answer in ("A", "a ", "the", "", "Retinol")}
    assert values == {"A": 1.0, "a ": 1.0, "the": 0.0, "": 0.0, "Retinol": 1.0}
    assert find_metric("exact_match")("B", dataclasses.replace(vitamin, answers=("A",))) == 0.0


def test_too_long_for_bem_is_an_error_officially_and_wrong_strictly() -> None:
    rows = predictions(("0", "b" * 600), ("2", "Roma"))
    with pytest.raises(UserError, match=r"p\.jsonl:1: id 0: .* 512"):
        score(join(rows, EVQA, "official"), "evqa", "official", Words())  # type: ignore[arg-type]
    result = score(join(rows, EVQA, "strict"), "evqa", "strict", Words())  # type: ignore[arg-type]
    assert list(result.values) == [0.0, 1.0, 0.0]
    assert result.too_long == ("0",)
    either = [Question("0", "", "Which letters?", answers=("b" * 600, "c"))]
    assert score(join(predictions(("0", "c")), either, "strict"), "evqa", "strict", Words()).too_long == ()  # type: ignore[arg-type]


def test_what_can_not_be_scored_is_named() -> None:
    ranged, empty = Question("n", "", "?", answer_type="numerical"), Question("e", "", "?", answers=("the",))
    questions = [ranged, Question("s", "", "?"), empty]
    for key, metric, said in (
        ("n", "infoseek", "no range"),
        ("s", "vqa", "no answers"),
        ("s", "evqa_exact", "no answers"),
        ("e", "evqa_exact", r"p\.jsonl:1: id e: Reference answer is empty"),
    ):
        with pytest.raises(UserError, match=said):
            score(join(predictions((key, "x")), questions, "official"), metric, "official")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds no answers"):
        score(join([Prediction("r:1", ("s",), None)], questions, "official"), "infoseek", "official")
