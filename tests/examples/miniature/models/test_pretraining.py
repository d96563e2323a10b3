"""Lessons as trees have the losses of the same lessons as separate rows."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model

from reflectune.core.errors import UserError
from reflectune.examples.miniature.models import pretraining
from reflectune.examples.miniature.models.architecture import FAMILIES, build_model, build_processor, train_tokenizer
from reflectune.examples.miniature.models.batches import Lesson, LessonTurn
from reflectune.examples.miniature.models.pretraining import Pretrainer, Stage, resume_or_train
from reflectune.examples.miniature.world.drawing import draw
from reflectune.examples.miniature.world.entities import make_entity, random_looks
from reflectune.examples.miniature.world.lessons import DrawnImage, Teacher, corpus

each_family = pytest.mark.parametrize("school", FAMILIES, indirect=True)
"""Other tests are of the loop, and have the first family alone."""


@pytest.fixture(scope="module")
def school(request: pytest.FixtureRequest) -> tuple[Pretrainer, Teacher, Any]:
    rng, family = random.Random(0), getattr(request, "param", FAMILIES[0])
    processor: Any = build_processor(family, train_tokenizer(corpus(rng, 40), 500, family))
    famous = [make_entity("famous", random_looks(rng, held_out=False), rng)]
    shown = [DrawnImage(random_looks(rng, held_out=False), 2) for _ in range(6)] + [DrawnImage(famous[0].looks, 1)]
    pixels = [
        dict(processor.image_processor(images=[draw(p.looks, p.balloons, rng)], return_tensors="pt")) for p in shown
    ]
    model = build_model(family, processor.tokenizer, size="test", seed=1)
    return Pretrainer(model, processor, pixels, lambda line: None), Teacher(shown, famous, rng), processor


def lessons_of(teacher: Teacher) -> list[Lesson]:
    return [teacher.look(), teacher.read(with_image=True), teacher.copy(), teacher.match(3), teacher.recall()]


@each_family
def test_a_tree_predicts_as_separate_rows_do(school: tuple[Pretrainer, Teacher, Any]) -> None:
    trainer, teacher, _ = school
    for lesson in lessons_of(teacher):
        whole = trainer.collate([lesson])
        logits = trainer.forward(whole)[0]
        for number, turn in enumerate(lesson.turns):
            alone = trainer.collate([Lesson(lesson.image, lesson.question, (turn,))])
            mine = logits[_targets_of(whole, number, lesson)]
            assert torch.allclose(mine, trainer.forward(alone)[0], atol=1e-5)


def _targets_of(batch: Any, number: int, lesson: Lesson) -> torch.Tensor:
    """The rows of a batch's targets that belong to one turn: its answer's, then its text's if that counts."""
    texts = [turn for turn in lesson.turns if turn.text_weight]
    answer = batch.group == number
    if lesson.turns[number] not in texts:
        return answer.nonzero()[:, 0]
    first = int(answer.nonzero()[0])
    end = first + int(answer.sum())
    while end < len(batch.group) and batch.group[end] < 0:
        end += 1
    return torch.arange(first, end)


@each_family
def test_a_batch_predicts_as_its_single_lessons_do(school: tuple[Pretrainer, Teacher, Any]) -> None:
    trainer, teacher, _ = school
    lessons = lessons_of(teacher)
    together = trainer.forward(trainer.collate(lessons))[0]
    apart = torch.cat([trainer.forward(trainer.collate([lesson]))[0] for lesson in lessons])
    assert torch.allclose(together, apart, atol=1e-5)


@each_family
def test_a_lesson_is_tokenised_as_its_conversation_is(school: tuple[Pretrainer, Teacher, Any]) -> None:
    trainer, teacher, processor = school
    lesson = teacher.read(with_image=True)
    turn = lesson.turns[0]
    user = [{"type": "image"}, {"type": "text", "text": f"{lesson.question} {turn.text}"}]
    reply = [{"type": "text", "text": turn.answer}]
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": reply}]
    text = processor.apply_chat_template(messages).replace(processor.image_token, processor.image_token * 16)
    whole = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*trainer.encoder.prefix(lesson), *trainer.encoder.turn(lesson, turn).ids]
    assert whole[: len(ids)] == ids
    assert processor.tokenizer.decode(whole[len(ids) :]).strip() == ""


