"""ReAG's lessons: what the critic learns is what the pipeline asks it, in the shares of the config."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Passage, Question, Section
from reflectune.data_builders.exporting.conversations import ConversationForm, Neutraliser, conversations
from reflectune.examples.lessons.config import LessonsConfig
from reflectune.examples.lessons.reag import CriticShares, ReagTeacher
from reflectune.examples.lessons.teacher import teacher_of
from reflectune.examples.lessons.write_lessons import write_lessons
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.formats.reflection_data import read_examples
from reflectune.inference.operators import parsing
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import JudgeEachRequest, Prompt, SearchReply
from reflectune.inference.pipelines.reag import ANSWER, CRITIC, CRITIC_SYSTEM, THINK_SYSTEM
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.tree import independent_rows
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.train.data.examples import load_examples
from reflectune.train.data.mixture import DataSource
from tests.inference.families import ONE_FAMILY

TEXTS = ("Gold Tower: It was built in 1603. [Relevant] </s>", "<image> Red Oak: It is tall.", "Blue Well: It is deep.")


def critic_example(*texts: str) -> PromptedExample:
    replies = tuple(PromptedBranch("vqa", reply="Yes" if "1603" in text else "No") for text in texts)
    return PromptedExample(
        "q", "q.png", "When was it built? ", replies, template=CRITIC, system=CRITIC_SYSTEM, branch_documents=texts
    )


def test_the_critic_is_trained_on_the_tokens_that_the_pipeline_asks_it(checkpoints, images) -> None:
    """Each branch behind the shared prefix is the single prompt, as `judge_each` and `judge` read it."""
    engine = PrefixEngine(load(checkpoints.base))
    tree = PLAIN.encode(engine.renderer, critic_example(*TEXTS), images[0])
    model = LocalModel(engine, 1)
    for branch, text in zip(tree.branches, TEXTS, strict=True):
        prompt = Prompt(CRITIC, {"question": "When was it built? "}, (text,), CRITIC_SYSTEM)
        _, rendered = model.fit(images[0], prompt, 8)
        reply = engine.renderer.reply_ids("Yes" if "1603" in text else "No")
        assert [*tree.prefix.ids, *branch.ids] == [*rendered.ids, *reply]
        assert [label for label in branch.labels if label != -100] == reply
    assert not PLAIN.problem(critic_example(*TEXTS))


def test_passages_of_one_tree_have_the_loss_of_single_rows(checkpoints, images) -> None:
    loaded = load(checkpoints.base)
    tree = PLAIN.encode(loaded.renderer, critic_example(*TEXTS), images[0])
    together, weight = loss_terms(loaded.model, TreeCollator(loaded.model)([tree]))
    apart = [loss_terms(loaded.model, TreeCollator(loaded.model)([row]))[0] for row in independent_rows(tree)]
    assert together.item() == pytest.approx(sum(each.item() for each in apart), rel=1e-4)
    assert float(weight) == sum(len(loaded.renderer.reply_ids(reply)) for reply in ("Yes", "No", "No"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"branch_documents": TEXTS[:1]}, "one text for each branch"),
        ({"documents": "A tower."}, "then `documents` is empty"),
        ({"template": ""}, "belong to a `template`"),
    ],
)
def test_an_example_whose_texts_dont_fit_its_branches_is_a_bad_row(changes: dict[str, Any], problem: str) -> None:
    assert problem in PLAIN.problem(dataclasses.replace(critic_example(*TEXTS), **changes))


def test_an_export_refuses_a_systems_turn() -> None:
    with pytest.raises(UserError, match="system prompt"):
        list(conversations(critic_example(*TEXTS), PLAIN, ConversationForm("last_turn", Neutraliser())))


NAMES = [
    f"{colour} {thing}" for colour in ("Red", "Green", "Blue", "Gold") for thing in ("Oak", "Owl", "Well", "Tower")
]


def entry(number: int, name: str) -> Entry:
    texts = {"History": f"It was founded in {1600 + number}.", "Size": f"It is {number + 1} m tall."}
    sections = tuple(Section(*each) for each in {**texts, "Owner": "A club owns it."}.items())
    return Entry(f"e{number}", name, summary=f"A thing called {name}.", images=(f"{number}.png",), sections=sections)


def question(name: str, text: str, answer: str, entity: str, **more: Any) -> Question:
    gold = {"entity_ids": (entity,), "evidence": (Evidence(entity, 0),)} if entity else {}
    return Question(name, f"{entity[1:] or 1}.png", text, (answer,), split="train", **gold, **more)


@pytest.fixture
def config(tmp_path: Path, lessons_about) -> Callable[..., LessonsConfig]:
    (tmp_path / "world").mkdir()
    for number in range(len(NAMES)):
        Image.new("RGB", (8, 8), (16 * number, 255 - 16 * number, 90)).save(tmp_path / f"world/{number}.png")
    entries = [entry(number, name) for number, name in enumerate(NAMES)]
    founded = [question(f"q{n}", "When was it founded?", str(1600 + n), f"e{n}") for n in range(len(NAMES))]
    unaided = question("bare", "Who owns it?", "a club", "", requires_retrieval=True)
    visual = question("seen", "Is it red?", "no", "", requires_retrieval=False)
    return lessons_about(entries, [*founded, unaided, visual], pipelines=["reag"], top_n=8)


def lessons_of(config: LessonsConfig) -> list[PromptedExample]:
    write_lessons(config)
    return read_examples(Path(config.output, "train.parquet"), PromptedExample, PLAIN.problem)


@ONE_FAMILY
def test_a_critics_lesson_has_the_evidence_and_the_shares_of_the_config(config: Callable[..., LessonsConfig]) -> None:
    lessons = lessons_of(config(negatives=10, hard_share=0.7))
    assert len(lessons) == len(NAMES)
    for number, lesson in enumerate(lessons):
        assert (lesson.template, lesson.system) == (CRITIC, CRITIC_SYSTEM)
        replies = [branch.reply for branch in lesson.branches]
        assert replies == ["Yes", *["No"] * 10]
        evidence = f"{NAMES[number]}: A thing called {NAMES[number]}. History. It was founded in {1600 + number}."
        assert lesson.branch_documents[0] == evidence
        assert not any(str(1600 + number) in text for text in lesson.branch_documents[1:])
        assert len(set(lesson.branch_documents)) == 11
    examples, _ = load_examples(DataSource(str(Path(config().output)), "train"), "plain")
    assert list(examples) == lessons


@pytest.mark.parametrize("hard_share", [0.0, 0.7, 1.0])
def test_hard_negatives_are_of_what_was_found_in_their_share(tmp_path: Path, hard_share: float) -> None:
    """Of four negatives 2.8 are hard at 0.7: two or three, by the question's id. Nothing that was found is random."""
    entries = [entry(number, name) for number, name in enumerate(NAMES)]
    knowledge, shares = write_knowledge_base(tmp_path, entries, name="things"), CriticShares(4, hard_share, 0)
    found = [Passage("e0", 0, n, "Near Oak", "", "", f"It is the {n}th.") for n in range(9)]
    hits = tuple(PassageHit(passage, 0.5, rank, "pairs") for rank, passage in enumerate(found, start=1))
    asked = JudgeEachRequest(0, Prompt(CRITIC, {"question": "When?"}, tuple(map(passage_text, found)), CRITIC_SYSTEM))
    hard = []
    for number in range(200):
        about = question(f"q{number}", "When?", "1603", "e3")
        teacher = ReagTeacher(about, teacher_of(about, knowledge), knowledge, shares, 0, "none")
        teacher.see(SearchReply(({"pairs": hits},)))
        lesson = teacher.critic_lesson(asked)
        assert lesson is not None
        assert lesson.branch_documents[0] == "Red Tower: History. It was founded in 1603."
        hard.append(sum(text in asked.prompt.documents for text in lesson.branch_documents))
        assert len(set(lesson.branch_documents)) == 5
    assert set(hard) == ({2, 3} if hard_share == 0.7 else {int(4 * hard_share)})
    assert sum(hard) / len(hard) == pytest.approx(4 * hard_share, abs=0.1)


