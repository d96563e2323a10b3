"""Asking a model behind an OpenAI-compatible server: many requests at a time, each reply kept and never paid for twice.

vLLM, SGLang, llama.cpp and the commercial APIs speak this protocol.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.progress import progress_bar
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.replies import ReplyFile
from reflectune.models.remote.transport import Refused, Transport

Messages = list[dict[str, Any]]
"""A conversation as the protocol has it: `[{"role": "user", "content": …}, …]`."""

MOST_LOG_PROBABILITIES = 20
"""As many first tokens as OpenAI's API and vLLM (by default) give."""


@dataclass(frozen=True)
class Reply:
    """What came back for one conversation.

    Attributes:
        text: The reply, "" if the server refused.
        prompt_tokens: Tokens that were sent, as the server counts them.
        completion_tokens: Tokens that were received.
        finish: Why it ended: `stop`, `length` (cut off at `max_tokens`), `content_filter`.
        first_token: Natural log-probabilities of the most likely first tokens, where they were asked for.
        refused: Why the server wouldn't answer this conversation; "" if it did. A refusal is not kept.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    first_token: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""


class RemoteModel:
    """A model on a server.

    Every reply is on the disk before the next one is asked for in its place, under a hash of the address and the whole
    request. After a `kill -9` only requests that were under way are sent again.

    Args:
        endpoint: The server and the model.
        cache: The file of replies.

    Example:
        >>> with RemoteModel(Endpoint("http://localhost:8000/v1", "Qwen3-8B"), "replies.jsonl") as model:
        ...     model.complete([{"role": "user", "content": "Say yes."}])
        'Yes.'
    """

    def __init__(self, endpoint: Endpoint, cache: str | Path) -> None:
        self.endpoint = endpoint
        self._replies = ReplyFile(cache)
        self._lock = threading.Lock()
        self._sent = self._reused = self._retried = 0
        self._prompt_tokens = self._completion_tokens = 0
        self._refused: dict[str, Reply] = {}

    @property
    def cache(self) -> Path:
        """The file of replies."""
        return self._replies.path

    def complete(self, messages: Messages) -> str:
        """The reply to one conversation.

        Raises:
            UserError: The server refuses it, or can't be used.
        """
        (reply,) = self.complete_all([messages], what="")
        if reply.refused:
            raise UserError(f"{self.endpoint.shown_url} refuses a request: {reply.refused}; shorten or change it")
        return reply.text

    def complete_all(self, conversations: Sequence[Messages], *, what: str = "requests", **fields: Any) -> list[Reply]:
        """The replies to conversations, in their order. Equal ones are sent once.

        Conversations that begin alike are sent one after the other, so that a server which keeps what it has read
        (vLLM's prefix cache) reads a picture and a question once for all their passages.

        Args:
            conversations: What to ask.
            what: What the progress bar calls them; "" for no bar.
            **fields: Further fields of the requests, e.g. `max_tokens=1`.

        Raises:
            UserError: The server can't be used, or kept failing. What was answered is kept.
        """
        bodies = [self.endpoint.request(messages, **fields) for messages in conversations]
        keys = [request_key(self.endpoint, body) for body in bodies]
        missing = self._missing(keys, bodies)
        self._reused += len(set(keys) - self._refused.keys()) - len(missing)
        refused = {**self._refused, **self._send_all(missing, what)}
        return [refused[key] if key in refused else self._kept(key) for key in keys]

    def unanswered(self, conversations: Sequence[Messages]) -> dict[str, dict[str, Any]]:
        """The requests that `complete_all` would send, by the keys that their replies are kept under."""
        bodies = [self.endpoint.request(messages) for messages in conversations]
        return self._missing([request_key(self.endpoint, body) for body in bodies], bodies)

    def has(self, key: str) -> bool:
        """Whether the reply to a request is kept."""
        return key in self._replies

    def keep(self, key: str, reply: Reply, *, sync: bool = True) -> None:
        """Keep a reply, also one that came by another way.

        Args:
            key: Of the request, see `request_key`.
            reply: What came back.
            sync: Whether it is on the disk when this returns; not needed for one that can be read again.
        """
        row = dataclasses.asdict(reply)
        del row["refused"]
        self._replies.put(key, row, sync=sync)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Take requests as refused, by their keys with the reasons: they are not sent."""
        self._refused.update({key: Reply("", refused=reason) for key, reason in reasons.items()})

    def texts(self, conversations: Sequence[Messages], *, what: str = "requests") -> list[str]:
        """The replies' texts; see `complete_all`."""
        return [reply.text for reply in self.complete_all(conversations, what=what)]

    def log_probabilities(
        self, conversations: Sequence[Messages], tokens: Iterable[str], *, what: str = "requests"
    ) -> list[dict[str, float]]:
        """Of each conversation: the natural log-probability that the reply begins with each of these tokens.

        The server tells only the 20 likeliest first tokens; one that is not among them is left out, and is at most as
        likely as the least likely of them. A gate reads its two tokens from one request, without decoding anything.

        Raises:
            UserError: The server gives no log-probabilities, refuses a request, or can't be used.
        """
        wanted = set(tokens)
        replies = self.complete_all(
            conversations, what=what, max_tokens=1, logprobs=True, top_logprobs=MOST_LOG_PROBABILITIES
        )
        for reply in replies:
            if not reply.first_token:
                reason = reply.refused or "its replies have no `logprobs`"
                raise UserError(
                    f"{self.endpoint.shown_url} gives no log-probabilities ({reason}); use a server that does"
                )
        return [{token: value for token, value in reply.first_token.items() if token in wanted} for reply in replies]

    def usage(self) -> dict[str, Any]:
        """What all replies in the file cost, whichever run asked for them."""
        prompt, completion = self._replies.prompt_tokens, self._replies.completion_tokens
        return {
            "replies": len(self._replies),
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cost": round(self.endpoint.cost(prompt, completion), 6),
        }

    def summary(self) -> str:
        """What this run asked for and what it cost, in one line."""
        cost = self.endpoint.cost(self._prompt_tokens, self._completion_tokens)
        priced = f", cost {cost:.4f}" if self.endpoint.input_price or self.endpoint.output_price else ""
        return (
            f"{self.endpoint.model}: {self._sent:,} replies, {self._reused:,} more from {self._replies.path}; "
            f"{self._prompt_tokens:,} tokens sent, {self._completion_tokens:,} received{priced}; "
            f"{self._retried:,} retries"
        )

    def close(self) -> None:
        """Close the file of replies."""
        self._replies.close()

    def __enter__(self) -> RemoteModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send_all(self, bodies: Mapping[str, dict[str, Any]], what: str) -> dict[str, Reply]:
        """Send what is missing; each thread keeps a reply before it sends the next request.

        Returns:
            The refusals.
        """
        refused: dict[str, Reply] = {}
        if not bodies:
            return refused
        bar = progress_bar(total=len(bodies), desc=what, unit="req", leave=False, disable=not what)
        pool = ThreadPoolExecutor(min(self.endpoint.concurrency, len(bodies)))
        with bar, closing(Transport(self.endpoint)) as transport, pool:
            futures = {pool.submit(self._ask, transport, key, body): key for key, body in bodies.items()}
            try:
                for future in as_completed(futures):
                    reply = future.result()
                    if reply.refused:
                        refused[futures[future]] = reply
                    bar.update()
                    bar.set_postfix_str(self._progress(), refresh=False)
            except BaseException:
                transport.stop()  # send nothing more; what is under way is paid for, so wait for it and keep it
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            finally:
                self._retried += transport.retried
        if not self._replies:
            reason = next(iter(refused.values())).refused
            raise UserError(
                f"{self.endpoint.shown_url} refuses every request: {reason}; `llm_options` can change a request"
            )
        return refused

    def _ask(self, transport: Transport, key: str, body: dict[str, Any]) -> Reply:
        try:
            reply = transport.post(body, read_completion)
        except Refused as error:
            return Reply("", refused=str(error))
        self.keep(key, reply)
        with self._lock:
            self._sent += 1
            self._prompt_tokens += reply.prompt_tokens
            self._completion_tokens += reply.completion_tokens
        return reply

    def _missing(self, keys: Sequence[str], bodies: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The requests that are neither answered nor refused, ordered by how they begin."""
        missing = {
            key: body
            for key, body in zip(keys, bodies, strict=True)
            if key not in self._replies and key not in self._refused
        }
        return dict(sorted(missing.items(), key=lambda item: beginning(item[1]["messages"])))

    def _kept(self, key: str) -> Reply:
        row = self._replies.get(key)
        del row["id"]
        return Reply(**row)

    def _progress(self) -> str:
        cost = self.endpoint.cost(self._prompt_tokens, self._completion_tokens)
        shown = f"{self._prompt_tokens + self._completion_tokens:,} tokens"
        return f"{shown}, cost {cost:.4f}" if cost else shown


def request_key(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """What the reply to a request is kept under: a hash of the address and the whole request."""
    return fingerprint([endpoint.shown_url, body])


def beginning(messages: Messages) -> list[str]:
    """What orders conversations by how they begin: the parts of their messages in turn, pictures by a hash."""
    parts: list[str] = []
    for message in messages:
        content = message["content"]
        listed = content if isinstance(content, list) else [{"type": "text", "text": content}]
        parts.append(str(message["role"]))
        parts += [str(part["text"]) if part.get("type") == "text" else fingerprint([part]) for part in listed]
    return parts


def read_completion(value: Any) -> Reply:
    """Read a chat completion.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: It is none; `Transport.post` takes it for garbage.
    """
    choice = value["choices"][0]
    content = choice["message"].get("content")
    if isinstance(content, list):  # some servers send parts
        content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    used = value.get("usage") or {}
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    return Reply(
        text=_storable(content or ""),
        prompt_tokens=int(used.get("prompt_tokens") or 0),
        completion_tokens=int(used.get("completion_tokens") or 0),
        finish=str(choice.get("finish_reason") or ""),
        first_token={_storable(str(one["token"])): float(one["logprob"]) for one in listed},
    )


def _storable(text: str) -> str:
    """The text with a replacement for each half of a surrogate pair: JSON can hold one alone, UTF-8 can't."""
    return text.encode("utf-8", errors="replace").decode()