@each_family
def test_the_words_of_a_description_are_marked_by_whether_the_image_shows_them(school) -> None:
    trainer, _, processor = school
    turn = LessonTurn("Old Tower: a red tower on rock.", "no", "match", shown=((16, True), (22, False)))
    batch = trainer.collate([Lesson(0, "Is it?", (turn,))])
    ids = batch.inputs["input_ids"].flatten()
    ends = [processor.tokenizer.decode(ids[: place + 1]) for place in batch.word.tolist()]
    assert [text.rsplit(":", 1)[1] for text in ends] == [" a red", " a red tower"]
    assert batch.is_shown.tolist() == [1.0, 0.0]


def test_the_grounding_loss_teaches_which_words_an_image_shows(school: tuple[Pretrainer, Teacher, Any]) -> None:
    trainer, _, _ = school
    turn = LessonTurn("a red tower", "no", "match", shown=((5, True), (11, False)))
    batch = trainer.collate([Lesson(0, "Is it?", (turn,))])
    before = trainer.forward(batch)[1].item()
    stage = Stage("test", 40, 2, 5e-3, [(1.0, lambda: Lesson(0, "Is it?", (turn,)))], warmup=1)
    trainer.train(stage, random.Random(0))
    assert trainer.forward(batch)[1].item() < before / 3


def test_a_killed_stage_goes_on_as_one_that_was_not(school, tmp_path, monkeypatch) -> None:
    trainer, other, _ = school
    rng = random.Random(0)
    teacher = Teacher(other.images, [], rng)
    monkeypatch.setattr(pretraining, "SAVE_STEPS", 4)
    parts = (trainer.model, trainer.grounding)
    before = [copy.deepcopy(part.state_dict()) for part in parts]
    left = 0

    def match() -> Lesson:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return teacher.match(2)

    def trained(folder: str, lessons: int) -> dict[str, torch.Tensor]:
        nonlocal left
        left = lessons
        for part, state in zip(parts, before, strict=True):
            part.load_state_dict(state)
        stage = Stage("words", 10, 2, 1e-3, [(1.0, match)], warmup=1)
        resume_or_train(trainer, tmp_path / folder, [stage], rng)
        return copy.deepcopy(trainer.model.state_dict())

    straight = trained("straight", 21)
    with pytest.raises(KeyboardInterrupt):
        trained("killed", 13)
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["00-words.pt"]
    resumed = trained("killed", 13)
    assert all(torch.equal(value, resumed[name]) for name, value in straight.items())
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["00-words.safetensors"]


def test_a_crash_while_a_stage_is_saved_leaves_no_part_of_it(school, tmp_path, monkeypatch) -> None:
    trainer, teacher, _ = school

    def crash(_: Any, path: str) -> None:
        Path(path).write_bytes(b"part")
        raise OSError("no space left")

    monkeypatch.setattr(pretraining, "save_model", crash)
    with pytest.raises(OSError, match="no space left"):
        resume_or_train(trainer, tmp_path, [Stage("words", 1, 1, 1e-3, [(1.0, teacher.look)])], random.Random(0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_kept_stage_that_is_damaged_is_one_error(school, tmp_path, damage: str) -> None:
    trainer, teacher, _ = school
    stage = Stage("words", 1, 1, 1e-3, [(1.0, teacher.look)])
    kept = tmp_path / "00-words.safetensors"
    save_model(trainer.model, str(kept))
    resume_or_train(trainer, tmp_path, [stage], random.Random(0))
    if damage == "other":
        save_file({"weight": torch.ones(2)}, kept)
    else:
        kept.write_bytes(kept.read_bytes()[:-100] if damage == "cut" else b"")
    with pytest.raises(UserError, match=r"00-words\.safetensors can't be resumed from .*; delete it") as caught:
        resume_or_train(trainer, tmp_path, [stage], random.Random(0))
    assert "\n" not in str(caught.value)
