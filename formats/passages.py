"""Cut an article into passages, the texts that a model reads at once.

There are four cuts: natural paragraphs (mR²AG, arXiv 2411.15041, §3.1.2), whole sections (Encyclopedic-VQA), windows of
whole sentences up to a number of tokens (ReflectiVA: 300), and a fixed number of words (wiki18: 100).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from reflectune.core.types import Entry, Passage

Lead = Literal["none", "first_sentence"]
Cut = Literal["paragraphs", "sections", "windows", "words"]
DEFAULT_SIZES: dict[str, int] = {"windows": 300, "words": 100}
"""Tokens of a window in ReflectiVA, and words of a block in wiki18."""

_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\S)")
_SENTENCE_END = re.compile(
    r"[.!?\u0589\u061f\u06d4\u0964\u0965\u104b\u1362][\"”’)\]]*(?=\s|$)"  # Armenian to Ethiopic: with a space after
    r"|[\u3002\uff01\uff0e\uff1f\uff61][\"”’)\]\u300d\u300f\uff09]*"  # Chinese and Japanese: with none
)
_ABBREVIATIONS = "St Mt Ft Dr Mr Mrs Ms Prof Jr Sr No Nos ca approx cf esp fl pron sp spp ssp subsp syn var vs".split()
_NO_END = re.compile(rf"(?:^|[\s(\[.])(?:[A-Za-z]|{'|'.join(_ABBREVIATIONS)})\.$")
"""Text that ends with an initial or an abbreviation: "J. R. R. Tolkien", "St. Gallen", "(syn. Quercus pedunculata)"."""

_LONGEST_ABBREVIATION = 12
"""Characters before a full stop that are compared with `_NO_END`."""

_WITHOUT_EVIDENCE = {"references", "external links", "see also", "notes", "further reading", "bibliography"}


def split_passages(entry: Entry, *, lead: Lead = "none", cut: Cut = "paragraphs", size: int = 0) -> list[Passage]:
    """Cut an entry into passages, in the article's order. Together they hold every word once.

    Sections without prose ("References" …) and empty passages are left out. Without sections the summary is read.

    Args:
        entry: The article.
        lead: `first_sentence` puts the first sentence of the entry's summary before each passage, since a paragraph
            often doesn't name its subject.
        cut: `paragraphs`: end at a blank line, or at a line break if the next line is not indented (dumps of Wikipedia
            have one paragraph per line). `sections`: whole sections. `windows`: the whole sentences of a section that
            fit into `size` words; a longer sentence is a window of its own. `words`: `size` words, across sections;
            the passage belongs to the section of its first word.
        size: Words of a passage; 0 for the default (`DEFAULT_SIZES`). Not for paragraphs and sections.

    Raises:
        ValueError: `size` is given for a cut that doesn't read it.
    """
    if size and cut not in DEFAULT_SIZES:
        raise ValueError(f"the cut `{cut}` doesn't read `size`")
    size = size or DEFAULT_SIZES.get(cut, 0)
    sections = _sections(entry)
    opening = first_sentence(entry.summary) if lead == "first_sentence" and entry.sections else ""
    if cut == "words":
        return _blocks(entry, sections, size, opening)
    passages = []
    for index, heading, text in sections:
        if cut == "paragraphs":
            parts = [" ".join(part.split()) for part in _PARAGRAPHS.split(text)]
        elif cut == "sections":
            parts = [" ".join(text.split())]
        else:
            parts = _windows(text, size)
        parts = [part for part in parts if part]
        passages += [Passage(entry.id, index, i, entry.title, opening, heading, part) for i, part in enumerate(parts)]
    return passages


def summary_text(entry: Entry) -> str:
    """Return an entry's summary, else its first passage, else its title, with single spaces."""
    if text := " ".join(entry.summary.split()):
        return text
    passages = split_passages(entry)
    return passages[0].text if passages else " ".join(entry.title.split())


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, or the whole text if no sentence ends.

    A full stop after an initial or an abbreviation doesn't end a sentence, so "vitamin C." runs into the next one.
    """
    text = " ".join(text.split())
    ends = (match.end() for match in _SENTENCE_END.finditer(text))
    return next((text[:end] for end in ends if not _NO_END.search(text[:end])), text)


def lead_sentences(text: str) -> str:
    """Return the first three sentences of a text: Lead-3, the usual baseline of extractive summaries."""
    return " ".join(islice(sentences(text), 3))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with single spaces. Text after the last sentence end counts as one."""
    text = " ".join(text.split())
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if not _NO_END.search(text, max(0, start - 1, end - _LONGEST_ABBREVIATION), end):
            yield text[start:end]
            start = end + text.startswith(" ", end)
    if start < len(text):
        yield text[start:]


def _sections(entry: Entry) -> list[tuple[int, str, str]]:
    """Return index, heading and text of the sections that hold prose."""
    if not entry.sections:
        return [(0, "", entry.summary)]
    return [
        (index, section.title, section.text)
        for index, section in enumerate(entry.sections)
        if section.title.strip().lower() not in _WITHOUT_EVIDENCE
    ]


def _windows(text: str, size: int) -> list[str]:
    """Pack whole sentences greedily into windows."""
    windows: list[list[str]] = [[]]
    room = size
    for sentence in sentences(text):
        words = len(sentence.split())
        if words > room and windows[-1]:
            windows.append([])
            room = size
        windows[-1].append(sentence)
        room -= words
    return [" ".join(window) for window in windows]


def _blocks(entry: Entry, sections: Sequence[tuple[int, str, str]], size: int, lead: str) -> list[Passage]:
    """Cut the whole article into blocks of `size` words, each with the section of its first word."""
    words: list[str] = []
    begins = []  # position of the first word, index and heading of each section
    for index, heading, text in sections:
        begins.append((len(words), index, heading))
        words += text.split()
    passages: list[Passage] = []
    section, number = 0, 0
    for start in range(0, len(words), size):
        while section + 1 < len(begins) and begins[section + 1][0] <= start:
            section, number = section + 1, 0
        _, index, heading = begins[section]
        text = " ".join(words[start : start + size])
        passages.append(Passage(entry.id, index, number, entry.title, lead, heading, text))
        number += 1
    return passages
