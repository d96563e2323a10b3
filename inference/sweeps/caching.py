"""An engine that reads a prompt, and decodes an answer, once: every grid point after the first is served from memory.

It stands where a `PrefixEngine` does, below the readers, so that readers and pipelines run unchanged, whatever their
method. What is remembered is keyed by token ids and pictures, hence by exactly what decides the result.
A prompt is rendered once, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from reflectune.core.types import AnswerStyle, Passage
from reflectune.formats.hits import Hit
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine, Prefixes
from reflectune.models.prefix.image_prefix import key_of
from reflectune.models.prefix.sampling import Sampling
from reflectune.models.rendering.renderer import Rendered, Renderer, Texts
from reflectune.models.rendering.turns import Turns
from reflectune.retrieval.retrievers.entry_retriever import Retriever

Row = tuple[int, int]
Value = TypeVar("Value")


@dataclass
class CacheStats:
    """How much work was requested of a model, and how much of it the model had to do.

    Attributes:
        requested: Prefixes and branches to read, answers to decode and answers to score, counted one by one.
        done: Those of them that were not in memory.
    """

    requested: int = 0
    done: int = 0

    @property
    def saved(self) -> int:
        """What was served from memory."""
        return self.requested - self.done


@dataclass
class Node:
    """A prefix or a branch that has been read: where the engine keeps it, and its `results` by call."""

    state: Prefixes | Branches
    row: Row
    branches: dict[tuple[int, ...], Node] = field(default_factory=dict)
    results: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownPrefixes(Prefixes):
    """Prefixes of which some, or all, had been read before."""

    nodes: list[Node] = field(default_factory=list)
    look_up: Callable[[Node, Sequence[int]], Tensor] = field(kw_only=True)

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """As `Prefixes.probabilities`."""
        return _stacked([self.look_up(node, token_ids) for node in self.nodes], len(token_ids))


@dataclass(frozen=True)
class KnownBranches(Branches):
    """Branches of which some, or all, had been read before."""

    nodes: list[list[Node]] = field(default_factory=list)
    look_up: Callable[[Node, Sequence[int]], Tensor] = field(kw_only=True)

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """As `Branches.probabilities`."""
        return [
            _stacked([self.look_up(node, token_ids) for node in question_nodes], len(token_ids))
            for question_nodes in self.nodes
        ]


class CachingEngine(PrefixEngine):
    """A `PrefixEngine`, with the same arguments, that keeps what it read and said until `forget`.

    Everything that was read stays in memory with its keys and values. So give one batch of questions to all grid points
    in turn, then forget it.
    """

    def __init__(self, loaded: Loaded, token_budget: int | None = None, keep_images: int = 0) -> None:
        super().__init__(loaded, token_budget, keep_images)
        self.renderer: CachingRenderer = CachingRenderer(loaded.renderer)
        self.stats = CacheStats()
        self._prefixes: dict[str, Node] = {}
        self._told: dict[Hashable, Any] = {}

    @property
    def prefixes_kept(self) -> int:
        """How many prefixes are in memory."""
        return len(self._prefixes)

    def forget(self) -> None:
        """Drop everything that was read, said and rendered; the counts go on."""
        self._prefixes.clear()
        self._told.clear()
        self.renderer.forget()

    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """As `PrefixEngine.read`; only prefixes that are new are read."""
        keys = [key_of(prefix) for prefix in prefixes]
        new = {key: prefix for key, prefix in zip(keys, prefixes, strict=True) if key not in self._prefixes}
        if new:
            state = super().read(list(new.values()))
            self._prefixes.update({key: Node(state, (i, 0)) for i, key in enumerate(new)})
        self._count(len(keys), len(new))
        nodes = [self._prefixes[key] for key in keys]
        return KnownPrefixes(self, [], {i: (0, i) for i in range(len(nodes))}, nodes, look_up=self._probabilities)

    def branch(self, prefixes: Prefixes, branches: Sequence[Sequence[Sequence[int]]]) -> Branches:
        """As `PrefixEngine.branch`; only branches that are new are read."""
        if len(branches) != len(prefixes):
            raise ValueError(f"expected branches for {len(prefixes)} questions, found {len(branches)}")
        known = _nodes(prefixes)
        new: dict[tuple[int, tuple[int, ...]], Node] = {}
        for node, question_branches in zip(known, branches, strict=True):
            new.update({(id(node), tuple(ids)): node for ids in question_branches if tuple(ids) not in node.branches})
        self._read_branches_of(list(new.values()), [list(ids) for _, ids in new])
        self._count(sum(map(len, branches)), len(new))
        nodes = [
            [node.branches[tuple(ids)] for ids in question_branches]
            for node, question_branches in zip(known, branches, strict=True)
        ]
        return KnownBranches(self, prefixes, branches, [], {}, nodes, look_up=self._probabilities)

    def generate(
        self,
        state: Prefixes | Branches,
        rows: Sequence[Row],
        forced: Sequence[int] = (),
        max_new_tokens: int = 32,
        sampling: Sampling | None = None,
    ) -> list[Generation]:
        """As `PrefixEngine.generate`; only answers that are new are decoded."""
        generate = super().generate

        def decode(inner: Prefixes | Branches, wanted_rows: Sequence[Row], places: Sequence[int]) -> list[Generation]:
            drawn = sampling and replace(sampling, seeds=[sampling.seeds[place] for place in places])
            return generate(inner, wanted_rows, forced, max_new_tokens, drawn)

        how = ("generate", tuple(forced), max_new_tokens, sampling.temperature if sampling else None)
        keys = [(*how, sampling.seeds[place] if sampling else None) for place in range(len(rows))]
        return self._each(_rows(state, rows), keys, decode)

    def score(
        self,
        state: Prefixes | Branches,
        rows: Sequence[Row],
        answers: Sequence[Sequence[int]],
        forced: Sequence[int] = (),
    ) -> list[list[float]]:
        """As `PrefixEngine.score`; only answers that are new are scored."""
        from_model = super().score

        def score(inner: Prefixes | Branches, wanted_rows: Sequence[Row], places: Sequence[int]) -> list[list[float]]:
            return from_model(inner, wanted_rows, [answers[place] for place in places], forced)

        keys = [("score", tuple(forced), tuple(answer)) for answer in answers]
        return self._each(_rows(state, rows), keys, score)

    def _read_branches_of(self, nodes: Sequence[Node], branches: Sequence[list[int]]) -> None:
        """Read one branch on top of each node, all of one engine's state together."""
        states = {id(node.state): node.state for node in nodes}
        for key, state in states.items():
            assert isinstance(state, Prefixes)
            state_branches = [(node, ids) for node, ids in zip(nodes, branches, strict=True) if id(node.state) == key]
            wanted: list[list[list[int]]] = [[] for _ in range(len(state))]
            rows = []
            for node, ids in state_branches:
                rows.append((node.row[0], len(wanted[node.row[0]])))
                wanted[node.row[0]].append(ids)
            read = super().branch(state, wanted)
            for (node, ids), row in zip(state_branches, rows, strict=True):
                node.branches[tuple(ids)] = Node(read, row)

    def _each(
        self,
        nodes: Sequence[Node],
        keys: Sequence[Hashable],
        make: Callable[[Prefixes | Branches, Sequence[Row], Sequence[int]], list[Any]],
    ) -> list[Any]:
        """What is known under `keys` of `nodes`; `make` is given what isn't: an engine's state, rows, and places."""
        new: dict[tuple[int, Hashable], int] = {}
        for place, (node, key) in enumerate(zip(nodes, keys, strict=True)):
            if key not in node.results:
                new.setdefault((id(node), key), place)
        by_state: dict[int, list[int]] = {}
        for place in new.values():
            by_state.setdefault(id(nodes[place].state), []).append(place)
        for places in by_state.values():
            made = make(nodes[places[0]].state, [nodes[place].row for place in places], places)
            for place, value in zip(places, made, strict=True):
                nodes[place].results[keys[place]] = value
        self._count(len(nodes), len(new))
        return [node.results[key] for node, key in zip(nodes, keys, strict=True)]

    def _probabilities(self, node: Node, token_ids: Sequence[int]) -> Tensor:
        """Of one row, shape (tokens,); computed for all rows that were read with it, once."""
        key = (id(node.state), tuple(token_ids))
        if key not in self._told:
            self._told[key] = node.state.probabilities(token_ids)
        question_probabilities: Tensor = self._told[key][node.row[0]]
        return question_probabilities[node.row[1]] if isinstance(node.state, Branches) else question_probabilities

    def _count(self, requested: int, done: int) -> None:
        self.stats.requested += requested
        self.stats.done += done


