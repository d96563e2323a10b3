"""Builds a split of plain fine-tuning data: questions and what naive RAG reads in, prompts with answers out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.types import Passage
from reflectune.data_builders.plain.config import PlainConfig
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit
from reflectune.formats.reflection_data import Manifest, build_split, image_roots, read_examples, read_manifest
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.retrieval.contexts import ContextBuilder, ContextForm
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.entry_retriever import open_retriever

_CHUNK = 64
"""Questions that are retrieved for and written to the log together."""


def run(config: PlainConfig) -> None:
    """Build as the config says; a dry run shows one example and writes nothing.

    Raises:
        UserError: The mR²AG-IT data is of another data set, the output folder holds other data, or an image is bad.
    """
    dataset, source = Dataset(Path(config.dataset)), read_manifest(config.reflection)
    if source.image_root != dataset.root.resolve():
        raise UserError(f"`reflection`: {config.reflection} was not built from {dataset.root}; name its own `dataset`")
    path = Path(config.reflection, f"{config.split}.parquet")
    examples = read_examples(path, ReflectionExample, MR2AG.problem)
    if not examples:
        raise UserError(f"`reflection`: {path} has no questions; build it again")
    builder = PlainBuilder(dataset, config, image_roots(config.reflection, source))
    if config.dry_run:
        print(f"{len(examples):,} questions of {config.split}, the first one that is looked up:")
        for example in builder.examples([each for each in examples if each.retrieve][:1]):
            print("\n".join(f"  {_shown(branch)} → {branch.reply}" for branch in example.branches))
        return
    output = Path(config.output)
    folders = (*source.image_folders, str(Path(config.reflection).resolve()))  # a black image may be in the latter
    manifest = Manifest(PLAIN.name, dataset.root, {}, folders)
    key = builder.fingerprint
    plain = build_split(output, config.split, manifest, key, PromptedExample, examples, _CHUNK, builder.examples)
    if plain is not None:
        prompts = sum(len(example.branches) for example in plain)
        print(f"{output / config.split}.parquet: {len(plain):,} questions, {prompts:,} prompts")


class PlainBuilder:
    """Makes plain fine-tuning examples from those of mR²AG-IT.

    Args:
        dataset: Images and knowledge base.
        config: What to build.
        image_roots: The folders that image paths may lead into.
    """

    def __init__(self, dataset: Dataset, config: PlainConfig, image_roots: Roots) -> None:
        self._dataset, self._config, self._image_roots = dataset, config, image_roots
        self._retriever = (
            open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=config.device)
            if config.needs_retrieval
            else None
        )
        self._reranker = open_reranker(config, device=config.device) if "passages" in config.evidence else None
        self._contexts = (
            ContextBuilder(dataset.knowledge, self._reranker, config.top_n, config.passages, config.lead)
            if config.needs_retrieval
            else None
        )

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the examples."""
        config = self._config
        index = config.finder_fingerprint() if self._retriever else ""
        reflection = file_fingerprint(Path(config.reflection, f"{config.split}.parquet"))
        reranker = self._reranker.fingerprint if self._reranker else ""
        return fingerprint([config.what_decides(), self._dataset.fingerprint, index, reflection, reranker])

    def examples(self, examples: Sequence[ReflectionExample]) -> list[PromptedExample]:
        """One example each, in order: a visual question is answered from nothing, the others from each context.

        Of a conversation the first round is taken: a prompted example has no later ones.
        """
        contexts = self._contexts_of([example for example in examples if example.retrieve])
        return [
            PromptedExample(
                example.id,
                example.image,
                example.question,
                tuple(
                    PromptedBranch("vqa", tuple(passages), reply=_answer(example))
                    for passages in contexts.get(example.id, [()])
                ),
                example.style,
                example.source,
            )
            for example in examples
        ]

    def _contexts_of(self, examples: Sequence[ReflectionExample]) -> dict[str, list[Sequence[Passage]]]:
        """By example id: the passages of each context, in the order of `evidence`."""
        texts = [example.question for example in examples]
        hits: list[list[Hit]] = []
        images: list[Image.Image] = []
        if self._retriever is not None and examples:
            images = [load_image(example.image, root=self._image_roots, needed_by=example.id) for example in examples]
            hits = self._retriever.search(images, self._config.top_n)
        columns: list[list[Sequence[Passage]]] = []
        for name in self._config.evidence:
            if name == "none" or self._contexts is None:
                columns.append([()] * len(examples))
            else:
                form: ContextForm = name  # type: ignore[assignment]  # the config was checked
                columns.append([self._shorten(row) for row in self._contexts.build(form, texts, hits, images)])
        return {example.id: list(row) for example, row in zip(examples, zip(*columns, strict=True), strict=True)}

    def _shorten(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The leading passages within `context_words`; the first one in any case."""
        most, words = self._config.context_words, 0
        for place, passage in enumerate(passages):
            words += len(passage_text(passage).split())
            if most and words > most:
                return passages[: max(1, place)]
        return passages


def _answer(example: ReflectionExample) -> str:
    """What the question is answered with: a visual one's answer, or the one that its evidence supports.

    Raises:
        UserError: No passage of it is evidence, so that the data doesn't say.
    """
    answers = [branch.answer for branch in example.branches if branch.relevant]
    if not example.answer and not answers:
        raise UserError(f"example {example.id} has no relevant passage, and so no answer; build mR²AG-IT with evidence")
    return example.answer or answers[0]


def _shown(branch: PromptedBranch) -> str:
    return " ".join(passage_text(passage) for passage in branch.documents) or "(nothing)"
