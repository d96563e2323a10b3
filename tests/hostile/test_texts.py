"""Numbers in random notations, words of random scripts and names in random forms are those in the plain form."""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from reflectune.core.numerals import canonical_number
from reflectune.core.tokens import NUMBER, tokenize
from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.metrics.judging.cover import cover_match, cover_one
from reflectune.metrics.scoring.registry import exact_match
from reflectune.retrieval.rerankers.words import WordReranker

SPACES = " \u00a0\u2007\u2009\u202f"
DIGITS = ["0123456789", *("".join(chr(zero + n) for n in range(10)) for zero in (0xFF10, 0x660, 0x966, 0x1D7CE))]
RAISED = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b")
LOWERED = str.maketrans("0123456789", "".join(chr(0x2080 + n) for n in range(10)))
PARTS = {(1, 2): "\u00bd", (1, 4): "\u00bc", (3, 4): "\u00be", (1, 8): "\u215b", (5, 8): "\u215d", (2, 5): "\u2156"}


def passage(text: str) -> Passage:
    return Passage("e", 0, 0, "", "", "", text)


@st.composite
def written(draw: Callable[..., object]) -> tuple[str, str]:
    """Draw a number, in digits and in a random notation."""

    def choose(options):
        return draw(st.sampled_from(list(options)))

    sign, whole = choose(["", "", "-"]), draw(st.integers(0, 9_999_999))
    over, under = choose([(0, 1), *PARTS])
    ten = draw(st.integers(1, 9))
    kind = choose(["groups", "fraction", "power"])
    if kind == "power":
        value = Decimal(whole).scaleb(ten - 3)
        cross, power = choose([" \u00d7 ", "\u00d7", " x ", "\u00b7"]), choose([f"^{ten}", str(ten).translate(RAISED)])
        text = f"{whole / 1000:.3f}{cross}10{power}"
    elif kind == "fraction" and over:
        value, gap = whole % 100 + Decimal(over) / under, choose(["", " ", "\u00a0"])
        stacked = str(over).translate(RAISED) + "\u2044" + str(under).translate(LOWERED)
        part = choose([PARTS[over, under], stacked, *([f"{over}\u2044{under}", f"{over}/{under}"] if gap else [])])
        text = f"{whole % 100}{gap}{part}" if whole % 100 else part
    else:
        value, separator = Decimal(whole), choose(["", ",", "'", "\u2019", *SPACES])
        text = f"{whole:,}".replace(",", separator).translate(str.maketrans(DIGITS[0], choose(DIGITS)))
        text += choose(["", "", "\u00b2", "[3]", "\u00b9\u00b2"])
    assume(value)
    return sign + canonical_number(f"{value:f}"), (sign and choose("-\u2212\u2013\uff0d")) + text


@given(written(), st.sampled_from(SPACES), st.sampled_from(["It weighs {}{}kg.", "Weight ({}{}kg)", "{}{}kg."]))
def test_a_number_is_read_in_any_notation(number: tuple[str, str], space: str, sentence: str) -> None:
    value, text = number[0], sentence.format(number[1], space)
    ends = sorted((float(value) * 0.999, float(value) * 1.001))
    asked = Question("q", "", "How heavy is it in kg?", (value,), (ends[0], ends[1]), "numerical")
    other = Question("q", "", "How heavy is it in kg?", ("0",), (1e17, 2e17), "numerical")

    assert tokenize(text) == tokenize(sentence.format(value, " "))
    assert annotate_by_string(asked, passage(text)).answer == value
    assert not annotate_by_string(other, passage(text)).relevant
    assert cover_one(number[1], asked) == exact_match(number[1], asked) == 1.0
    assert cover_match(text, [value])


@given(
    st.text("0015 ,.'/[]^xe-\u2044\u00bd\u00b2\u2083\u207b\u2212\u2013\u00d7\u00a0\u2460\ufdd0"), st.integers(1, 9000)
)
def test_any_digits_and_marks_are_read_as_finite_numbers(text: str, length: int) -> None:
    for token in tokenize(f"{'1' * length}{text}"):
        assert not NUMBER.fullmatch(token) or token == canonical_number(token)


SCRIPTS = {
    "han": "\u6771\u4eac\u5927\u5b66\u9752\u5c71\u6c34\u98a8\u96ea\u82b1",
    "kana": "\u3042\u304b\u3055\u305f\u306a\u306f\u304c\u3056\u3060\u3070",
    "thai": "\u0e01\u0e02\u0e04\u0e07\u0e08\u0e0a\u0e14\u0e15\u0e19\u0e1a",
    "khmer": "\u1780\u1781\u1782\u1783\u1784\u1785\u1786\u1787\u1788\u1789",
    "hangul": "\uc11c\uc6b8\ubd80\uc0b0\ub300\uad6c\uc778\ucc9c\uad11\uc8fc",
    "latin": "\u00fc\u00e9\u0142\u00f8\u017e\u00e7abrz",
    "greek": "\u03b1\u03ac\u03b2\u03b3\u03ad\u03bb\u03bc\u03cc\u03c4\u03c5",
}
FORMS: list[Callable[[str], str]] = [
    *(lambda text, form=form: unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")),
    str.upper,
    lambda text: "\u200b".join(text),
]


@given(st.data(), st.sampled_from(sorted(SCRIPTS)), st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_a_word_is_found_in_any_script_and_form(
    data: st.DataObject, script: str, asked: Callable, shown: Callable
) -> None:
    letters, space = SCRIPTS[script], " " if script in ("hangul", "latin", "greek") else ""
    target = data.draw(st.text(letters[:5], min_size=3, max_size=3))
    others = data.draw(st.lists(st.text(letters[5:], min_size=3, max_size=3), min_size=5, max_size=5))
    particle = "\uc740" if script == "hangul" else ""
    without, named = shown(space.join(others[:3])), shown(space.join([others[3], target, others[4]]))
    followed = shown(space.join([others[3], target + particle, others[4]]))

    assert cover_match(named, [asked(target)])
    assert not cover_match(without, [asked(target)])
    assert annotate_by_string(Question("q", "", "?", (asked(target),)), passage(named)).relevant
    ((best,),) = WordReranker().rank([asked(target)], [[passage(without), passage(followed)]], 1)
    assert best.passage == passage(followed)


NAMES = st.text("\u00fc\u00e9\u1ed9\uac00\u304cabc 1", min_size=1, max_size=4).map(str.strip).filter(bool)


@given(st.data(), st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4, unique=True))
def test_articles_and_images_match_in_any_form_of_their_names(
    data: st.DataObject, names: list[tuple[str, str]]
) -> None:
    def drawn(name: str) -> str:
        return "".join(unicodedata.normalize(data.draw(st.sampled_from(["NFC", "NFD"])), letter) for letter in name)

    def case(extension: str) -> str:
        return data.draw(st.sampled_from([extension, extension.upper(), extension.title()]))

    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        for folder, name in names:
            inside = root / drawn(folder)
            inside.mkdir(exist_ok=True)
            (inside / f"{drawn(name)}{case('.md')}").write_text("A text.")
            (inside / f"{drawn(name)}{case('.jpg')}").write_bytes(b"x")
            (inside / f".{name}.md").write_text("Hidden.")
        images = ImageFolder(root)
        entries = list(knowledge_reader("own_folder").entries(root, images=images))
        assert {entry.id for entry in entries} == {f"{folder}/{name}" for folder, name in names}
        for entry in entries:
            assert len(entry.images) == 1
