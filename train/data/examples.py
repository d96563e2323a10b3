"""Training examples as the model reads them: checked as a whole, encoded when needed, kept in memory up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from PIL import Image
from torch.utils.data import Dataset

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import OutsideRoot, Roots, resolve_below
from reflectune.core.types import AnswerStyle, PromptedExample, ReflectionExample, TrainingExample
from reflectune.data_builders.reflection_data import image_roots, read_examples, read_manifest, read_prompted
from reflectune.models.attention.tree import Segment, Tree, independent_rows
from reflectune.models.rendering import Renderer
from reflectune.models.schemes.base import find_scheme
from reflectune.train.data.mixture import Part


@dataclass(frozen=True)
class EncodedExample:
    """One example as token trees: one, or one per branch if prefixes are not shared."""

    id: str
    trees: tuple[Tree, ...]


class EncodedExamples(Dataset[EncodedExample]):
    """Examples, encoded the first time they are asked for.

    Args:
        examples: The examples.
        renderer: Writes them as token trees.
        roots: The folders that their image paths may lead into; relative ones start at the first.
        share_prefix: Whether one tree holds all branches, or one tree each.
        max_tokens: Most tokens from the image to the end of a branch.
        cache_bytes: Encoded examples are kept until they take this much memory.
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
    ) -> None:
        super().__init__()
        self.examples, self._renderer, self._roots = examples, renderer, roots
        self._share_prefix, self._max_tokens = share_prefix, max_tokens
        self._free_bytes = cache_bytes
        self._cache: dict[int, EncodedExample] = {}

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> EncodedExample:
        """The example, encoded; a negative index i gives the example ~i with no weight (see `TrainingOrder`).

        Raises:
            UserError: Its image is unreadable, the processor refuses it, it is too long, or nothing is supervised.
        """
        if index < 0:
            return _weightless(self[~index])
        if index in self._cache:
            return self._cache[index]
        example = self.examples[index]
        image = load_image(example.image, root=self._roots, needed_by=f"training example {example.id}")
        tree = self._encode(example, image)
        self._check(example, tree)
        encoded = EncodedExample(example.id, (tree,) if self._share_prefix else tuple(independent_rows(tree)))
        self._free_bytes -= (size := _memory(encoded))
        if self._free_bytes >= 0:
            self._cache[index] = encoded
        else:
            self._free_bytes += size
        return encoded

    def _encode(self, example: TrainingExample, image: Image.Image) -> Tree:
        encode: Callable[[Any, Image.Image], Tree] = self._renderer.encode_example
        if isinstance(example, PromptedExample):
            encode = self._renderer.encode_prompted
        try:
            return encode(example, image)
        except (UserError, ValueError) as error:  # the processor's, e.g. of a picture that is a line
            raise UserError(f"training example {example.id} can't be encoded: {error}") from error
        except Exception as error:
            raise RuntimeError(f"training example {example.id} can't be encoded: {error}") from error

    def _check(self, example: TrainingExample, tree: Tree) -> None:
        if tree.supervised == 0:
            raise UserError(
                f"training example {example.id} has no supervised token: it would teach nothing. Check its `answer` "
                "and `branches`, and the chat template of the model"
            )
        length = len(tree.prefix.ids) + max((len(branch.ids) for branch in tree.branches), default=0)
        if length > self._max_tokens:
            raise UserError(
                f"training example {example.id} has {length} tokens from its image to the end of its longest passage, "
                f"more than {self._max_tokens}; split the passage, or raise `max_tokens` if the model can take more"
            )


@dataclass(frozen=True)
class TrainingData:
    """The examples of all data sets, one after the other.

    Attributes:
        examples: The examples.
        image_roots: The folders that their image paths may lead into; relative ones start at the first.
        parts: Of each data set the number of its examples, and how often an epoch reads each.
    """

    examples: Sequence[TrainingExample]
    image_roots: tuple[Path, ...]
    parts: tuple[tuple[int, float], ...]


def load_training_data(parts: Sequence[Part], scheme: str) -> TrainingData:
    """Read data sets and check every row. Of several the image paths are made whole, since each has its own folder."""
    read = [load_examples(part, scheme) for part in parts]
    sizes = tuple((len(examples), part.weight) for part, (examples, _) in zip(parts, read, strict=True))
    if len(read) == 1:
        return TrainingData(*read[0], sizes)
    whole = [
        replace(example, image=str(roots[0].absolute() / example.image))
        for examples, roots in read
        for example in examples
    ]
    return TrainingData(whole, tuple(root for _, roots in read for root in roots), sizes)


