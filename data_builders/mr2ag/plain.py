"""Build a split of plain fine-tuning data: each question with its answer and the contexts of naive RAG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import load_image
from reflectune.core.launching import launch_processes
from reflectune.core.paths import Roots
from reflectune.core.types import Passage
from reflectune.data_builders.mr2ag.plain_config import STATING, EvidenceSettings, PlainConfig
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit
from reflectune.formats.questions import is_held_out
from reflectune.formats.reflection_data import (
    Manifest,
    add_statistics,
    build_split,
    image_roots,
    read_examples,
    read_manifest,
)
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.retrieval.contexts import PICKED, ContextBuilder
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.entry_retriever import Retriever, open_retriever
from reflectune.retrieval.retrievers.queries import Query

_CHUNK = 64
"""Questions retrieved for and logged together."""
_UNKNOWN = "whose stating passage is unknown, or beyond `context_words`"


def run(config: PlainConfig) -> None:
    """Build a split, shared by the processes of a launch; a dry run shows one example and writes nothing.

    Raises:
        UserError: The mR²AG-IT data is of a different data set, the output folder holds other data, or an image is bad.
    """
    dataset, source = Dataset(Path(config.dataset)), read_manifest(config.reflection)
    if source.image_root != dataset.root.resolve():
        raise UserError(f"`reflection`: {config.reflection} was not built from {dataset.root}; name its own `dataset`")
    path = Path(config.reflection, f"{config.split}.parquet")
    examples = _examples(config, dataset, path)
    retriever = reranker = contexts = None
    if any(form in PICKED for form in config.evidence):
        reranker = open_reranker(config, device=config.device)
    if config.needs_retrieval:
        retriever = open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=config.device)
    if config.evidence != ["none"]:  # else the data set may have no knowledge base
        contexts = ContextBuilder(dataset.knowledge, reranker, config.top_n, config.passages, config.lead)
    builder = PlainBuilder(retriever, contexts, EvidenceSettings.of(config), image_roots(config.reflection, source))
    processes = launch_processes("" if config.dry_run else config.output)
    if config.dry_run:
        if processes.index:
            return
        print(f"{len(examples):,} questions of {config.split}, the first one with retrieval:")
        for built in builder.examples([example for example in examples if example.retrieve][:1]):
            for branch in built.branches:
                print(f"  {' '.join(map(passage_text, branch.documents)) or '(nothing)'} → {branch.reply}")
        return
    index = config.finder_fingerprint() if retriever else ""
    reranker_hash = reranker.fingerprint if reranker else ""
    held_out_by = dataset.split_fingerprint(config.split) if config.hold_out else ""
    key = fingerprint([config.hashed(), dataset.fingerprint, held_out_by, index, file_fingerprint(path), reranker_hash])
    folders = (*source.image_folders, str(Path(config.reflection).resolve()))  # the latter may have a black image
    manifest, output = Manifest(PLAIN.name, dataset.root, {}, folders), Path(config.output)
    plain = build_split(
        output, config.split, manifest, key, PromptedExample, examples, _CHUNK, builder.examples, processes
    )
    if plain is not None:
        numbers = statistics(config, examples, plain)
        add_statistics(output, config.split, numbers)
        print(f"{output / config.split}.parquet: {len(plain):,} questions, {numbers['prompts']:,} prompts")
        for form, share in numbers["states_the_answer"].items():
            print(f"{form}: {share:.1%} of the contexts hold a passage labelled as evidence")
        if numbers["questions_left_out"]:
            print(f"left out: {numbers['questions_left_out']:,} questions {_UNKNOWN}")


def _examples(config: PlainConfig, dataset: Dataset, path: Path) -> list[ReflectionExample]:
    """Return the mR²AG-IT examples that are not held out, at least one."""
    examples = read_examples(path, ReflectionExample, MR2AG.problem)
    if config.hold_out:
        held_out = {question.id for question in dataset.stream(config.split) if is_held_out(question, config.hold_out)}
        examples = [example for example in examples if example.id not in held_out]
    if not examples:
        left = " that are not held out" if config.hold_out else ""
        raise UserError(f"`reflection`: {path} has no questions{left}; build it again")
    return examples


def statistics(
    settings: EvidenceSettings, examples: Sequence[ReflectionExample], plain: Sequence[PromptedExample]
) -> dict[str, Any]:
    """Count questions and prompts, and for each context the share that holds a passage labelled as evidence.

    Args:
        settings: The contexts.
        examples: The mR²AG-IT examples.
        plain: Examples that were built from them.
    """
    stating = {
        example.id: {branch.passage.id for branch in example.branches if branch.relevant}
        for example in examples
        if example.retrieve
    }
    rows = [
        [any(passage.id in stating[example.id] for passage in branch.documents) for branch in example.branches]
        for example in plain
        if example.id in stating
    ]
    columns = zip(settings.evidence, zip(*rows, strict=True), strict=True) if rows else ()
    return {
        "questions": len(plain),
        "prompts": sum(len(example.branches) for example in plain),
        "evidence": settings.evidence,
        "states_the_answer": {form: sum(column) / len(column) for form, column in columns},
        "questions_left_out": len(examples) - len(plain),
    }


class PlainBuilder:
    """Makes plain fine-tuning examples from those of mR²AG-IT.

    Args:
        retriever: Retriever of entries; None if no context has retrieved passages.
        contexts: Builder of contexts; None if `evidence` is `none` alone.
        settings: Contexts of the answers.
        image_roots: The folders that image paths may lead into.
    """

    def __init__(
        self,
        retriever: Retriever | None,
        contexts: ContextBuilder | None,
        settings: EvidenceSettings,
        image_roots: Roots,
    ) -> None:
        self._retriever, self._contexts, self._settings, self._roots = retriever, contexts, settings, image_roots

    def examples(self, examples: Sequence[ReflectionExample]) -> list[PromptedExample]:
        """Return an example for each, in order, with one prompt per context; visual questions have no context.

        Follow-up questions are left out, since a prompted example has one round. Questions whose stating passage is
        needed but unknown are left out as well.
        """
        contexts = self._contexts_of([example for example in examples if example.retrieve])
        return [
            PromptedExample(
                example.id,
                example.image,
                example.question,
                tuple(
                    PromptedBranch("vqa", tuple(passages), reply=_answer(example))
                    for passages in (contexts[example.id] if example.retrieve else [()])
                ),
                example.style,
                example.source,
            )
            for example in examples
            if not example.retrieve or example.id in contexts
        ]

    def _contexts_of(self, examples: Sequence[ReflectionExample]) -> dict[str, list[Sequence[Passage]]]:
        """Return the passages of each context by example id, in the order of `evidence`."""
        stating = [form for form in self._settings.evidence if form in STATING]
        gold = {example.id: self._gold_contexts(example) for example in examples} if stating else {}
        examples = [example for example in examples if not stating or gold[example.id]]
        texts = [example.question for example in examples]
        hits: list[list[Hit]] = []
        images: list[Image.Image] = []
        if self._retriever is not None and examples:
            images = [load_image(example.image, root=self._roots, needed_by=example.id) for example in examples]
            hits = self._retriever.search([Query(image) for image in images], self._settings.top_n)
        columns: list[list[Sequence[Passage]]] = []
        for form in self._settings.evidence:
            if form == "none" or self._contexts is None:
                columns.append([()] * len(examples))
            elif form == "gold" or form == "article":
                columns.append([gold[example.id][form] for example in examples])
            else:
                columns.append([self._shorten(row) for row in self._contexts.build(form, texts, hits, images)])
        return {example.id: list(row) for example, row in zip(examples, zip(*columns, strict=True), strict=True)}

    def _gold_contexts(self, example: ReflectionExample) -> dict[str, Sequence[Passage]]:
        """Return the passage that states the answer, and its article, as naive RAG would read them.

        The result is empty if no passage states the answer, or it is beyond `context_words`.
        """
        stating = next((branch.passage for branch in example.branches if branch.relevant), None)
        if stating is None or self._contexts is None:
            return {}
        (whole,) = self._contexts.build("article", [example.question], [[Hit(stating.entry_id, score=1.0, rank=1)]])
        read = self._shorten(whole) if "article" in self._settings.evidence else whole
        gold = [passage for passage in read if passage.id == stating.id]
        return {"gold": gold, "article": read} if gold else {}

    def _shorten(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        """Return the leading passages within `context_words`, at least one."""
        max_words, words = self._settings.context_words, 0
        for position, passage in enumerate(passages):
            words += len(passage_text(passage).split())
            if max_words and words > max_words:
                return passages[: max(1, position)]
        return passages


def _answer(example: ReflectionExample) -> str:
    """Return the answer of a visual question, or the one that the evidence supports."""
    answers = [branch.answer for branch in example.branches if branch.relevant]
    if not example.answer and not answers:
        raise UserError(f"example {example.id} has no relevant passage, and so no answer; build mR²AG-IT with evidence")
    return example.answer or answers[0]
