"""Natural Questions: questions of a search engine's users, and the Wikipedia articles that answer them.

The articles are the knowledge base: an entry each, whose sections are the top-level candidates for a long answer
(paragraphs, tables, lists) with the headings above them. One article can come in several versions, so an entry's id is
its title with a hash of its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import one_path
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.nq_rows import NqArticle, article, plain, read_rows, records, simplified, span
from reflectune.data_builders.readers.rows import Placed, SourceRow, mapping, placed, text

_YES_NO = {"YES": "yes", "NO": "no", "NONE": "", "1": "yes", "0": "no", "-1": ""}


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    answerable_only: bool = True,
) -> Iterator[Placed[Question]]:
    """Yield the questions, without images, from one of three layouts:

    - Google's simplified JSONL (`v1.0-simplified_simplified-nq-train.jsonl.gz`, and Kaggle's): `{example_id,
      question_text, document_url, document_text, long_answer_candidates[{start_token, end_token, top_level}],
      annotations[{annotation_id, long_answer{start_token, end_token, candidate_index}, short_answers[{start_token,
      end_token}], yes_no_answer}]}`, where single spaces separate the tokens, which include HTML tags;
    - Google's original JSONL, the only layout of the development set: `document_tokens[{token, html_token, start_byte,
      end_byte}]`, `document_title` and `document_html` instead of `document_text`;
    - Parquet files from the Hub (`google-research-datasets/natural_questions`): `{id, question{text, tokens},
      document{title, url, html, tokens{token, is_html, …}}, long_answer_candidates{…}, annotations{…}}`, lists of
      objects being objects of lists there.

    An annotator's answer is the short answer, with several spans joined by `&&`, or else yes or no. The development set
    has five annotators; the most frequent answer comes first. Evidence is the section that holds the long answer. Texts
    are joined from tokens, so that "1961 , however" becomes "1961, however".

    Args:
        source: A JSONL file (`.gz` too), a Parquet file, or a folder of Parquet files.
        split: Name of the split.
        images: Not read.
        reject: Called with each bad row.
        answerable_only: Skip questions without a short answer and without yes or no, about two of three.

    Raises:
        UserError: The source is not a path, or the file is missing or damaged.
    """
    for question, line in placed(
        read_rows(one_path(source, "Natural Questions"), reject), partial(_question, split=split), reject
    ):
        if question.answers or not answerable_only:
            yield question, line


def read_source(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of the same files in the simplified layout, one per version of an article."""
    seen: set[str] = set()
    for number, row in read_rows(path, reject):
        try:
            simple_row = simplified(row)
            entry_id = article(simple_row).id
        except BadRow as error:
            reject(error)
            continue
        if entry_id not in seen:
            seen.add(entry_id)
            yield number, simple_row


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a row's article; its summary is its first paragraph."""
    source_article = article(simplified(row))
    headings, spans = source_article.headings(), source_article.spans
    sections = [
        Section(next(words for at, words in reversed(headings) if at <= start), plain(source_article.tokens[start:end]))
        for start, end in spans
    ]
    prose = (
        section.text for section, (at, _) in zip(sections, spans, strict=True) if source_article.tokens[at] == "<P>"
    )
    return Entry(
        id=source_article.id,
        title=source_article.title,
        url=source_article.url,
        summary=next(prose, ""),
        sections=tuple(sections),
    )


def _question(row: SourceRow, *, split: str) -> Question:
    row = simplified(row)
    shown = article(row)
    answers: Counter[str] = Counter()
    evidence: dict[Evidence, None] = {}
    for annotation in records(row, "annotations"):
        answer = _answer(annotation, shown.tokens)
        answers.update([answer] if answer else [])
        long_answer = span(mapping(annotation, "long_answer"), len(shown.tokens))
        if long_answer:
            evidence[Evidence(shown.id, _section(row, shown, long_answer))] = None
    return Question(
        id=_id(row),
        image="",
        text=text(row, "question_text"),
        answers=tuple(answer for answer, _ in answers.most_common()),
        answer_type="multi_answer" if any("&&" in answer for answer in answers) else "string",
        split=split,
        requires_retrieval=True,
        entity_ids=(shown.id,),
        evidence=tuple(evidence),
    )


def _id(row: SourceRow) -> str:
    """Return the id: a text, or a number of up to 20 digits, which a float can't hold."""
    value = row.get("example_id")
    return str(value) if type(value) is int else text(row, "example_id")


def _answer(annotation: SourceRow, tokens: list[str]) -> str:
    """Return an annotator's short answer, yes or no; "" without either."""
    spans = [span(record, len(tokens)) for record in records(annotation, "short_answers")]
    parts = [plain(tokens[found[0] : found[1]]) for found in spans if found]
    if any(parts):
        return " && ".join(part for part in dict.fromkeys(parts) if part)
    given = str(annotation.get("yes_no_answer")).upper()
    if given not in _YES_NO:
        raise annotation.bad("yes_no_answer", f"is {given}", "it should be YES, NO or NONE")
    return _YES_NO[given]


def _section(row: SourceRow, shown: NqArticle, long_answer: tuple[int, int]) -> int:
    """Return the index of the section that holds a long answer."""
    first, last = long_answer
    for index, (start, end) in enumerate(shown.spans):
        if start <= first and last <= end:
            return index
    problem = f"has a long answer (tokens {first} to {last}) in no top-level candidate"
    raise row.bad("annotations", problem, "download the file again, or leave the row out")
