"""Requests as files of a batch API, in a folder, and what came back: half the price at some, a day's patience at all.

OpenAI's API and vLLM's `run-batch` read such files: a line is `{"custom_id", "method", "url", "body"}`. A result has
`custom_id`, `response` with `status_code` and `body`, and `error`; it may be split over an output and an error file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.models.remote.client import RemoteModel, read_completion
from reflectune.models.remote.transport import REFUSED

MOST_REQUESTS: Final = 50_000
"""Of one file, as OpenAI's API takes them."""
MOST_BYTES: Final = 200_000_000
"""Of one file."""
PATH: Final = "/v1/chat/completions"

_REQUESTS: Final = re.compile(r"requests-(\d{3,})\.jsonl")


@dataclass
class Results:
    """What the result files of a folder hold.

    Attributes:
        replies: Replies that were not kept yet.
        refused: By request, why the server won't answer it.
        errors: What else went wrong, by what the result says: such requests are asked again.
        answered: Numbers of the request files that a result was of.
        foreign: Results of no request in the folder.
    """

    replies: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    answered: set[int] = field(default_factory=set)
    foreign: int = 0

    def __str__(self) -> str:
        errors = "".join(f"; {count:,} × {error}" for error, count in self.errors.most_common(3))
        foreign = f"; {self.foreign:,} results of no request here are left out" if self.foreign else ""
        return f"{self.replies:,} new replies, {len(self.refused):,} refused{errors}{foreign}"


@dataclass
class Written:
    """What became of requests without a reply.

    Attributes:
        files: The new files, each with the number of its requests.
        waiting: How many of them stand in files that have no result yet.
    """

    files: list[tuple[Path, int]]
    waiting: Counter[Path]


class BatchFolder:
    """Request files `requests-001.jsonl` …, and beside them result files of any other name that ends in `.jsonl`.

    A request's `custom_id` is the key that its reply is kept under, and the number of its file: what is asked again
    gets another one, so that each result tells which file it answers.

    Args:
        folder: The folder; it is made when there is something to write.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: dict[int, set[str]] | None = None

    def read_results(self, model: RemoteModel) -> Results:
        """Keep the replies of all result files, as if the server had sent them.

        Raises:
            UserError: A result file ends within a line, or has a line that is no result.
        """
        results, requests = Results(), self._requests()
        for path in sorted(self.folder.glob("*.jsonl")):
            if not _REQUESTS.fullmatch(path.name):
                for line, result in _lines(path):
                    self._take(f"{path}:{line}", result, requests, results, model)
        model.refuse(results.refused)
        return results

    def write(self, requests: Iterable[tuple[str, Mapping[str, Any]]], results: Results) -> Written:
        """Write files of the requests that no file waits for; memory holds one file's at a time.

        Args:
            requests: The key and the body of each that has no reply; one that comes again is passed over.
            results: What came back so far.
        """
        waiting = {number: ids for number, ids in self._requests().items() if number not in results.answered}
        written, first = Written([], Counter()), max(self._requests(), default=0) + 1

        def left() -> Iterator[tuple[str, Mapping[str, Any]]]:
            seen: set[str] = set()
            for key, body in requests:
                if key in seen:
                    continue
                seen.add(key)
                if (asked := next((n for n, ids in waiting.items() if key in ids), None)) is not None:
                    written.waiting[self._path(asked)] += 1
                else:
                    yield key, body

        for number, lines in enumerate(_files(left()), first):
            with writing(self._path(number)) as partial, partial.open("w", encoding="utf-8") as file:
                file.writelines(_request(key, number, body) for key, body in lines)
            written.files.append((self._path(number), len(lines)))
        return written

    def _path(self, number: int) -> Path:
        return self.folder / f"requests-{number:03}.jsonl"

    def _requests(self) -> dict[int, set[str]]:
        """The keys of the requests of each file, by its number."""
        if self._known is None:
            paths = {int(match[1]): path for path in self.folder.glob("*") if (match := _REQUESTS.fullmatch(path.name))}
            self._known = {number: {_custom_id(row)[0] for _, row in _lines(path)} for number, path in paths.items()}
        return self._known

    def _take(
        self, where: str, result: Any, requests: Mapping[int, set[str]], results: Results, model: RemoteModel
    ) -> None:
        if not isinstance(result, dict) or not isinstance(result.get("custom_id"), str):
            raise UserError(f"{where} is no result of a batch: it has no `custom_id`; is it another file?")
        key, number = _custom_id(result)
        if key not in requests.get(number, ()):
            results.foreign += 1
            return
        results.answered.add(number)
        if model.has(key):
            return
        status, body, error = _outcome(result)
        if error:
            if status in REFUSED:
                results.refused[key] = error
            else:
                results.errors[error] += 1
            return
        try:
            reply = read_completion(body)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            results.errors["no chat completion"] += 1
            return
        model.keep(key, reply, sync=False)  # the result file has it too
        results.refused.pop(key, None)
        results.replies += 1


def _request(key: str, number: int, body: Mapping[str, Any]) -> str:
    return json.dumps({"custom_id": f"{key}-{number}", "method": "POST", "url": PATH, "body": body}) + "\n"


def _custom_id(row: Mapping[str, Any]) -> tuple[str, int]:
    key, _, number = str(row.get("custom_id")).rpartition("-")
    return key, int(number) if number.isdecimal() else 0


def _files(requests: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """The requests in pieces that one file may hold."""
    lines: list[tuple[str, Mapping[str, Any]]] = []
    size = 0
    for key, body in requests:
        length = len(_request(key, 99_999, body))
        if lines and (len(lines) == MOST_REQUESTS or size + length > MOST_BYTES):
            yield lines
            lines, size = [], 0
        lines.append((key, body))
        size += length
    if lines:
        yield lines


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                cut = "ends within a line: it was not downloaded whole" if not line.endswith(b"\n") else "is not JSON"
                raise UserError(f"{path}:{number} {cut}; download it again") from None


def _outcome(result: Mapping[str, Any]) -> tuple[int, Any, str]:
    """The status, the completion, and what went wrong ("" for nothing) of a result."""
    response = result.get("response")
    response = response if isinstance(response, dict) else {}
    status, body = response.get("status_code"), response.get("body")
    status = status if isinstance(status, int) else 0
    error = result.get("error") or (body.get("error") if isinstance(body, dict) else None)
    if not error and status in (0, 200) and body is not None:
        return 200, body, ""
    told = error if isinstance(error, dict) else {"message": error}
    words = [str(told[key]) for key in ("code", "message") if told.get(key)]
    shown = " ".join(": ".join(words).split())[:120]
    return status, body, ": ".join(filter(None, (f"status {status}" if status else "", shown))) or "an empty result"
