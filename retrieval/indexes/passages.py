"""Build an index of passages from its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.values import InputFile
from reflectune.formats.passages import DEFAULT_SIZES, Cut, Lead
from reflectune.retrieval.encoders.presets import in_words, text_settings
from reflectune.retrieval.encoders.settings import Pooling, TextSettings
from reflectune.retrieval.indexes.settings import IndexSettings

SHARD: Final = 1024
"""Default number of entries per shard."""


class PassageIndexSettings(IndexSettings):
    """Settings of an index of passages."""

    cut: Cut = setting("paragraphs", "passages: paragraphs, sections, windows of sentences, or words")
    size: int = setting(0, "words of a window or of a block of words; 0: the usual number", ge=0)
    lead: Lead = setting("none", "text before each passage: nothing, or a description of the entry")
    pooling: Pooling = setting("auto", "of the encoder: mean, last or cls; auto: as its model card says")
    similarity: Literal["auto", "cosine", "dot"] = setting("auto", "cosine or dot; auto: as its model card says")
    query_prefix: str | None = setting(None, "prefix of each question; unset: the model card's")
    passage_prefix: str | None = setting(None, "prefix of each passage; unset: the model card's")
    max_length: int | None = setting(None, "tokens beyond which a passage is cut; unset: the model card's", ge=1)
    token_budget: int = setting(16_384, "maximum tokens in one forward pass", ge=1)
    questions: InputFile = setting(
        "", "file of questions, one per line, to calibrate an approximate search; empty: sentences of the passages"
    )

    @cross_check
    def size_problems(self) -> Iterator[str]:
        """Yield the problem of a `size` that the `cut` doesn't use."""
        if self.size and self.cut not in DEFAULT_SIZES:
            yield f"`size` means nothing for `cut: {self.cut}`; drop it"

    def text_settings(self) -> TextSettings:
        """Return the encoder's settings, with unset ones filled from its preset."""
        return text_settings(self.encoder, **{name: getattr(self, name) for name in TextSettings.__dataclass_fields__})


def build_passages(config: PassageIndexSettings) -> None:
    """Build the index, or with `dry_run` describe it.

    Raises:
        UserError: See `reflectune.retrieval.indexes.text_index.build_text_index`.
    """
    from reflectune.core.devices import find_device  # slow to import, like the following
    from reflectune.core.launching import launch_processes
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.retrieval.encoders.checkpoints import find_checkpoint
    from reflectune.retrieval.encoders.text_encoder import TextEncoder
    from reflectune.retrieval.indexes.entry_index import recall_of
    from reflectune.retrieval.indexes.planning import check_room, describe_needs
    from reflectune.retrieval.indexes.text_index import Cutting, build_text_index, plan_passages
    from reflectune.retrieval.indexes.trial import describe_time, try_passages

    processes = launch_processes("" if config.dry_run else config.output)
    kb, cutting = KnowledgeBase(config.knowledge), Cutting(config.cut, config.size, config.lead)
    checkpoint, device = find_checkpoint(config.encoder), find_device(config.device)
    encoder = TextEncoder(checkpoint, config.text_settings(), device, "set `pooling` to mean, last or cls")
    if config.dry_run:
        if processes.index:
            return
        rows = sum(len(cutting.passages(entry)) for entry in kb)
        print(f"would index {rows:,} passages of {len(kb):,} entries with {encoder.name}; nothing was written")
        print(f"  encoded with {in_words(encoder.settings)}")
        plan = plan_passages(encoder, config.store, rows)
        print(*describe_needs(plan), sep="\n")
        check_room(Path(config.output), plan)
        if time := describe_time([try_passages(kb, encoder, cutting, rows)], processes):
            print(f"  {time}")
        return
    index = build_text_index(
        kb,
        encoder,
        config.output,
        cutting,
        store=config.store,
        shard_entries=config.shard_entries or SHARD,
        questions=read_questions(config.questions),
        progress=True,
        processes=processes,
    )
    if processes.index:
        return
    print(f"{config.output}: {index.manifest['rows']:,} passages of {kb.name}")
    print(f"  encoded with {in_words(encoder.settings)}")
    if cut := index.manifest.get("cut", 0):
        print(f"  {cut:,} passages are longer than {encoder.longest:,} tokens and were truncated")
    print(f"  searched by {index.manifest['store']}{recall_of(index.manifest)}")


def read_questions(path: str) -> list[str]:
    """Return the non-empty lines of a file, or no lines if `path` is empty.

    Raises:
        UserError: The file has no such line or is not UTF-8.
    """
    if not path:
        return []
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"`questions`: {path} is not UTF-8: {error}") from error
    if not (questions := [line for line in lines if line]):
        raise UserError(f"`questions`: {path} is empty; give one question a line")
    return questions
