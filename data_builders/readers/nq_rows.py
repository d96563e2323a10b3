"""Rows of Natural Questions: its three layouts made into one, and the article of tokens that a row holds."""

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
class Article:
    """An article as tokens.

    Attributes:
        id: Title and a hash of the text.
        title: The title.
        url: Where this version of it is, "" if the row does not say so.
        tokens: Words and HTML tags.
        spans: First token and the one after the last of each top-level candidate, in order.
    """

    id: str
    title: str
    url: str
    tokens: list[str]
    spans: list[tuple[int, int]]

    def headings(self) -> list[tuple[int, str]]:
        """Where each heading stands, and its words; the title stands at the beginning."""
        places = [at for at, token in enumerate(self.tokens) if _HEADING.fullmatch(token)]
        return [(0, self.title), *((at, _heading(self.tokens, at)) for at in places)]


def read_rows(path: Path, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    """The rows of a JSONL file, a Parquet file or a folder of Parquet files."""
    parquet = path.is_dir() or path.suffix == ".parquet"
    for number, row in (read_parquet if parquet else read_jsonl)(path, reject):
        row.id_field = "example_id" if "example_id" in row else "id"
        yield number, row


def simplified(row: SourceRow) -> SourceRow:
    """A row in the simplified layout, made from the others as Google makes it: a space in a token becomes `_`.

    Raises:
        BadRow: The row is in none of the three layouts.
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


def article(row: SourceRow) -> Article:
    """The article of a simplified row.

    Raises:
        BadRow: It has no text or no title, or its candidates are damaged.
    """
    content = text(row, "document_text")
    tokens = row["document_text"].split(" ")  # other white space can be in a token
    title = _title(row, tokens)
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    candidates = [one for one in records(row, "long_answer_candidates") if flag(one, "top_level")]
    spans = [candidate_span for candidate in candidates if (candidate_span := span(candidate, len(tokens)))]
    url = html.unescape(text(row, "document_url", default=""))
    return Article(f"{title}@{digest}", title, url, tokens, spans)


def span(record: SourceRow, size: int) -> tuple[int, int] | None:
    """First token and the one after the last; None where both are -1, which stands for nothing.

    Raises:
        BadRow: They are no places in a document of `size` tokens.
    """
    start, end = integer(record, "start_token"), integer(record, "end_token")
    if start == end == -1:
        return None
    if not 0 <= start < end <= size:
        raise record.bad("start_token", f"is {start}, with the end at {end}, in a document of {size} tokens", _AGAIN)
    return start, end


def records(row: SourceRow, field: str) -> list[SourceRow]:
    """A list of objects, which on the Hub is an object of lists.

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
    """Tokens as running text, without tags and without the spaces that parted words from punctuation."""
    joined = " ".join(token for token in tokens if not _TAG.fullmatch(token))
    return " ".join(_NEEDLESS_SPACE.sub("", _QUOTES.sub('"', joined)).split())


def _title(row: SourceRow, tokens: list[str]) -> str:
    """The title; the simplified layout has it in the article's heading alone."""
    title = text(row, "document_title", default="")
    if not title and "<H1>" in tokens:
        title = _heading(tokens, tokens.index("<H1>"))
    if not title:
        raise row.bad("document_text", "has no title (<H1>)", _AGAIN)
    return title


def _heading(tokens: list[str], start: int) -> str:
    """The words of the heading that begins at a tag, without the link to edit it."""
    closing = f"</{tokens[start][1:]}"
    end = tokens.index(closing, start) if closing in tokens[start:] else start
    return _EDIT_LINK.sub("", plain(tokens[start:end]))
