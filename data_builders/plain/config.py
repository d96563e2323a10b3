"""The settings of `build_plain.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, SplitName, output_of
from reflectune.formats.dataset import split_issues
from reflectune.formats.reflection_data import MANIFEST
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.contexts import CONTEXT_FORMS
from reflectune.retrieval.rerankers.config import RerankerConfig

EVIDENCE: Final[tuple[str, ...]] = ("none", *CONTEXT_FORMS)
"""What an answer is to be read from: nothing, or a context of naive RAG (`ContextBuilder.build`)."""


class PlainConfig(RerankerConfig, RetrieverConfig):
    """Build one split of plain fine-tuning data from the questions of mR²AG-IT that is built already."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", needed="")
    reflection: str = setting("", "mR²AG-IT folder: its questions, and no others, are taken", needed="")
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the data", needed="")
    split: SplitName = setting("train", "whose questions", needed="")
    device: Device = setting("auto", "where encoder and reranker run: cpu, cuda, or auto")
    evidence: list[str] = setting(
        ["articles", "passages"], "what a knowledge-based question is answered from, once each: " + ", ".join(EVIDENCE)
    )
    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    passages: int = setting(5, "of their passages, those that the reranker picks", ge=1)
    context_words: int = setting(
        0, "leading passages of a context up to so many words; 0: all, of which training reads what fits", ge=0
    )
    lead: Literal["none", "first_sentence"] = setting(
        "first_sentence", "what stands before each passage: nothing, or what the entry is"
    )
    dry_run: bool = setting(False, "say what would be built, show one example, and stop")

    @cross_check
    def input_problems(self) -> Iterator[str]:
        """Yield the problems of the data set and of the questions taken."""
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            yield f"`dataset`: {self.dataset} has no dataset.json; build_world and convert write one"
        if self.reflection and not Path(self.reflection, MANIFEST).is_file():
            yield f"`reflection`: {self.reflection} has no {MANIFEST}; build it with data_builders.build_mr2ag"

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the problems of the split."""
        yield from split_issues("split", self.dataset, [self.split])

    @cross_check
    def evidence_problems(self) -> Iterator[str]:
        """Yield the problems of the contexts."""
        unknown = [name for name in self.evidence if name not in EVIDENCE]
        yield from [f"`evidence`: unknown `{name}`; of {', '.join(EVIDENCE)}" for name in unknown]
        if not self.evidence or len(set(self.evidence)) < len(self.evidence):
            yield f"`evidence` should name at least one context, each once; found {self.evidence}"

    @cross_check
    def retrieval_problems(self) -> Iterator[str]:
        """Yield a problem if contexts are retrieved and nothing finds entries."""
        if self.needs_retrieval and not self.finds_entries:
            yield "`index` is needed (see retrieval.build_index), or `ranked_entities`, or `evidence: [none]`"

    @property
    def needs_retrieval(self) -> bool:
        """Whether any answer is read from what was retrieved."""
        return any(name != "none" for name in self.evidence)

    def what_decides(self) -> dict[str, Any]:
        """The settings that decide what is built; data sets, index and reranker are hashed apart.

        Data from before there was a `summary_share` stays valid.
        """
        used = self.as_used(self.model_dump())
        settings = {name: value for name, value in used.items() if name not in _ELSEWHERE}
        return {name: value for name, value in settings.items() if (name, value) != ("summary_share", 0.0)}


_ELSEWHERE: Final = frozenset(
    (
        "dataset",
        "reflection",
        "output",
        "index",
        "ranked_entities",
        "device",
        "dry_run",
        "reranker_model",
        "reranker_token_budget",
    )
)
"""Where things are, and what changes no answer."""
