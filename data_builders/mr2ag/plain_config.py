"""Settings of `build_plain`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Device, output_of
from reflectune.formats.dataset import SplitKey
from reflectune.formats.passages import Lead
from reflectune.formats.reflection_data import MANIFEST
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.contexts import ContextForm
from reflectune.retrieval.rerankers.config import RerankerConfig

EvidenceForm = Literal["none", "gold", ContextForm]
STATING: Final = ("gold", "article")
"""Contexts that hold the passage that states the answer; the others hold retrieved passages, or none."""


class EvidenceSettings(Settings):
    """Contexts from which the answers are trained."""

    evidence: list[EvidenceForm] = setting(
        ["articles", "passages"],
        "contexts of a knowledge-based question, one training prompt for each: none; gold, the passage that states the "
        "answer; article, the article of that passage; of retrieved entries: articles, passage, passages",
    )
    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    passages: int = setting(5, "passages that the reranker picks from these entries", ge=1)
    context_words: int = setting(
        0, "maximum words of a context, cut at whole passages; 0: all passages, as many as fit in training", ge=0
    )
    lead: Lead = setting("first_sentence", "text before each passage: nothing, or a sentence on its entry")

    @property
    def needs_retrieval(self) -> bool:
        """True if any context has retrieved passages."""
        return any(form not in ("none", *STATING) for form in self.evidence)

    @cross_check
    def evidence_problems(self) -> Iterator[str]:
        """Yield the problem of a list without a context, or with the same one twice."""
        if not self.evidence or len(set(self.evidence)) < len(self.evidence):
            yield f"`evidence` should name at least one context, each once; found {self.evidence}"


class PlainConfig(SplitKey, EvidenceSettings, RerankerConfig, RetrieverConfig):
    """Build one split of plain fine-tuning data from the questions of finished mR²AG-IT data."""

    reflection: str = setting(
        "",
        "mR²AG-IT folder, whose questions are taken",
        needed="",
        hashed=False,  # its content is
    )
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the data", needed="", hashed=False)
    device: Device = setting("auto", "device of encoder and reranker: cpu, cuda, or auto", hashed=False)
    hold_out: float = setting(
        0.0,
        "share of the entities whose questions are held out, so that a reader tuned on the others has not seen them",
        ge=0,
        le=1,
    )
    dry_run: bool = setting(False, "describe the build, show one example, and stop", hashed=False)

    @cross_check
    def index_problems(self) -> Iterator[str]:
        """Yield the index's problems, if it is read."""
        if self.needs_retrieval:
            yield from RetrieverConfig.of(self).index_problems()

    @cross_check
    def plain_problems(self) -> Iterator[str]:
        """Yield the problems of keys that must fit each other, and of files that they name."""
        if self.reflection and not Path(self.reflection, MANIFEST).is_file():
            yield f"`reflection`: {self.reflection} has no {MANIFEST}; build it with build_mr2ag"
        if self.needs_retrieval and not self.finds_entries:
            yield "`index` is needed (see build_index), or `ranked_entities`, or `evidence` of none, gold and article"
