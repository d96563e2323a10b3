"""Lessons are a pipeline's own prompts: what training reads of them is, token by token, what inference reads."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.examples.lessons import writing
from reflectune.examples.lessons.config import LessonsConfig
from reflectune.examples.lessons.write_lessons import write_lessons
from reflectune.formats.dataset import write_questions
from reflectune.formats.reflection_data import read_examples, read_manifest
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt
from reflectune.inference.pipelines import mi_rag, pmsr
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.train.data.examples import load_examples
from reflectune.train.data.mixture import DataSource
from tests.inference.families import ONE_FAMILY

PROMPTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "caption": (mi_rag.DESCRIBE, ()),
    "queries": (mi_rag.FOLLOW_UP, ("It is made of oak.", " <image> [Relevant] </s> ")),
    "query": (pmsr.TRAJECTORY, ("It is made of oak.",)),
    "record": (mi_rag.REASON, ("It is a tower.", "Title e1: H0. It is made of oak.")),
    "record of nothing": (mi_rag.REASON, ()),
    "answer": (mi_rag.ANSWER + "Answer in a word.", ("Made of oak.",)),
}


@pytest.fixture(scope="module")
def engine(checkpoints: SimpleNamespace) -> PrefixEngine:
    return PrefixEngine(load(checkpoints.base))


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "llava") for name in PROMPTS), ("queries", "qwen2_vl")],
    indirect=["family"],
    scope="session",
)
def test_training_reads_the_tokens_that_inference_reads(
    engine: PrefixEngine, images: list[Image.Image], name: str
) -> None:
    template, documents = PROMPTS[name]
    prompt = Prompt(template, {"question": "What is it made of? "}, documents)
    shown, rendered = LocalModel(engine, 1).fit(images[0], prompt, 8)
    reply = "## Output\nQuestion: made of oak?"
    example = PromptedExample(
        "q",
        "q.png",
        prompt.texts["question"],
        (PromptedBranch("vqa", reply=reply),),
        template=template,
        documents=prompt.text(shown)["documents"],
    )
    tree = PLAIN.encode(engine.renderer, example, images[0])
    assert list(tree.prefix.ids) == rendered.ids
    assert not PLAIN.problem(example)
    (branch,) = tree.branches
    assert list(branch.ids) == list(branch.labels) == engine.renderer.reply_ids(reply)
    assert set(tree.vision) == set(rendered.vision)


@pytest.mark.parametrize(
    ("template", "branch", "problem"),
    [
        ("{question} {title}", PromptedBranch("vqa", reply="oak"), "the template has the slot `title`"),
        ("{question}", PromptedBranch("ret", role="retrieve"), "with a `template` a branch has only a `reply`"),
        ("{question}", PromptedBranch("vqa"), "needs either a reflection token"),
    ],
    ids=["slot", "token", "no reply"],
)
def test_a_lesson_that_says_nothing_or_asks_for_what_it_lacks_is_a_bad_row(
    template: str, branch: PromptedBranch, problem: str
) -> None:
    assert problem in PLAIN.problem(PromptedExample("q", "q.png", "What?", (branch,), template=template))


OF_OAK = (Section("Size", "It is 9 m tall."), Section("Neighbours", "Beside it stands the Ulm Tower."))
OF_TOWER = (Section("People", "Ben Roth built it."), Section("Size", "It is 70 m tall."))
OAK = Entry("oak", "Vik Oak", summary="A green oak.", images=("oak.png",), sections=OF_OAK)
TOWER = Entry("tower", "Ulm Tower", summary="A red tower.", images=("tower.png",), sections=OF_TOWER)


@pytest.fixture
def config(tmp_path: Path, lessons_about) -> Callable[..., LessonsConfig]:
    (tmp_path / "world").mkdir()
    for name, colour in (("oak", "green"), ("tower", "red")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"world/{name}.png")
    about = {"split": "train", "evidence": (Evidence("oak", 1), Evidence("tower", 0))}
    built = [Question(f"q{n}", "oak.png", "Who built the tower beside it?", ("Ben Roth",), **about) for n in range(3)]
    bare = Question("bare", "oak.png", "Who?", ("Ben",), split="train")
    return lessons_about([OAK, TOWER], [*built, bare], iterations=1, pair_passages=6, batch_questions=2)


@ONE_FAMILY
def test_lessons_are_what_a_pipeline_asks_and_training_takes_them(config, capsys) -> None:
    write_lessons(config())
    folder = Path(config().output)
    output = capsys.readouterr().out
    lessons = read_examples(folder / "train.parquet", PromptedExample, PLAIN.problem)
    assert "1 questions of train have no answer or no evidence" in output
    mine = [lesson for lesson in lessons if lesson.id.startswith("q0 mi_rag")]
    assert [lesson.source for lesson in mine] == [
        f"mi_rag {operator}" for operator in ("caption", "reason", "rewrite", "reason", "answer")
    ]
    assert mine[0].template == mi_rag.DESCRIBE
    assert mine[1].documents.startswith("A green oak.\n")
    assert "Ulm Tower: " in mine[1].documents
    both = "Vik Oak: Beside it stands the Ulm Tower. Ulm Tower: Ben Roth built it."
    assert [lesson.branches[0].reply for lesson in mine[1:2]] == [both]
    assert mine[-1].documents == f"{both}\n{both}"
    assert mine[-1].branches[0].reply == "Ben Roth"
    assert {lesson.id.split()[1] for lesson in lessons} == {"mi_rag", "pmsr"}
    examples, _ = load_examples(DataSource(str(folder), "train"), "plain")
    assert list(examples) == lessons


@ONE_FAMILY
def test_lessons_are_the_same_in_batches_of_any_size_and_written_once(config, tmp_path, capsys) -> None:
    write_lessons(config(output=str(tmp_path / "one"), batch_questions=1))
    write_lessons(config(output=str(tmp_path / "three"), batch_questions=3))
    one, three = (read_examples(tmp_path / name / "train.parquet", PromptedExample) for name in ("one", "three"))
    assert one == three
    before = (tmp_path / "one/train.parquet").stat().st_mtime_ns
    write_lessons(config(output=str(tmp_path / "one"), batch_questions=1))
    assert "nothing to do" in capsys.readouterr().out
    assert (tmp_path / "one/train.parquet").stat().st_mtime_ns == before
    assert read_manifest(tmp_path / "one").scheme == "plain"


@ONE_FAMILY
def test_lessons_depend_on_top_n_only_where_it_is_read(config: Callable[..., LessonsConfig]) -> None:
    for pipelines, reads_top_n in ((["mi_rag", "pmsr"], False), (["reag"], True)):
        seven, eight = (config(pipelines=pipelines, top_n=top_n).hashed() for top_n in (7, 8))
        assert (seven != eight) is reads_top_n


@ONE_FAMILY
def test_lessons_go_on_where_they_were_cut_off(config, tmp_path, monkeypatch) -> None:
    settings = config(output=str(tmp_path / "cut"), batch_questions=1)
    made: list[str] = []
    lessons = writing.LessonWriter.lessons

    def until_the_third(self: writing.LessonWriter, questions: Any) -> list[PromptedExample]:
        made.extend(question.id for question in questions)
        if len(made) == 3:
            raise KeyboardInterrupt
        return lessons(self, questions)

    monkeypatch.setattr(writing.LessonWriter, "lessons", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        write_lessons(settings)
    assert not (tmp_path / "cut/train.parquet").exists()
    write_lessons(settings)
    assert made == ["q0", "q1", "q2", "q2"]
    write_lessons(config(output=str(tmp_path / "whole"), batch_questions=1))
    cut, whole = (read_examples(tmp_path / name / "train.parquet", PromptedExample) for name in ("cut", "whole"))
    assert cut == whole


@ONE_FAMILY
def test_questions_without_evidence_teach_nothing(config: Callable[..., LessonsConfig]) -> None:
    write_questions(Path(config().dataset), "bare", [Question("b", "oak.png", "Who?", ("Ben",), split="bare")])
    with pytest.raises(UserError, match="no question of bare has an answer and its evidence"):
        write_lessons(config(split="bare"))


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"pipelines": ["mrag"]}, "no teacher for `mrag`; there is one for mi_rag, pmsr"),
    ({"pipelines": []}, "at least one"),
    ({"query_forms": ["{title}", "{name}"]}, "`{name}` has no slot {title}"),
    ({"query_forms": ["{title} {x}", "{title}"]}, "has the slot `x`"),
    ({"query_forms": ["{title}"]}, "are two texts; found 1"),
    ({"base_model": ""}, "`base_model` is needed"),
    ({"text_index": "nowhere"}, "nowhere has no manifest.json"),
    ({"gate_stop": 0.5}, "`gate_stop` is for evaluate"),
    ({"pair_images": 2}, "`pair_images` is for evaluate"),
    ({"detailed_answer": True, "extract_answer": True}, "`extract_answer` is for evaluate"),
    ({"answer_form": "reflectiva"}, "`answer_form` is for evaluate"),
]


@ONE_FAMILY
def test_a_config_that_makes_no_sense_is_refused(config: Callable[..., LessonsConfig]) -> None:
    for changes, problem in NONSENSE:
        problems = find_problems(LessonsConfig, {**config().model_dump(), **changes})
        assert any(problem in found for found in problems), (changes, problems)
    assert config().problems() == []


@ONE_FAMILY
def test_the_command_shows_one_questions_lessons_and_writes_nothing(config, monkeypatch, capsys) -> None:
    settings = config()
    words = ["dataset", "index", "base_model", "output", "iterations", "device"]
    arguments = [part for name in words for part in (f"--{name}", str(getattr(settings, name)))]
    write_lessons.main([*arguments, "--pipelines", "mi_rag", "--dry_run", "true"])
    shown = capsys.readouterr().out
    assert "mi_rag caption:  → A green oak." in shown
    assert not Path(settings.output).exists()
