"""A model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, commercial APIs), with a file of its replies."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import Closing
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.progress import progress_bar
from reflectune.core.secrets import route_of
from reflectune.models.remote.context import ServerContext
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import url_key
from reflectune.models.remote.replies import ReplyFile
from reflectune.models.remote.transport import Refused, Transport

Messages = list[dict[str, Any]]
"""A conversation in OpenAI's format: `[{"role": "user", "content": …}, …]`."""

_FEW: Final = 0.05
MAX_LOG_PROBABILITIES = 20
"""Maximum first tokens that OpenAI's API and vLLM (by default) return."""

_BEFORE_A_WORD = "\N{LOWER ONE EIGHTH BLOCK}\u0120\u010a\u0109"
"""Markers in vocabularies: SentencePiece's space; the space, line break and tab of byte-level BPE."""

_AROUND_A_WORD = "\"'`*_#([{<>}])\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}" + (
    "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}.,:;!"
)


class NoLogProbabilities(UserError):
    """The server returns no log-probabilities."""


class AllRefused(UserError):
    """The server refuses every request."""


@dataclass(frozen=True)
class RemoteReply:
    """A server's reply to one conversation.

    Attributes:
        text: The reply, "" if the server refused.
        prompt_tokens: Tokens that were sent, as the server counts them.
        completion_tokens: Tokens that were received.
        finish: Finish reason: `stop`, `length` (cut off at `max_tokens`), `content_filter`.
        first_token: Natural log-probabilities of the most likely first tokens by text, if requested; ids with the same
            text are summed.
        refused: Reason of a refusal; "" for an answer. Refusals are not cached.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    first_token: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""


class RemoteModel(Closing):
    """A model on a server; thread-safe.

    Every reply is written to the disk before its thread sends the next request, under a hash of the URL and the whole
    request. After a `kill -9` only pending requests are sent again.

    Args:
        endpoint: The server and the model.
        cache: The file of replies.

    Example:
        >>> with RemoteModel(Endpoint("http://localhost:8000/v1", "Qwen3-8B"), "replies.jsonl") as model:
        ...     model.texts([[{"role": "user", "content": "Say yes."}]])
        ['Yes.']
    """

    def __init__(self, endpoint: Endpoint, cache: str | Path) -> None:
        self.endpoint = endpoint
        self._contexts: dict[str, ServerContext] = {}
        self._replies = ReplyFile(cache)
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._under_way: dict[str, Future[RemoteReply]] = {}
        self._sent = self._reused = 0
        self._refused: dict[str, str] = {}
        self._cut: set[str] = set()
        self._gives_probabilities = False
        self._prompt_tokens = self._completion_tokens = 0

    @property
    def cache(self) -> Path:
        """The file of replies."""
        return self._replies.path

    def context_of(self, name: str) -> ServerContext:
        """Return the context of a model of the server; "" for the endpoint's."""
        with self._lock:
            if name not in self._contexts:
                endpoint = dataclasses.replace(self.endpoint, model=name) if name else self.endpoint
                self._contexts[name] = ServerContext(endpoint)
            return self._contexts[name]

    def complete_all(
        self, conversations: Sequence[Messages], *, desc: str = "requests", **fields: Any
    ) -> list[RemoteReply]:
        """Return the replies to conversations, in order. Equal ones are sent once, also from different threads.

        Conversations with a common prefix are sent one after the other, so a server with a prefix cache (vLLM) reads an
        image and a question once for all their passages.

        Args:
            conversations: The conversations.
            desc: Label of the progress bar; "" for no bar.
            **fields: Further fields of the requests, e.g. `max_tokens=1`.

        Raises:
            UserError: The server can't be used, or kept failing. Received replies are kept.
        """
        bodies = [self.endpoint.request(messages, **fields) for messages in conversations]
        keys = [request_key(self.endpoint, body) for body in bodies]
        missing = self._missing(keys, bodies)
        refused = self._send_all(missing, desc) if missing else {}
        replies = [refused[key] if key in refused else self._kept(key) for key in keys]
        with self._lock:
            self._reused += len(set(keys)) - len(missing)
            self._refused |= {key: reply.refused for key, reply in refused.items()}
            if "logprobs" not in fields:
                self._cut |= {key for key, reply in zip(keys, replies, strict=True) if reply.finish == "length"}
        return replies

    def texts(self, conversations: Sequence[Messages], *, desc: str = "requests") -> list[str]:
        """Return the replies' texts; see `complete_all`."""
        return [reply.text for reply in self.complete_all(conversations, desc=desc)]

    def log_probabilities(
        self, conversations: Sequence[Messages], words: Iterable[str], *, desc: str = "requests"
    ) -> list[RemoteReply]:
        """Return replies whose `first_token` holds the natural log-probability of each of these words as first token.

        The probabilities of all tokens that spell the word (`is_word`) are summed. The server returns the 20 most
        likely tokens; a word that isn't among them is left out. A gate reads its two words from one request.

        Raises:
            NoLogProbabilities: The server returns none, or refuses all of the first requests.
            UserError: It returns NaN, or can't be used.
        """
        requested = dict.fromkeys(words)
        replies = self.complete_all(
            conversations, desc=desc, max_tokens=1, logprobs=True, top_logprobs=MAX_LOG_PROBABILITIES
        )
        answered = [reply for reply in replies if not reply.refused]
        self._gives_probabilities = self._gives_probabilities or any(reply.first_token for reply in answered)
        if not all(reply.first_token for reply in answered) or (replies and not self._gives_probabilities):
            reason = "its replies have no `logprobs`" if answered else replies[0].refused
            raise NoLogProbabilities(
                f"{self.endpoint.shown_url} gives no log-probabilities ({reason}); use a server that does"
            )
        return [
            dataclasses.replace(reply, first_token=_by_word(reply.first_token, requested))
            if not reply.refused
            else reply
            for reply in replies
        ]

    def usage(self) -> dict[str, Any]:
        """Return the tokens and the cost of all replies in the file, of this run and earlier ones."""
        prompt, completion = self._replies.prompt_tokens, self._replies.completion_tokens
        return {
            "replies": len(self._replies),
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cost": round(self.endpoint.cost(prompt, completion), 6),
        }

    def summary(self) -> str:
        """Describe the requests of this run and their cost in one line; warn if many were refused or cut off."""
        cost = self.endpoint.cost(self._prompt_tokens, self._completion_tokens)
        priced = f", cost {cost:.4f}" if self.endpoint.input_price or self.endpoint.output_price else ""
        counts = {"refused": len(self._refused), "truncated at the maximum length": len(self._cut)}
        total = self._sent + self._reused + len(self._refused)
        named = [f"{count:,} {name}" for name, count in counts.items() if count]
        first = f" (first: {next(iter(self._refused.values()))})" if self._refused else ""
        many = any(is_many(count, total) for count in counts.values())
        return (
            f"{self.endpoint.model}: {self._sent:,} replies, {self._reused:,} more from {self._replies.path}; "
            f"{self._prompt_tokens:,} tokens sent, {self._completion_tokens:,} received{priced}"
            + (f"\n{'warning: ' if many else ''}of {total:,} requests {' and '.join(named)}{first}" if named else "")
        )

    def close(self) -> None:
        """Close the file of replies, and the connections."""
        self._replies.close()
        if self._transport is not None:
            self._transport.close()

    def _send_all(self, bodies: Mapping[str, dict[str, Any]], desc: str) -> dict[str, RemoteReply]:
        """Send requests, cache the replies and return the refusals."""
        sent = self._ask_all(bodies, desc) if len(bodies) > 1 else {key: self._ask(key, bodies[key]) for key in bodies}
        refused = {key: reply for key, reply in sent.items() if reply.refused}
        if not self._replies:
            reason = next(iter(refused.values())).refused
            raise AllRefused(
                f"{self.endpoint.shown_url} refuses every request: {reason}; `llm_options` can change a request"
            )
        return refused

    def _ask_all(self, bodies: Mapping[str, dict[str, Any]], desc: str) -> dict[str, RemoteReply]:
        """Send requests, several at a time."""
        replies: dict[str, RemoteReply] = {}
        bar = progress_bar(total=len(bodies), desc=desc, unit="req", leave=False, disable=not desc)
        pool = ThreadPoolExecutor(min(self.endpoint.concurrency, len(bodies)))
        with bar, pool:
            futures = {pool.submit(self._ask, key, body): key for key, body in bodies.items()}
            try:
                for future in as_completed(futures):
                    replies[futures[future]] = future.result()
                    bar.update()
                    bar.set_postfix_str(self._progress(), refresh=False)
            except BaseException:
                # pending requests are paid for: wait for them and cache their replies
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return replies

    def _ask(self, key: str, body: dict[str, Any]) -> RemoteReply:
        """Send a request, unless another thread has sent it."""
        with self._lock:
            if key in self._replies:
                return self._kept(key)
            future = self._under_way.get(key)
            is_sent = future is not None
            if future is None:
                future = self._under_way[key] = Future()
            if self._transport is None:
                self._transport = Transport(self.endpoint)
        if is_sent:
            return future.result()
        try:
            future.set_result(self._sent_now(self._transport, key, body))
        except BaseException as error:
            future.set_exception(error)
        finally:
            with self._lock:
                del self._under_way[key]
        return future.result()

    def _sent_now(self, transport: Transport, key: str, body: dict[str, Any]) -> RemoteReply:
        try:
            reply = transport.post(body, read_completion)
        except Refused as error:
            return RemoteReply("", refused=str(error))
        row = dataclasses.asdict(reply)
        del row["refused"]
        self._replies.put(key, row)
        with self._lock:
            self._sent += 1
            self._prompt_tokens += reply.prompt_tokens
            self._completion_tokens += reply.completion_tokens
        return reply

    def _missing(self, keys: Sequence[str], bodies: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the requests without a reply, ordered by their beginnings."""
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in self._replies}
        return dict(sorted(missing.items(), key=lambda item: beginning(item[1]["messages"])))

    def _kept(self, key: str) -> RemoteReply:
        row = self._replies.get(key)
        del row["id"]
        return RemoteReply(**row)

    def _progress(self) -> str:
        cost = self.endpoint.cost(self._prompt_tokens, self._completion_tokens)
        shown = f"{self._prompt_tokens + self._completion_tokens:,} tokens"
        return f"{shown}, cost {cost:.4f}" if cost else shown


def is_many(count: int, total: int) -> bool:
    """Return True if a share of replies is large enough for a warning: over 5 %."""
    return count > _FEW * total


def request_key(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the key of a reply in the file: a hash of the route and the whole request."""
    return fingerprint([route_of(endpoint.url), {**body, "messages": [*map(_without_images, body["messages"])]}])


def _without_images(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with images replaced by hashes; each image is hashed once."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"image": url_key(part["image_url"]["url"])} if part.get("type") == "image_url" else part
            for part in content
        ]
    return {**message, "content": content}


def beginning(messages: Messages) -> list[str]:
    """Return a sort key that puts conversations with a common prefix next to each other."""
    parts: list[str] = []
    for message in messages:
        content = _without_images(message)["content"]
        listed = content if isinstance(content, list) else [{"type": "text", "text": content}]
        parts.append(str(message["role"]))
        parts += [str(part["text"]) if part.get("type") == "text" else fingerprint([part]) for part in listed]
    return parts


def read_completion(value: Any) -> RemoteReply:
    """Read a chat completion.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: It is not a chat completion.
    """
    choice = value["choices"][0]
    content = choice["message"].get("content")
    if isinstance(content, list):  # some servers send parts
        content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    used = value.get("usage") or {}
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    return RemoteReply(
        text=_storable(content or ""),
        prompt_tokens=int(used.get("prompt_tokens") or 0),
        completion_tokens=int(used.get("completion_tokens") or 0),
        finish=str(choice.get("finish_reason") or ""),
        first_token=_first_token(listed),
    )


def is_word(token: str, word: str) -> bool:
    """Return True if a token spells a word, ignoring case, spaces, vocabulary markers, quotes, brackets and emphasis.

    Example:
        >>> [is_word(token, "Yes") for token in (" Yes", "\u0120yes", "**Yes", "Yesterday")]
        [True, True, True, False]
    """
    return _bare(token) == _bare(word)


def _bare(text: str) -> str:
    stripped = text.strip().lstrip(_BEFORE_A_WORD).strip()
    return (stripped.strip(_AROUND_A_WORD) or stripped).casefold()


def _by_word(first_token: Mapping[str, float], words: Iterable[str]) -> dict[str, float]:
    """Return the summed log-probability of each word that is among the tokens."""
    found = {word: [value for token, value in first_token.items() if is_word(token, word)] for word in words}
    return {word: _log_sum(values) for word, values in found.items() if values}


def _first_token(listed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Read the likely first tokens by text; tokens of probability 0 are left out.

    Raises:
        UserError: A log-probability is NaN.
    """
    by_text: dict[str, list[float]] = {}
    for entry in listed:
        token, value = _storable(str(entry["token"])), float(entry["logprob"])
        if math.isnan(value):
            raise UserError(
                f"the server gives NaN as the log-probability of {token!r}: float16 overflows in some models, where "
                "bfloat16 does not (`--dtype bfloat16`); else the weights that it serves are damaged"
            )
        if value > -math.inf:
            by_text.setdefault(token, []).append(value)
    return {token: _log_sum(values) for token, values in by_text.items()}


def _log_sum(values: Sequence[float]) -> float:
    """Return the logarithm of the sum of probabilities, at most 0."""
    largest = max(values)
    return min(0.0, largest + math.log(sum(math.exp(value - largest) for value in values)))


def _storable(text: str) -> str:
    """Replace lone surrogates, which JSON can hold but UTF-8 can't."""
    return text.encode("utf-8", errors="replace").decode()