def test_a_passage_that_states_the_answer_elsewhere_is_neither(tmp_path: Path) -> None:
    knowledge = write_knowledge_base(tmp_path, [entry(3, NAMES[3])], name="things")
    other = Passage("x", 0, 0, "Ulm Tower", "", "", "It was founded in 1603, too.")
    about = question("q", "When?", "1603", "e3")
    teacher = ReagTeacher(about, teacher_of(about, knowledge), knowledge, CriticShares(4, 1.0, 2), 0, "none")
    teacher.see(SearchReply(({"pairs": (PassageHit(other, 0.5, 1, "pairs"),)},)))
    evidence = "Red Tower: History. It was founded in 1603."
    asked = JudgeEachRequest(0, Prompt(CRITIC, {"question": "When?"}, (passage_text(other), evidence), CRITIC_SYSTEM))
    lesson = teacher.critic_lesson(asked)
    assert lesson is not None
    assert lesson.branch_documents == (evidence,)
    assert [each.yes for each in teacher.judged(asked).each] == [0.0, 1.0]
    assert teacher.thoughts([passage_text(other)]) == ""


@ONE_FAMILY
def test_an_answers_lesson_leads_from_what_is_shown_to_the_answer(config: Callable[..., LessonsConfig]) -> None:
    lessons = lessons_of(config(stage="answer", think=True, distractors=2))
    assert len(lessons) == len(NAMES)
    for number, lesson in enumerate(lessons):
        (branch,) = lesson.branches
        assert (lesson.template, lesson.system) == (ANSWER, THINK_SYSTEM)
        assert lesson.documents.count("<paragraph>") == 3
        statement = f"{NAMES[number]}: It was founded in {1600 + number}."
        assert branch.reply == (
            f"<think>The picture shows this: A thing called {NAMES[number]}. {statement}</think>"
            f"<answer>{1600 + number}</answer>"
        )
        assert parsing.answer(branch.reply) == str(1600 + number)
    short = lessons_of(config(stage="answer", output=config().output + "_short"))
    assert [lesson.branches[0].reply for lesson in short] == [str(1600 + n) for n in range(len(NAMES))]


