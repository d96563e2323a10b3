"""Cache forward passes, searches, rankings and rendered prompts, so that every grid point after the first reuses them.

`CachingEngine` replaces `PrefixEngine` below the readers, so readers and pipelines run unchanged. Its keys are token
ids and images, which determine the result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from reflectune.core.images import Images
from reflectune.core.types import AnswerStyle, Passage
from reflectune.formats.hits import Hit
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine, Prefixes, RowIndex
from reflectune.models.prefix.image_prefix import image_prefix_key
from reflectune.models.prefix.packed_rows import OpenedTrees
from reflectune.models.rendering.renderer import Rendered, Renderer, Texts
from reflectune.models.rendering.turns import Turns
from reflectune.retrieval.rerankers.base import Reranker, ScoredPassage
from reflectune.retrieval.retrievers.entry_retriever import Retriever
from reflectune.retrieval.retrievers.queries import Query, Weights

Value = TypeVar("Value")


@dataclass
class CacheStats:
    """Counts of requested and performed work.

    Attributes:
        requested: Prefixes and branches to read, and answers to decode, counted one by one.
        done: Those of them that were not cached.
    """

    requested: int = 0
    done: int = 0

    @property
    def saved(self) -> int:
        """Number of cache hits."""
        return self.requested - self.done


@dataclass
class CachedPrompt:
    """A cached prefix or branch: its position in the engine's state, its branches, and its `results` by call."""

    state: Prefixes | Branches
    row: RowIndex
    branches: dict[tuple[int, ...], CachedPrompt] = field(default_factory=dict)
    results: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownPrefixes(Prefixes):
    """Prefixes of a `CachingEngine`, some of them from the cache."""

    nodes: list[CachedPrompt] = field(default_factory=list)
    look_up: Callable[[CachedPrompt, Sequence[int]], Tensor] = field(kw_only=True)

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return `Prefixes.probabilities`, cached."""
        return _stacked([self.look_up(node, token_ids) for node in self.nodes], len(token_ids))


@dataclass(frozen=True)
class KnownBranches(Branches):
    """Branches of a `CachingEngine`, some of them from the cache."""

    nodes: list[list[CachedPrompt]] = field(default_factory=list)
    look_up: Callable[[CachedPrompt, Sequence[int]], Tensor] = field(kw_only=True)

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Return `Branches.probabilities`, cached."""
        return [
            _stacked([self.look_up(node, token_ids) for node in question_nodes], len(token_ids))
            for question_nodes in self.nodes
        ]


