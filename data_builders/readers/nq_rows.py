"""Convert the three layouts of Natural Questions' rows to one, and read a row's article of tokens."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.rejected import Reject
from reflectune.data_builders.readers.files import read_jsonl, read_parquet
from reflectune.data_builders.readers.rows import SourceRow, flag, integer, mapping, rows, text

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
    parquet = path.is_dir() or path.suffix == ".parquet"
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
