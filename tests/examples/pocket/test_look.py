"""The examination of a checkpoint: the captions that it chooses among, and a whole report by the miniature."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.types import Question
from reflectune.examples.pocket import look
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine

COLOURS = ("red", "green", "blue", "yellow")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A gallery with a visual question of each colour, and captions that share its images."""
    gallery, captions = tmp_path / "gallery", tmp_path / "captions"
    asked, captioned = [], []
    for colour in COLOURS:
        image = f"images/{colour}.png"
        (gallery / image).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), colour).save(gallery / image)
        about = {"attribute": "colour", "thing": colour}
        asked.append(Question(
            f"v-{colour}", image, "Which colour?", (colour,), split="val_unseen_entity", requires_retrieval=False,
            meta=about,
        ))  # fmt: skip
        captioned.append(Question(
            f"c-{colour}", image, "What is this?", (f"A {colour} square.",), answer_type="free_form", split="val",
            requires_retrieval=False, meta=about,
        ))  # fmt: skip
    for split in ("val_unseen_question", "val_unseen_entity"):
        write_questions(gallery, split, asked if split == "val_unseen_entity" else [])
    write_questions(captions, "val", captioned)
    write_json(gallery / "dataset.json", {"fingerprint": "g"})
    write_json(captions / "dataset.json", {"fingerprint": "c", "image_root": "../gallery"})
    return gallery, captions


def test_a_loss_is_that_of_the_whole_conversation(folders: tuple[Path, Path]) -> None:
    """Branches of one read prefix have the losses of a plain forward pass over prompt and caption."""
    dataset, loaded = Dataset(folders[1]), load("miniature/llava", scheme="plain")
    questions = dataset.questions("val")
    captions = [question.answers[0] for question in questions]
    (found,) = look.Examiner(PrefixEngine(loaded), dataset).losses(questions[:1], [captions])
    with Image.open(folders[0] / "images/red.png") as image:
        prefix = loaded.renderer.question_prefix(questions[0].text, image.convert("RGB"))
    prompt = loaded.scheme.prompt_branch(loaded.renderer, "vqa", style="free")
    plain = load("miniature/llava", scheme="plain").model
    for question, loss in zip(questions, found, strict=True):
        reply = loaded.renderer.reply_ids(question.answers[0])
        ids = torch.tensor([[*prefix.ids, *prompt, *reply]])
        with torch.no_grad():
            logits = plain(input_ids=ids, **prefix.vision).logits[0, -len(reply) - 1 : -1]
        assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, torch.tensor(reply)).item(), abs=1e-4)


def test_a_caption_stands_against_other_captions(folders: tuple[Path, Path]) -> None:
    dataset = Dataset(folders[1])
    examiner = look.Examiner(PrefixEngine(load("miniature/llava", scheme="plain")), dataset)
    questions = dataset.questions("val")
    choices = examiner.choices(questions)
    assert choices == examiner.choices(questions)
    assert [len(choice.others) for choice in choices] == [3] * 4  # of four captions there are three others
    for choice in choices:
        assert choice.strange in choice.others
        assert choice.right not in choice.others
    same = [replace(question, meta={"thing": "a" if place < 2 else "b"}) for place, question in enumerate(questions)]
    assert [len(choice.others) for choice in examiner.choices(same)] == [2] * 4


def test_a_report_of_the_miniature(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    options = {"model": "miniature/llava", "gallery": folders[0], "captions": folders[1], "output": page}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["look", *arguments])
    look.main()
    text = page.read_text()
    assert text.startswith("# Looking\n\n## Captions\n\n4 images of 4 things")
    assert "| A red square. |" in text
    assert "| colour | " in text
    assert "of 4 |" in text