class CachingEngine(PrefixEngine):
    """A `PrefixEngine` that caches prefixes, branches and answers until `forget`.

    Keys and values stay in memory until then, or until `release`. So pass one batch of questions to all grid points in
    turn, then call `forget`. It doesn't `score`.
    """

    def __init__(self, loaded: Loaded, token_budget: int | None = None, *, compiling: bool = True) -> None:
        super().__init__(loaded, token_budget, compiling=compiling)
        self.renderer: CachingRenderer = CachingRenderer(loaded.renderer)
        self.stats = CacheStats()
        self._prefixes: dict[str, CachedPrompt] = {}
        self._probabilities_of_state: dict[Hashable, Any] = {}

    def forget(self) -> None:
        """Drop the cache. The counts stay."""
        self._prefixes.clear()
        self._probabilities_of_state.clear()
        self.renderer.forget()

    def release(self) -> None:
        """Drop the keys and values of packed prefixes; their answers stay, and others read them again."""
        for node in self._prefixes.values():
            if isinstance(node.state.cache, OpenedTrees):
                node.state.cache.sequences.clear()

    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """Read the prefixes that are not cached."""
        keys = [image_prefix_key(prefix) for prefix in prefixes]
        new = {key: prefix for key, prefix in zip(keys, prefixes, strict=True) if key not in self._prefixes}
        if new:
            state = super().read(list(new.values()))
            self._prefixes.update({key: CachedPrompt(state, (i, 0)) for i, key in enumerate(new)})
        self._count(len(keys), len(new))
        nodes = [self._prefixes[key] for key in keys]
        lengths = [len(prefix.ids) for prefix in prefixes]
        return KnownPrefixes(self, lengths, None, nodes=nodes, look_up=self._probabilities)

    def branch(self, prefixes: Prefixes, branches: Sequence[Sequence[Sequence[int]]]) -> Branches:
        """Read the branches that are not cached."""
        if len(branches) != len(prefixes):
            raise ValueError(f"expected branches for {len(prefixes)} questions, found {len(branches)}")
        known = _nodes(prefixes)
        new: dict[tuple[int, tuple[int, ...]], CachedPrompt] = {}
        for node, question_branches in zip(known, branches, strict=True):
            new.update({(id(node), tuple(ids)): node for ids in question_branches if tuple(ids) not in node.branches})
        self._read_branches_of(list(new.values()), [list(ids) for _, ids in new])
        self._count(sum(map(len, branches)), len(new))
        nodes = [
            [node.branches[tuple(ids)] for ids in question_branches]
            for node, question_branches in zip(known, branches, strict=True)
        ]
        return KnownBranches(self, prefixes, branches, None, nodes=nodes, look_up=self._probabilities)

    def generate(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], forced: Sequence[int] = (), max_new_tokens: int = 32
    ) -> list[Generation]:
        """Decode the answers that are not cached."""
        generate = super().generate

        def decode(inner: Prefixes | Branches, new_rows: Sequence[RowIndex]) -> list[Generation]:
            return generate(inner, new_rows, forced, max_new_tokens)

        keys = [("generate", tuple(forced), max_new_tokens)] * len(rows)
        return self._complete(_rows(state, rows), keys, decode)

    def _read_branches_of(self, nodes: Sequence[CachedPrompt], branches: Sequence[list[int]]) -> None:
        """Read one branch on each node, in one call per engine state."""
        states = {id(node.state): node.state for node in nodes}
        for key, state in states.items():
            assert isinstance(state, Prefixes)
            state_branches = [(node, ids) for node, ids in zip(nodes, branches, strict=True) if id(node.state) == key]
            new: list[list[list[int]]] = [[] for _ in range(len(state))]
            rows = []
            for node, ids in state_branches:
                rows.append((node.row[0], len(new[node.row[0]])))
                new[node.row[0]].append(ids)
            read = super().branch(state, new)
            for (node, ids), row in zip(state_branches, rows, strict=True):
                node.branches[tuple(ids)] = CachedPrompt(read, row)

    def _complete(
        self,
        nodes: Sequence[CachedPrompt],
        keys: Sequence[Hashable],
        make: Callable[[Prefixes | Branches, Sequence[RowIndex]], list[Any]],
    ) -> list[Any]:
        """Return the results of `nodes` under `keys`. Missing ones are made from a state and rows."""
        new: dict[tuple[int, Hashable], int] = {}
        for position, (node, key) in enumerate(zip(nodes, keys, strict=True)):
            if key not in node.results:
                new.setdefault((id(node), key), position)
        by_state: dict[int, list[int]] = {}
        for position in new.values():
            by_state.setdefault(id(nodes[position].state), []).append(position)
        for positions in by_state.values():
            made = make(nodes[positions[0]].state, [nodes[position].row for position in positions])
            for position, value in zip(positions, made, strict=True):
                nodes[position].results[keys[position]] = value
        self._count(len(nodes), len(new))
        return [node.results[key] for node, key in zip(nodes, keys, strict=True)]

    def _probabilities(self, node: CachedPrompt, token_ids: Sequence[int]) -> Tensor:
        """Return a row's probabilities, shape (tokens,). All rows of its engine state are computed at once."""
        key = (id(node.state), tuple(token_ids))
        if key not in self._probabilities_of_state:
            self._probabilities_of_state[key] = node.state.probabilities(token_ids)
        question_probabilities: Tensor = self._probabilities_of_state[key][node.row[0]]
        return question_probabilities[node.row[1]] if isinstance(node.state, Branches) else question_probabilities

    def _count(self, requested: int, done: int) -> None:
        self.stats.requested += requested
        self.stats.done += done