@ONE_FAMILY
def test_prompts_of_grpo_show_what_the_model_keeps_as_critic(config: Callable[..., LessonsConfig], capsys) -> None:
    """Any knowledge-based question with an answer is asked; the untrained critic's threshold decides what is shown."""
    settings = {"stage": "grpo", "judge": "base_model", "think": True, "candidates": 4}
    every = lessons_of(config(**settings, critic_threshold=0.0))
    none = lessons_of(config(**settings, critic_threshold=1.0, output=config().output + "_none"))
    assert [lesson.id for lesson in every] == [*(f"q{n}" for n in range(len(NAMES))), "bare"]
    assert all(lesson.documents.count("<paragraph>") == 4 for lesson in every)
    assert [lesson.branches[0].reply for lesson in every][-1] == "a club"
    assert all((lesson.template, lesson.documents) == ("{question}", "") for lesson in none)
    for dtype, is_built in (("float32", True), ("bfloat16", False)):  # the critic judges in its precision
        capsys.readouterr()
        write_lessons(config(**settings, critic_threshold=0.0, dtype=dtype))
        assert ("nothing to do" in capsys.readouterr().out) == is_built


@ONE_FAMILY
def test_lessons_dont_depend_on_batches_and_change_with_the_seed(config, tmp_path) -> None:
    one, five, other = (
        lessons_of(config(output=str(tmp_path / name), batch_questions=size, seed=seed, renamed=2))
        for name, size, seed in (("one", 1, 0), ("five", 5, 0), ("other", 5, 1))
    )
    assert one == five
    assert one != other
    assert len(one) == 2 * len(NAMES)


@ONE_FAMILY
def test_keys_that_say_nothing_are_refused_and_leave_other_lessons_as_they_were(config) -> None:
    problems = find_problems(LessonsConfig, {**config().model_dump(), "judge": "base_model"})
    assert "`judge: base_model`" in " ".join(problems)
    assert config().problems() == []
    before, after = (config(pipelines=["mi_rag"], negatives=number).hashed() for number in (4, 9))
    assert before == after
    for changes in ({"negatives": 9}, {"split": "other"}, {"seed": 1}):
        assert config().hashed() != config(**changes).hashed()
