"""Replies: server-sent events, chat completions of OpenAI's API, and results of searches."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.serving.events import Event
from reflectune.inference.trace import Trace, to_row


def server_sent(data: object, event: str = "") -> str:
    """Return a server-sent event. The JSON is ASCII without line breaks, which would end the event."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n" if event else f"data: {json.dumps(data)}\n\n"


async def event_stream(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    """Yield a question's events as server-sent ones."""
    async for event in events:
        yield server_sent(event.data, event.name)


def completion(trace: Trace, identity: str) -> dict[str, Any]:
    """Return a chat completion; the field `reflectune` holds the trace."""
    message = {"role": "assistant", "content": trace.answer}
    choice = {"index": 0, "message": message, "finish_reason": _reason(trace.cut)}
    head = _head("chat.completion", identity, trace.pipeline)
    return {**head, "choices": [choice], "usage": _usage(trace.tokens), "reflectune": to_row(trace)}


async def chunk_stream(events: AsyncIterator[Event], identity: str, pipeline: str) -> AsyncIterator[str]:
    """Yield the chunks of a streamed chat completion. The field `reflectune` of each holds an event."""
    head = _head("chat.completion.chunk", identity, pipeline)
    delta: dict[str, str] = {"role": "assistant", "content": ""}
    async for event in events:
        if event.name == "error":
            yield server_sent(event.data)
            return
        is_done = event.name == "done"
        if event.name == "answer":
            delta = {**delta, "content": event.data["answer"]}
        reason = _reason(event.data["trace"]["cut"]) if is_done else None
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        usage = {"usage": _usage(event.data["trace"]["tokens"])} if is_done else {}
        yield server_sent({**head, "choices": choices, **usage, "reflectune": {"event": event.name, **event.data}})
        delta = {}
    yield "data: [DONE]\n\n"


def _head(kind: str, identity: str, pipeline: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{identity}", "object": kind, "created": int(time.time()), "model": pipeline}


def _reason(cut: bool) -> str:
    return "length" if cut else "stop"


def _usage(tokens: Mapping[str, int]) -> dict[str, int]:
    read, generated = tokens.get("read", 0), tokens.get("generated", 0)
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def found_passages(results: list[list[PassageHit]], *, scores: bool) -> dict[str, Any]:
    """Return passages in Search-R1's format: a document's contents are its quoted title, a line break, and its text."""
    rows = [[_document(it.passage.id, it.passage.title, it.passage.text) for it in hits] for hits in results]
    return _results(rows, results, scores)


def found_entries(results: list[list[Hit]], knowledge: KnowledgeBase, *, scores: bool) -> dict[str, Any]:
    """Return entries in Search-R1's format: a document's contents are the entry's title and summary."""
    entries = [[knowledge.get(hit.entry_id) for hit in hits] for hits in results]
    return _results([[_document(it.id, it.title, it.summary) for it in row] for row in entries], results, scores)


def _document(key: str, title: str, text: str) -> dict[str, str]:
    return {"id": key, "contents": f'"{title}"\n{text}'}


def _results(rows: list[list[dict[str, str]]], hits: Sequence[Sequence[Any]], scores: bool) -> dict[str, Any]:
    if not scores:
        return {"result": rows}
    pairs = [zip(row, found, strict=True) for row, found in zip(rows, hits, strict=True)]
    return {"result": [[{"document": document, "score": hit.score} for document, hit in row] for row in pairs]}