def _nodes(prefixes: Prefixes) -> list[CachedPrompt]:
    if not isinstance(prefixes, KnownPrefixes):
        raise ValueError("these prefixes were read by another engine")
    return prefixes.nodes


def _rows(state: Prefixes | Branches, rows: Sequence[RowIndex]) -> list[CachedPrompt]:
    if isinstance(state, KnownBranches):
        return [state.nodes[question][branch] for question, branch in rows]
    assert isinstance(state, Prefixes)
    nodes = _nodes(state)
    return [nodes[question] for question, _ in rows]


def _stacked(rows: Sequence[Tensor], tokens: int) -> Tensor:
    return torch.stack(list(rows)) if rows else torch.empty(0, tokens)


class CachingRetriever:
    """A retriever that caches hits until `forget`."""

    def __init__(self, retriever: Retriever) -> None:
        """Wrap a retriever."""
        self._retriever = retriever
        self._cached: dict[Hashable, list[Hit]] = {}

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Search the queries that are not cached."""
        keys = [(query.key, top_n, weights) for query in queries]
        new = {key: query for key, query in zip(keys, queries, strict=True) if key not in self._cached}
        if new:
            hits_by_query = self._retriever.search(list(new.values()), top_n, weights=weights)
            self._cached.update(zip(new, hits_by_query, strict=True))
        return [self._cached[key] for key in keys]

    def forget(self) -> None:
        """Drop the cache."""
        self._cached.clear()


class CachingReranker:
    """A reranker of texts that caches each question's whole ranking until `forget`."""

    def __init__(self, reranker: Reranker) -> None:
        """Wrap a reranker."""
        self.name, self.fingerprint = reranker.name, reranker.fingerprint
        self._reranker = reranker
        self._cached: dict[tuple[str, tuple[Passage, ...]], list[ScoredPassage]] = {}

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """Rank the passages of the questions that are not cached."""
        keys = [(question, tuple(choice)) for question, choice in zip(questions, passages, strict=True)]
        if new := [key for key in dict.fromkeys(keys) if key not in self._cached]:
            ranked = self._reranker.rank([question for question, _ in new], [choice for _, choice in new])
            self._cached.update(zip(new, ranked, strict=True))
        return [self._cached[key][:top_k] for key in keys]

    def forget(self) -> None:
        """Drop the cache."""
        self._cached.clear()


class CachingRenderer(Renderer):
    """A renderer that caches rendered prompts until `forget`.

    Images are compared by identity: pass each grid point the same objects.

    Args:
        renderer: The renderer whose scheme and processor to use.
    """

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer.scheme, renderer.processor)
        self._cached: dict[Hashable, Any] = {}
        self._images: dict[int, Image.Image] = {}

    def forget(self) -> None:
        """Drop all cached prompts."""
        self._cached.clear()
        self._images.clear()

    def prefix(self, question: str, image: Image.Image) -> Rendered:
        """Return `Renderer.prefix`, cached."""
        return self._once(super().prefix, question, image)

    def question_prefix(self, question: str, image: Image.Image) -> Rendered:
        """Return `Renderer.question_prefix`, cached."""
        return self._once(super().question_prefix, question, image)

    def plain(
        self, question: str, image: Images, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> Rendered:
        """Return `Renderer.plain`, cached."""
        return self._once(super().plain, question, image, tuple(passages), style)

    def after_prefix(self, turns: Turns, texts: Texts) -> list[int]:
        """Return `Renderer.after_prefix`, cached."""
        return self._once(super().after_prefix, turns, texts)

    def after_question(self, turns: Turns, texts: Texts) -> list[int]:
        """Return `Renderer.after_question`, cached."""
        return self._once(super().after_question, turns, texts)

    def _once(self, render: Callable[..., Value], *arguments: Any) -> Value:
        key = (render.__name__, *map(self._key, arguments))
        if key not in self._cached:
            self._cached[key] = render(*arguments)
        value: Value = self._cached[key]
        return value

    def _key(self, argument: Any) -> Hashable:
        if isinstance(argument, Image.Image):
            self._images[id(argument)] = argument  # a kept image keeps its id
            return id(argument)
        return tuple(argument.items()) if isinstance(argument, Mapping) else argument
