"""The settings of `evaluate.py` and `answer.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reflectune.retrieval.passages import Lead

Fallback = Literal["best_product", "closed_book", "abstain"]

FORMS: dict[str, tuple[str, ...]] = {
    "closed_book": ("closed_book",),
    "naive_rag": ("naive_rag_article", "naive_rag_passages"),
    "oracle": ("oracle_article", "oracle_passage"),
    "mr2ag": ("mr2ag",),
}
"""The pipelines that a name in a config stands for."""

RETRIEVING = ("naive_rag_article", "naive_rag_passages", "mr2ag")
TUNED = ("mr2ag",)


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class ReadingConfig:
    """What every pipeline needs: the models, the knowledge base, and how to read."""

    dataset: str = field(default="", metadata=_help("data set folder (questions, images, knowledge base)"))
    index: str = field(default="", metadata=_help("index folder; needed by naive_rag and mr2ag"))
    encoder: str = field(default="miniature/clip", metadata=_help("the encoder that the index was built with"))
    model: str = field(default="", metadata=_help("fine-tuned checkpoint, used by mr2ag"))
    scheme: str = field(default="mr2ag", metadata=_help("the scheme that the checkpoint was tuned with"))
    top_n: int = field(default=5, metadata=_help("entries to retrieve for a question"))
    gamma: float = field(default=0.5, metadata=_help("retrieve if the gate's probability is at least this"))
    fallback: Fallback = field(default="best_product", metadata=_help("what to do when no passage is judged relevant"))
    lead: Lead = field(
        default="first_sentence", metadata=_help("what stands before each passage: nothing, or what the entry is")
    )
    max_new_tokens: int = field(default=32, metadata=_help("longest answer, in tokens"))
    token_budget: int = field(default=16384, metadata=_help("most tokens in one forward pass; splits work, not text"))
    dtype: str = field(default="float32", metadata=_help("float32, bfloat16 or float16"))
    device: str = field(default="auto", metadata=_help("cpu, cuda, cuda:1, or auto: this process's own"))
    dry_run: bool = field(default=False, metadata=_help("say what would be done, and stop"))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [
            f"`{name}` must be at least 1, found {getattr(self, name)}"
            for name in ("top_n", "max_new_tokens", "token_budget")
            if getattr(self, name) < 1
        ]
        if not 0.0 <= self.gamma <= 1.0:
            issues.append(f"`gamma` is a probability in [0, 1], found {self.gamma}")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            issues.append(f"`dtype` is one of float32, bfloat16, float16; found `{self.dtype}`")
        if not self.dataset:
            issues.append("`dataset` is needed: a data set folder, e.g. the output of build_world")
        elif not Path(self.dataset, "dataset.json").is_file():
            issues.append(f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world wrote")
        if self.index and not Path(self.index, "manifest.json").is_file():
            issues.append(f"`index`: {self.index} has no manifest.json; build it with reflectune.retrieval.build_index")
        return issues


@dataclass
class EvaluateConfig(ReadingConfig):
    """Run pipelines over a data set's questions; write traces, metrics.json and report.html."""

    base_model: str = field(default="", metadata=_help("plain model, used by closed_book, naive_rag and oracle"))
    splits: list[str] = field(
        default_factory=lambda: ["val_unseen_question", "val_unseen_entity"], metadata=_help("splits to answer")
    )
    pipelines: list[str] = field(
        default_factory=lambda: list(FORMS), metadata=_help("of closed_book, naive_rag, oracle, mr2ag")
    )
    output: str = field(default="", metadata=_help("folder for traces/, metrics.json and report.html"))
    limit: int | None = field(default=None, metadata=_help("questions per split, drawn by seed; all if unset"))
    batch_questions: int = field(default=8, metadata=_help("questions answered together"))
    report_questions: int = field(default=1000, metadata=_help("questions to list in the report"))
    on_error: Literal["stop", "skip"] = field(
        default="stop", metadata=_help("a question with a bad image or no text: stop, or count it as wrong and list it")
    )
    seed: int = field(default=0, metadata=_help("seed of sampling and of bootstrap intervals"))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = super().problems()
        known = {*FORMS, *(form for forms in FORMS.values() for form in forms)}
        unknown = [name for name in self.pipelines if name not in known]
        issues += [f"`pipelines`: unknown pipeline `{name}`; one of {', '.join(FORMS)}" for name in unknown]
        asked = [name for name in self.forms() if name in known]
        if not self.pipelines:
            issues.append("`pipelines` is empty; name at least one of " + ", ".join(FORMS))
        if not self.splits:
            issues.append("`splits` is empty; name at least one split, e.g. val_unseen_entity")
        if not self.output:
            issues.append("`output` is needed: a folder for traces/, metrics.json and report.html")
        if any(name in RETRIEVING for name in asked) and not self.index:
            issues.append("`index` is needed by " + ", ".join(name for name in asked if name in RETRIEVING))
        if any(name in TUNED for name in asked) and not self.model:
            issues.append("`model` is needed by mr2ag: a checkpoint that train/sft.py wrote")
        if any(name not in TUNED for name in asked) and not self.base_model:
            issues.append("`base_model` is needed by " + ", ".join(name for name in asked if name not in TUNED))
        if self.batch_questions < 1:
            issues.append(f"`batch_questions` must be at least 1, found {self.batch_questions}")
        if self.limit is not None and self.limit < 1:
            issues.append(f"`limit` must be at least 1, or unset for all questions; found {self.limit}")
        if self.report_questions < 0:
            issues.append(f"`report_questions` must be at least 0, found {self.report_questions}")
        return issues

    def forms(self) -> list[str]:
        """The pipelines to run: `naive_rag` and `oracle` are two each."""
        return list(dict.fromkeys(form for name in self.pipelines for form in FORMS.get(name, (name,))))


@dataclass
class AnswerConfig(ReadingConfig):
    """Answer one question about one image with mr2ag, and show how."""

    image: str = field(default="", metadata=_help("the image, a path"))
    question: str = field(default="", metadata=_help("the question"))
    json: bool = field(default=False, metadata=_help("print the whole trace as JSON"))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = super().problems()
        for name in ("image", "question", "model", "index"):
            if not getattr(self, name).strip():
                issues.append(f"`{name}` is needed")
        return issues