def _nodes(prefixes: Prefixes) -> list[Node]:
    if not isinstance(prefixes, KnownPrefixes):
        raise ValueError("these prefixes were read by another engine")
    return prefixes.nodes


def _rows(state: Prefixes | Branches, rows: Sequence[Row]) -> list[Node]:
    if isinstance(state, KnownBranches):
        return [state.nodes[question][branch] for question, branch in rows]
    assert isinstance(state, Prefixes)
    nodes = _nodes(state)
    return [nodes[question] for question, _ in rows]


def _stacked(rows: Sequence[Tensor], tokens: int) -> Tensor:
    return torch.stack(list(rows)) if rows else torch.empty(0, tokens)


class CachingRetriever:
    """Finds what its retriever finds, and keeps it until `forget`; images are told apart by identity."""

    def __init__(self, retriever: Retriever) -> None:
        """Bind the retriever."""
        self._retriever = retriever
        self._found: dict[tuple[int, int], tuple[Image.Image, list[Hit]]] = {}

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """As the retriever's; only what is new is searched for."""
        new = {(id(image), top_n): image for image in images if (id(image), top_n) not in self._found}
        if new:
            hits_by_image = self._retriever.search(list(new.values()), top_n)
            self._found.update({key: (new[key], hits) for key, hits in zip(new, hits_by_image, strict=True)})
        return [self._found[id(image), top_n][1] for image in images]

    def forget(self) -> None:
        """Drop what was found."""
        self._found.clear()


