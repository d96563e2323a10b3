import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from reflectune.core.types import Branch, Passage, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.data_builders.reflection_data import Manifest, write_examples, write_manifest, write_prompted
from reflectune.models.miniature.architecture import Family, Size, build_model, build_processor, train_tokenizer

COLOURS = {"red": (200, 30, 30), "green": (20, 160, 40), "blue": (30, 60, 200)}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def passage(entry: int, text: str) -> Passage:
    return Passage(f"e{entry}", 0, 0, f"Gold Tower {entry}", "A gold tower.", "History", text)


def knowledge(number: int, rng: random.Random, branches: int) -> ReflectionExample:
    year = rng.randint(1500, 1999)
    others = [
        Branch(passage(100 * number + i, f"It is {'very ' * rng.randint(0, 9)}tall."), False, "", "random")
        for i in range(branches - 1)
    ]
    gold = Branch(passage(number, f"It was founded in {year}."), True, str(year), "gold")
    return ReflectionExample(
        f"k{number}", f"{rng.choice(list(COLOURS))}.png", "When was it founded?", True, branches=(gold, *others)
    )


def visual(number: int, rng: random.Random) -> ReflectionExample:
    colour = rng.choice(list(COLOURS))
    return ReflectionExample(f"v{number}", f"{colour}.png", "Which colour is it?", False, answer=colour)


@pytest.fixture
def examples() -> list[ReflectionExample]:
    """Eighteen knowledge-based questions with one to four passages each, and six visual ones."""
    rng = random.Random(0)
    return [knowledge(i, rng, 1 + i % 4) for i in range(18)] + [visual(i, rng) for i in range(6)]


def prompted(example: ReflectionExample) -> PromptedExample:
    """The question as MMKB-RAG asks it: RET, an SRT per passage, and MCT where there are several."""
    documents = tuple(branch.passage for branch in example.branches)
    keep = 1 + next((i for i, branch in enumerate(example.branches) if branch.relevant), 0)
    branches = [PromptedBranch("ret", role="retrieve" if example.retrieve else "no_retrieve")]
    branches += [
        PromptedBranch("srt", (branch.passage,), role="relevant" if branch.relevant else "irrelevant")
        for branch in example.branches
    ]
    if len(documents) > 1:
        branches.append(PromptedBranch("mct", documents, reply=f"{keep}. {documents[keep - 1].text}"))
    return PromptedExample(example.id, example.image, example.question, tuple(branches))


@pytest.fixture
def prompted_folder(data_folder: Path, examples: list[ReflectionExample], tmp_path: Path) -> Path:
    """A folder of MMKB-RAG's three tasks, with the images of `data_folder`."""
    folder = tmp_path / "prompted"
    write_prompted(folder / "train.parquet", [prompted(example) for example in examples])
    write_manifest(folder, Manifest("mmkb_rag", data_folder / "images", {"train": "0"}))
    return folder


@pytest.fixture
def data_folder(tmp_path: Path, examples: list[ReflectionExample]) -> Path:
    """A folder of reflection data with its images."""
    folder = tmp_path / "data"
    write_examples(folder / "train.parquet", examples)
    write_manifest(folder, Manifest("mr2ag", folder / "images", {"train": "0"}))
    (folder / "images").mkdir()
    for colour, value in COLOURS.items():
        Image.new("RGB", (70, 64), value).save(folder / "images" / f"{colour}.png")
    return folder


@pytest.fixture
def base_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a random base model of a family, without reflection tokens, into a folder, and returns the folder."""

    def build(family: Family = "llava", *, tie: bool | None = None, seed: int = 0, size: Size = "test") -> Path:
        folder = tmp_path / f"base_{family}_{tie}_{seed}_{size}"
        texts = ["USER: When was it founded? ASSISTANT: It was founded in 1872.", "Which colour is it? a gold tower"]
        tokenizer = train_tokenizer(texts, 320, family)
        build_model(family, tokenizer, size=size, tie_word_embeddings=tie, seed=seed).save_pretrained(folder)
        build_processor(family, tokenizer).save_pretrained(folder)
        return folder

    return build
