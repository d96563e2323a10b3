"""Training examples: all are read and checked at once, encoded on first use, and packed into batches."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.core.images import load_image, read_header
from reflectune.core.launching import ALONE, Processes
from reflectune.core.paths import OutsideRoot, Roots, resolve_below
from reflectune.formats.reflection_data import (
    MANIFEST,
    StoredExamples,
    bad_rows,
    image_roots,
    read_manifest,
    stream_examples,
)
from reflectune.models.attention.collation import TreeCollator
from reflectune.models.attention.tree import IGNORE, Segment, Tree, independent_rows
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.rendering.untrusted import common_prefix
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import Branch, TrainingExample
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.data.mixture import DataSource

_LARGE: Final = 4096
"""Side of an image with the maximum number of tokens."""
_INSTRUCTIONS: Final = 512
"""Upper bound of the tokens of instructions."""


@dataclass(frozen=True)
class EncodedExample:
    """An example as one token tree, or as one tree per branch if prefixes are not shared.

    `left_out` is the number of branches that were too long.
    """

    id: str
    trees: tuple[Tree, ...]
    left_out: int = 0


class EncodedExamples(Dataset[EncodedExample]):
    """Examples that are encoded at their first use.

    Args:
        renderer: Renders them as token trees.
        roots: Folders that their image paths may lead into; relative paths start at the first.
        share_prefix: Encode all branches as one tree, instead of one tree per branch.
        max_tokens: Maximum tokens from the image to the end of a branch.
        cache_bytes: Memory for cached encoded examples.
        answer_weight: α of `weigh_answers`; None to weight all tokens of a reply equally.
    """

    def __init__(
        self,
        examples: Sequence[TrainingExample],
        renderer: Renderer,
        roots: Roots,
        *,
        share_prefix: bool = True,
        max_tokens: int,
        cache_bytes: int = 0,
        answer_weight: float | None = None,
    ) -> None:
        super().__init__()
        self.examples, self._renderer, self._roots = examples, renderer, roots
        self._share_prefix, self.max_tokens = share_prefix, max_tokens
        self.scheme = Scheme.of(renderer)
        self._free_bytes, self._answer_weight = cache_bytes, answer_weight
        self._cache: dict[int, EncodedExample] = {}

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> EncodedExample:
        """Return an encoded example. For index i < 0 it is example ~i with zero weight (see `TrainingOrder`).

        Branches that are too long are left out, as in inference. If none fits, the next example that fits is returned
        with zero weight.

        Raises:
            UserError: The image is unreadable or refused by the processor, nothing is supervised, or no example fits.
        """
        if index < 0:
            return replace(_weightless(self[~index]), left_out=0)
        if (encoded := self._encoded(index)) is not None:
            return encoded
        others = (self._encoded((index + step) % len(self)) for step in range(1, len(self)))
        substitute = next((other for other in others if other is not None), None)
        if substitute is None:
            raise UserError(
                f"no training example fits into {self.max_tokens} tokens from its image to the end of its answer; "
                "raise `max_tokens` if the model can take more"
            )
        return replace(_weightless(substitute), left_out=max(len(self.examples[index].branches), 1))

    def _encoded(self, index: int) -> EncodedExample | None:
        """Return an encoded example; None if no branch fits."""
        if index in self._cache:
            return self._cache[index]
        example = self.examples[index]
        image = load_image(example.image, root=self._roots, needed_by=f"training example {example.id}")
        tree, left_out = self.fit(example, image)
        if tree is None:
            return None
        trees = (tree,) if self._share_prefix else tuple(independent_rows(tree))
        encoded = EncodedExample(example.id, trees, left_out)
        size = _memory(encoded)
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._cache[index] = encoded
        return encoded

    def fit(self, example: TrainingExample, image: Image.Image) -> tuple[Tree | None, int]:
        """Encode an example, and leave out the branches that are too long.

        Returns:
            The tree, or None if nothing supervised fits; and the number of branches that were left out.

        Raises:
            UserError: The processor refuses the image, or nothing is supervised.
        """
        tree = self._encode(example, image)
        if tree.supervised == 0:
            raise UserError(
                f"training example {example.id} has no supervised token: it would teach nothing. Check its `answer` "
                "and `branches`, and the chat template of the model"
            )
        if tree.depth <= self.max_tokens:
            return tree, 0
        shortened = self.scheme.shortened(self._renderer, example, image, self.max_tokens)
        if shortened is not example:
            tree = self._encode(shortened, image)
        room = self.max_tokens - len(tree.prefix.ids)
        branches = tuple(branch for branch in tree.branches if len(branch.ids) <= room)
        fitting = replace(tree, branches=branches)
        left_out = len(tree.branches) - len(branches)
        if room < 0 or not fitting.supervised:
            return None, max(len(tree.branches), 1)
        return fitting, left_out

    def left_out(self) -> tuple[int, int]:
        """Count the branches that are too long, and the examples that have them. Images are not decoded."""
        bound = LengthBound(self._renderer)
        long = (example for example in self.examples if bound(example) > self.max_tokens)
        counts = [self.fit(example, blank_image(example, self._roots))[1] for example in long]
        return sum(counts), sum(count > 0 for count in counts)

    def _encode(self, example: TrainingExample, image: Image.Image) -> Tree:
        try:
            tree = self.scheme.encode(self._renderer, example, image)
            if self._answer_weight is None:
                return tree
            later = [round.answer for round in example.follow_ups]
            replies = [(branch.reply, *later) for branch in example.branches]
            return weigh_answers(tree, replies, self._renderer, self._answer_weight)
        except UserError as error:
            raise UserError(f"training example {example.id} can't be encoded: {error}") from error
        except Exception as error:
            raise RuntimeError(f"training example {example.id} can't be encoded: {error}") from error


class LengthBound:
    """Upper bound of an example's tokens, from its image to the end of its longest branch, without tokenizing.

    A token of a text has at least one byte.

    Args:
        renderer: Renderer of the model.
    """

    def __init__(self, renderer: Renderer) -> None:
        largest = Image.new("RGB", (_LARGE, _LARGE))
        self._fixed = len(renderer.prefix("a", largest).ids) + _INSTRUCTIONS
        self._scheme = Scheme.of(renderer)

    def __call__(self, example: Any) -> int:
        """Return an upper bound."""
        parts = [replace(example, branches=(branch,)) for branch in example.branches] or [example]
        return self._fixed + max(sum(len(text.encode()) for text in self._texts(part)) for part in parts)

    def _texts(self, example: Any) -> Iterator[str]:
        """Yield all texts, including answers from passages, which `Scheme.texts` leaves out."""
        yield from self._scheme.texts(example)
        yield from (branch.answer for branch in example.branches if isinstance(branch, Branch))


def blank_image(example: TrainingExample, roots: Roots) -> Image.Image:
    """Return a blank image of the size of an example's image: it has as many tokens."""
    header = read_header(resolve_below(example.image, roots))
    return Image.new("RGB", (header.width, header.height))