class CachingRenderer(Renderer):
    """Renders as the renderer it is made from, and keeps what it rendered until `forget`.

    Images are told apart by identity: a grid point must be given the same objects as the one before.

    Args:
        renderer: Whose scheme and processor to use.
    """

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer.scheme, renderer.processor)
        self._kept: dict[Hashable, Any] = {}
        self._images: dict[int, Image.Image] = {}

    def forget(self) -> None:
        """Drop everything that was rendered."""
        self._kept.clear()
        self._images.clear()

    def prefix(self, question: str, image: Image.Image) -> Rendered:
        """As `Renderer.prefix`."""
        key = ("prefix", question, self._name(image))
        return self._once(key, lambda: super(CachingRenderer, self).prefix(question, image))

    def question_prefix(self, question: str, image: Image.Image) -> Rendered:
        """As `Renderer.question_prefix`."""
        key = ("question_prefix", question, self._name(image))
        return self._once(key, lambda: super(CachingRenderer, self).question_prefix(question, image))

    def plain(
        self, question: str, image: Image.Image, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> Rendered:
        """As `Renderer.plain`."""
        key = ("plain", question, self._name(image), tuple(passages), style)
        return self._once(key, lambda: super(CachingRenderer, self).plain(question, image, passages, style))

    def after_prefix(self, turns: Turns, texts: Texts) -> list[int]:
        """As `Renderer.after_prefix`."""
        key = ("after_prefix", turns, tuple(texts.items()))
        return self._once(key, lambda: super(CachingRenderer, self).after_prefix(turns, texts))

    def after_question(self, turns: Turns, texts: Texts) -> list[int]:
        """As `Renderer.after_question`."""
        key = ("after_question", turns, tuple(texts.items()))
        return self._once(key, lambda: super(CachingRenderer, self).after_question(turns, texts))

    def _name(self, image: Image.Image) -> int:
        """A number for an image, which stays its own because the image is kept."""
        self._images[id(image)] = image
        return id(image)

    def _once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = make()
        value: Value = self._kept[key]
        return value
