"""Natural Questions: questions of a search engine's users, and the Wikipedia articles that answer them.

The articles are the knowledge base: an entry each, whose sections are the top-level candidates for a long answer
(paragraphs, tables, lists) with the headings above them. One article can come in several versions, so an entry's id is
its title with a hash of its text.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import one_path, read_jsonl, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, flag, integer, mapping, placed, rows, text

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
        images: Not read.
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


_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_HEADING = re.compile(r"<H[1-6]>")
_EDIT_LINK = re.compile(r"\s*[(\[] ?edit ?[)\]]$")
_QUOTES = re.compile(r"`` ?|(?: |^)''(?= |$)")
_NEEDLESS_SPACE = re.compile(r" (?=(?:[,.;:?!)\]%]|'s|n't|'re|'ve|'ll|'d|'m)(?: |$))|(?<=[(\[$]) ")
_AGAIN = "download the file again, or leave the row out"


@dataclass(frozen=True)
class NqArticle:
    """An article as tokens.

    Attributes:
        id: Title and a hash of the text.
        title: The title.
        url: URL of this version, "" if unknown.
        tokens: Words and HTML tags.
        spans: Start and end (exclusive) of each top-level candidate in tokens, in order.
    """

    id: str
    title: str
    url: str
    tokens: list[str]
    spans: list[tuple[int, int]]

    def headings(self) -> list[tuple[int, str]]:
        """Return the position and the words of each heading, beginning with the title."""
        positions = [at for at, token in enumerate(self.tokens) if _HEADING.fullmatch(token)]
        return [(0, self.title), *((at, _heading(self.tokens, at)) for at in positions)]


def read_rows(path: Path, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of a JSONL file, a Parquet file or a folder of Parquet files."""
    parquet = path.is_dir() or path.suffix.lower() == ".parquet"
    for number, row in (read_parquet if parquet else read_jsonl)(path, reject):
        row.id_field = "example_id" if "example_id" in row else "id"
        yield number, row


def simplified(row: SourceRow) -> SourceRow:
    """Convert a row to the simplified layout as Google does: a space in a token becomes `_`.

    Raises:
        BadRow: The row has none of the three layouts.
    """
    if "document_text" in row:
        return row
    if "document" in row:
        document = mapping(row, "document")
        words = mapping(document, "tokens").get("token")
        values = {
            "example_id": row.get("id"),
            "question_text": mapping(row, "question").get("text"),
            "document_title": document.get("title"),
            "document_url": document.get("url"),
            **{name: row[name] for name in ("long_answer_candidates", "annotations") if name in row},
        }
    else:
        tokens = row.get("document_tokens")
        objects = isinstance(tokens, list) and all(isinstance(token, dict) for token in tokens)
        words = [token.get("token") for token in tokens or ()] if objects else None
        values = {name: row[name] for name in row if name not in ("document_tokens", "document_html")}
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise row.bad("", "has no `document_text`, `document_tokens` or `document` with texts for tokens", _AGAIN)
    joined = " ".join(word.replace(" ", "_") for word in words)
    return SourceRow({**values, "document_text": joined}, row.file, row.line, "example_id")


def article(row: SourceRow) -> NqArticle:
    """Return the article of a simplified row.

    Raises:
        BadRow: It has no text or no title, or its candidates are damaged.
    """
    content = text(row, "document_text")
    tokens = row["document_text"].split(" ")  # a token may hold other white space
    title = _title(row, tokens)
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    candidates = [record for record in records(row, "long_answer_candidates") if flag(record, "top_level")]
    spans = [candidate_span for candidate in candidates if (candidate_span := span(candidate, len(tokens)))]
    url = html.unescape(text(row, "document_url", default=""))
    return NqArticle(f"{title}@{digest}", title, url, tokens, spans)


def span(record: SourceRow, size: int) -> tuple[int, int] | None:
    """Return start and end (exclusive) of a span of tokens; None if both are -1.

    Raises:
        BadRow: The span is not within a document of `size` tokens.
    """
    start, end = integer(record, "start_token"), integer(record, "end_token")
    if start == end == -1:
        return None
    if not 0 <= start < end <= size:
        raise record.bad("start_token", f"is {start}, with the end at {end}, in a document of {size} tokens", _AGAIN)
    return start, end


def records(row: SourceRow, field: str) -> list[SourceRow]:
    """Return a list of objects; on the Hub it is an object of lists.

    Raises:
        BadRow: The field is missing, or is neither.
    """
    value = row.get(field)
    if not isinstance(value, dict):
        return rows(row, field)
    columns = {name: column for name, column in value.items() if name != "id"}
    if not all(isinstance(column, list) for column in columns.values()) or len({*map(len, columns.values())}) > 1:
        raise row.bad(field, "is an object, and not of lists of one length", _AGAIN)
    objects = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows(SourceRow({"id": row.id, field: objects}, row.file, row.line), field)


def plain(tokens: Sequence[str]) -> str:
    """Join tokens to a text, without tags and without spaces before punctuation."""
    joined = " ".join(token for token in tokens if not _TAG.fullmatch(token))
    return " ".join(_NEEDLESS_SPACE.sub("", _QUOTES.sub('"', joined)).split())


def _title(row: SourceRow, tokens: list[str]) -> str:
    """Return the title; the simplified layout has it only in the article's heading."""
    title = text(row, "document_title", default="")
    if not title and "<H1>" in tokens:
        title = _heading(tokens, tokens.index("<H1>"))
    if not title:
        raise row.bad("document_text", "has no title (<H1>)", _AGAIN)
    return title


def _heading(tokens: list[str], start: int) -> str:
    """Return the words of the heading that begins at a tag, without its edit link."""
    closing = f"</{tokens[start][1:]}"
    end = tokens.index(closing, start) if closing in tokens[start:] else start
    return _EDIT_LINK.sub("", plain(tokens[start:end]))