@dataclass(frozen=True)
class TrainingData:
    """The concatenated examples of all data sets.

    Attributes:
        scheme: Their scheme.
        examples: The examples.
        image_roots: Folders that their image paths may lead into; relative ones start at the first.
        parts: For each data set, its number of examples and how often an epoch reads each.
        lengths: Characters of each example's texts.
        kinds: Kind of each example (`Scheme.kind`).
        branches: Number of all branches.
    """

    scheme: Scheme
    examples: Sequence[TrainingExample]
    image_roots: tuple[Path, ...]
    parts: tuple[tuple[int, float], ...]
    lengths: Sequence[int]
    kinds: Sequence[str]
    branches: int


def load_training_data(
    sources: Sequence[DataSource], scheme: str, prompts: str = "", processes: Processes = ALONE
) -> TrainingData:
    """Read data sets; the first process checks every row and measures its length.

    Image paths of several data sets are made absolute, since each has its own folder.
    """
    read = [_load(source, scheme, prompts, processes) for source in sources]
    if len(read) == 1:
        return read[0]
    return TrainingData(
        read[0].scheme,
        JoinedExamples([(data.examples, data.image_roots[0].absolute()) for data in read]),
        tuple(root for data in read for root in data.image_roots),
        tuple(part for data in read for part in data.parts),
        lengths=[length for data in read for length in data.lengths],
        kinds=[kind for data in read for kind in data.kinds],
        branches=sum(data.branches for data in read),
    )


