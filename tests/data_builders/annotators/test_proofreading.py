import re
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.types import Passage
from reflectune.data_builders.annotators.proofreading import marked, write_page
from reflectune.data_builders.mr2ag.report import page_article
from reflectune.models.schemes.examples import Branch, ReflectionExample


def example(number: int, text: str = "It was founded in 1872.") -> ReflectionExample:
    gold = Passage("e1", 0, 0, "Gold Tower", "A tower.", "History", text)
    other = Passage("e2", 0, 0, "Red Tower", "", "History", "It was founded in 1900; 18720 stones.")
    branches = (Branch(other, False, "", "look_alike"), Branch(gold, True, "1872", "gold"))
    return ReflectionExample(f"q{number}", "i.png", "When was it founded?", True, "", branches, "short", "train")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image.new("RGB", (900, 600), "red").save(tmp_path / "i.png")
    return tmp_path


def page_of(root: Path, *examples: ReflectionExample, count: int = 50) -> str:
    write_page(root / "page.html", examples, page_article, root, "train of world", count=count)
    return (root / "page.html").read_text(encoding="utf-8")


def test_a_passage_is_coloured_by_its_label_and_evidence_comes_first(root: Path) -> None:
    page = page_of(root, example(1))
    assert re.findall(r'<section class="label (\w+)"', page) == ["relevant", "irrelevant"]
    assert "<b>1872</b> · gold · Gold Tower › History · e1#0.0" in page


def test_the_answer_is_marked_wherever_it_stands_as_a_whole(root: Path) -> None:
    page = page_of(root, example(1, "1872, and again 1872."))
    assert page.count("<mark>1872</mark>") == 2  # not in 18720


@pytest.mark.parametrize(
    ("text", "answer", "count"),
    [
        ("\u65e5\u672c\u306e\u9996\u90fd\u306f\u6771\u4eac\u3067\u3042\u308b", "\u6771\u4eac", 1),
        ("\u6771\u4eacNHK\u3068NHKs", "NHK", 1),
        ("\u0926\u093f\u0932 \u0926\u093f\u0932\u094b\u0902", "\u0926\u093f\u0932", 1),  # Hindi: a word, and its plural
        ("Rome, Romeo, Jerome", "Rome", 1),
    ],
)
def test_an_answer_is_marked_in_any_script(text: str, answer: str, count: int) -> None:
    pieces = marked(text, [answer])
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_answer in pieces if is_answer] == [answer] * count


def test_a_visual_question_shows_its_answer(root: Path) -> None:
    page = page_of(root, ReflectionExample("v1", "i.png", "Which colour?", False, "red", (), "short", "train"))
    assert '<section class="label none"' in page
    assert "[No Retrieval]</span> <b>red</b>" in page


def test_the_images_are_in_the_page_and_small(root: Path) -> None:
    page = page_of(root, *(example(i) for i in range(10)))
    assert page.count("data:image/webp;base64,") == 10
    assert len(page) < 100_000


def test_the_draw_is_the_same_each_time(root: Path) -> None:
    examples = [example(i) for i in range(80)]
    page = page_of(root, *examples)
    assert page.count("<article>") == 50
    assert "50 of 80 shown, drawn at random (seed 0)." in page
    assert page == page_of(root, *examples)


def test_an_unreadable_image_is_reported_on_the_page(root: Path) -> None:
    (root / "i.png").write_bytes(b"text")
    assert "image unreadable" in page_of(root, example(1))