def load_examples(part: Part, scheme: str) -> tuple[Sequence[TrainingExample], tuple[Path, ...]]:
    """Read one data set and check every row of it.

    Returns:
        The examples, and the folders that their image paths may lead into; relative ones start at the first.

    Raises:
        UserError: There is no example, one is malformed, an image is missing or outside of its folders, or the data is
            for another scheme.
    """
    path = part.file
    roots: tuple[Path, ...] = (Path(part.image_root), part.folder)
    if not part.image_root:
        manifest = read_manifest(part.folder)
        roots = image_roots(part.folder, manifest)
        if manifest.scheme != scheme:
            raise UserError(f"{path} was built for the scheme `{manifest.scheme}`, and `scheme` is `{scheme}`")
    examples = read_prompted(path) if find_scheme(scheme).is_prompted else read_examples(path)
    if not examples:
        raise UserError(f"{path} holds no example; build it again, with questions of that split")
    _check_rows(examples, path, roots)
    return examples, roots


def kind(example: TrainingExample) -> str:
    """What an example asks for, in words: every batch has the same mixture of kinds."""
    if isinstance(example, PromptedExample):
        gates = [branch.role == "retrieve" for branch in example.branches if branch.prompt == "ret"]
        if not gates:
            return "without a gate"
        return "with retrieval" if gates[0] else "without retrieval"
    return "with retrieval" if example.retrieve else "without retrieval"


def approximate_length(example: TrainingExample) -> int:
    """The characters of an example: enough to put similar lengths together without encoding anything."""
    if isinstance(example, PromptedExample):
        passages = [passage for branch in example.branches for passage in branch.documents]
        replies = sum(len(branch.reply) for branch in example.branches)
    else:
        passages = [branch.passage for branch in example.branches]
        replies = len(example.answer) + sum(len(f"{later.question}{later.answer}") for later in example.follow_ups)
    texts = [text for p in passages for text in (p.title, p.lead, p.heading, p.text)]
    return len(example.question) + replies + sum(map(len, texts))


def _check_rows(examples: Sequence[TrainingExample], path: Path, roots: Roots) -> None:
    problems = [f"{example.id}: {problem}" for example in examples if (problem := _problem(example))]
    images = {example.image: example.id for example in reversed(examples) if example.image.strip()}
    problems += [f"{asker}: {problem}" for image, asker in images.items() if (problem := _image_problem(image, roots))]
    if problems:
        shown = "\n  ".join(problems[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(f"{path} has {len(problems)} bad rows; mend or rebuild them:\n  {shown}{more}")


def _image_problem(image: str, roots: Roots) -> str:
    try:
        path = resolve_below(image, roots)
    except OutsideRoot as error:
        return f"image refused: {error}"
    return "" if path.is_file() else f"image not found: {path}"


def _problem(example: TrainingExample) -> str:
    if example.style not in get_args(AnswerStyle):
        return f"`style` should be one of {', '.join(get_args(AnswerStyle))}; found `{example.style}`"
    if not example.question.strip():
        return "the question is empty"
    if not example.image.strip():
        return "the question has no image"
    return _prompted_problem(example) if isinstance(example, PromptedExample) else _reflection_problem(example)


def _prompted_problem(example: PromptedExample) -> str:
    if not example.branches:
        return "nothing is asked: there is no branch"
    for branch in example.branches:
        if bool(branch.role) == bool(branch.reply.strip()):
            return f"a branch `{branch.prompt}` needs either a reflection token (`role`) or words (`reply`)"
    return ""


def _reflection_problem(example: ReflectionExample) -> str:
    if not example.retrieve and not example.answer.strip():
        return "a question without retrieval needs an answer"
    if example.retrieve and not example.branches:
        return "a question with retrieval needs a passage"
    if example.follow_ups and (example.retrieve or example.style != "free"):
        return "a conversation goes on (`follow_ups`) behind a free answer without retrieval alone"
    if any(not (later.question.strip() and later.answer.strip()) for later in example.follow_ups):
        return "a later round of its conversation lacks its question or its answer"
    if any(branch.relevant and not branch.answer.strip() for branch in example.branches):
        return "a relevant branch has no answer"
    return ""


def _weightless(encoded: EncodedExample) -> EncodedExample:
    def silent(segment: Segment) -> Segment:
        return replace(segment, weights=(0.0,) * len(segment.ids))

    trees = [replace(t, prefix=silent(t.prefix), branches=tuple(map(silent, t.branches))) for t in encoded.trees]
    return replace(encoded, trees=tuple(trees))


def _memory(encoded: EncodedExample) -> int:
    """About how many bytes an encoded example holds: tensors, and three lists of numbers per segment."""
    tensors = {id(t): t.numel() * t.element_size() for tree in encoded.trees for t in tree.vision.values()}
    tokens = sum(len(segment.ids) for tree in encoded.trees for segment in (tree.prefix, *tree.branches))
    return sum(tensors.values()) + 24 * tokens