class JoinedExamples(Sequence[TrainingExample]):
    """The concatenated examples of several data sets, with absolute image paths.

    Args:
        parts: The examples of each data set, and the folder that their image paths start at.
    """

    def __init__(self, parts: Sequence[tuple[Sequence[TrainingExample], Path]]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(len(examples) for examples, _ in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return an example; a slice is not supported."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = bisect.bisect_right(self._ends, index)
        examples, root = self._parts[part]
        return self._with_absolute_image(examples[index - self._ends[part] + len(examples)], root)

    def __iter__(self) -> Iterator[TrainingExample]:
        return (self._with_absolute_image(example, root) for examples, root in self._parts for example in examples)

    @staticmethod
    def _with_absolute_image(example: Any, root: Path) -> TrainingExample:
        changed: TrainingExample = replace(example, image=str(root / example.image))
        return changed


def load_examples(
    source: DataSource, scheme: str, prompts: str = "", processes: Processes = ALONE
) -> tuple[Sequence[TrainingExample], tuple[Path, ...]]:
    """Read one data set; the first process checks every row. `prompts` is a variant of the scheme's.

    Returns:
        The examples, and folders that their image paths may lead into; relative ones start at the first.

    Raises:
        UserError: The data set is empty or for another scheme, an example is malformed, or an image is missing or
            outside of its folders.
    """
    data = _load(source, scheme, prompts, processes)
    return data.examples, data.image_roots


def _load(source: DataSource, scheme: str, prompts: str, processes: Processes) -> TrainingData:
    path = source.file
    roots: tuple[Path, ...] = (Path(source.image_root), source.folder)
    if not source.image_root or Path(source.folder, MANIFEST).is_file():
        manifest = read_manifest(source.folder)
        roots = roots if source.image_root else image_roots(source.folder, manifest)
        if manifest.scheme not in (scheme, *find_scheme(scheme).learns_from):
            raise UserError(f"{path} was built for the scheme `{manifest.scheme}`, and `scheme` is `{scheme}`")
    known = find_scheme(scheme, prompts)
    lengths, kinds, branches = processes.from_first(lambda: _check(path, known, roots))
    parts = ((len(lengths), source.weight),)
    return TrainingData(
        find_scheme(scheme), StoredExamples(path, known.example_type), roots, parts, lengths, kinds, branches
    )


def _check(path: Path, scheme: Scheme, roots: tuple[Path, ...]) -> tuple[list[int], list[str], int]:
    """Check every row of a file, and its image.

    Returns:
        The examples' lengths and kinds, and the number of their branches.
    """
    images: dict[str, str] = {}
    lengths, kinds, branches = list[int](), list[str](), 0
    for example in stream_examples(path, scheme.example_type, scheme.problem):
        images.setdefault(example.image, example.id)
        lengths.append(sum(map(len, scheme.texts(example))))
        kinds.append(scheme.kind(example))
        branches += len(example.branches)
    if not images:
        raise UserError(f"{path} holds no example; build it again, with questions of that split")
    image_problems = ((example_id, image_problem(image, roots)) for image, example_id in images.items())
    problems = [f"{example_id}: {problem}" for example_id, problem in image_problems if problem]
    if len(problems) == len(images):
        raise UserError(
            f"{path}: none of its {len(images):,} images can be read, the first: {problems[0]}; was the folder moved? "
            f"According to {MANIFEST} or `image_root` they are below {roots[0]}"
        )
    if problems:
        raise UserError(bad_rows(path, problems))
    return lengths, kinds, branches


def image_problem(image: str, roots: Roots) -> str:
    """Return why an image can't be opened below these folders; "" if it can."""
    try:
        path = resolve_below(image, roots)
    except OutsideRoot as error:
        return f"image refused: {error}"
    return "" if path.is_file() else f"image not found: {path}"


def _weightless(encoded: EncodedExample) -> EncodedExample:
    def silent(segment: Segment) -> Segment:
        return replace(segment, weights=(0.0,) * len(segment.ids))

    trees = [replace(t, prefix=silent(t.prefix), branches=tuple(map(silent, t.branches))) for t in encoded.trees]
    return replace(encoded, trees=tuple(trees))


def _memory(encoded: EncodedExample) -> int:
    """Estimate the bytes of an encoded example: tensors, and three lists of numbers per segment."""
    tensors = {id(t): t.numel() * t.element_size() for tree in encoded.trees for t in tree.vision.values()}
    tokens = sum(len(segment.ids) for tree in encoded.trees for segment in (tree.prefix, *tree.branches))
    return sum(tensors.values()) + 24 * tokens


class Collator:
    """Packs the trees of a batch into one row without padding, with the examples' ids for the trainer's messages.

    Args:
        model: The model that reads the batches.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._collate = TreeCollator(model)

    def __call__(self, examples: Sequence[EncodedExample]) -> dict[str, Any]:
        """Return the model's inputs, `labels`, `weights` (see `TreeCollator`), `sample_ids`, `tokens`, `left_out`."""
        trees = [tree for example in examples for tree in example.trees]
        sample_ids = [example.id for example in examples]
        with _naming(sample_ids):
            batch = self._collate(trees)
        counts = {"tokens": sum(tree.length for tree in trees), "left_out": sum(e.left_out for e in examples)}
        return {**batch, "sample_ids": sample_ids, **counts}


@contextlib.contextmanager
def _naming(sample_ids: Sequence[str]) -> Iterator[None]:
    """Name the examples in errors that this block raises, except a `UserError` and running out of memory."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"{error} (on the training examples {', '.join(sample_ids)})") from error


ANSWER_MARK: Final = "<answer>"
"""Tag before a reply's answer, after its thoughts, as ReAG's prompt asks for."""


def weigh_answers(tree: Tree, replies: Sequence[Sequence[str]], renderer: Renderer, answer_weight: float) -> Tree:
    """Return a tree in which a reply's loss is α · (mean over its answer) + (1 - α) · (mean over its thoughts).

    The weights of a reply still add up to its number of tokens. The answer is everything from `<answer>` to the end of
    the turn. A reply without an answer or without thoughts keeps its weights.

    Args:
        tree: An encoded example, whose branches end with their replies.
        replies: The texts of each branch's replies, in order; "" for a reflection token.
        renderer: The renderer that encoded it.
        answer_weight: α, in [0, 1].
    """
    branches = [
        _weighed(segment, texts, renderer, answer_weight) for segment, texts in zip(tree.branches, replies, strict=True)
    ]
    return replace(tree, branches=tuple(branches))


def _weighed(segment: Segment, replies: Sequence[str], renderer: Renderer, answer_weight: float) -> Segment:
    weights, end = list(segment.weights), len(segment.ids)
    for reply in reversed(replies):
        while end and segment.labels[end - 1] == IGNORE:  # skip the tool's result after the reply
            end -= 1
        ids = renderer.reply_ids(reply)
        start, end = end - len(ids), end - len(ids)
        thoughts = reply.partition(ANSWER_MARK)[0]
        if ANSWER_MARK not in reply or not thoughts.strip():
            continue
        border = len(
            common_prefix([ids, renderer.reply_ids(thoughts)])
        )  # a token that spans the border belongs to the answer
        count, answer = len(ids), len(ids) - border
        part = [(1 - answer_weight) * count / border] * border + [answer_weight * count / answer] * answer
        weights[start : start + count] = part
    return replace(segment, weights=tuple(weights))
