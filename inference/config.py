"""The settings of `evaluate.py` and `answer.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reflectune.data_builders.metric_config import MetricConfig
from reflectune.inference.selection.document_choice import Mct
from reflectune.models.processing.image_config import ImageKeys
from reflectune.retrieval.passages import Lead
from reflectune.retrieval.rerankers.config import RerankerConfig

Fallback = Literal["best_product", "closed_book", "abstain"]
ModelRole = Literal["model", "plain_model", "base_model"]
"""The keys that name a model: tuned to reflect, tuned without reflection, not tuned."""

FORMS: dict[str, tuple[str, ...]] = {
    "closed_book": ("closed_book",),
    "naive_rag": ("naive_rag_article", "naive_rag_articles", "naive_rag_passages"),
    "oracle": ("oracle_article", "oracle_articles", "oracle_passage"),
    "tuned_baselines": (
        "closed_book_tuned",
        "naive_rag_article_tuned",
        "naive_rag_articles_tuned",
        "naive_rag_passages_tuned",
        "oracle_article_tuned",
        "oracle_articles_tuned",
    ),
    "mr2ag": ("mr2ag",),
    "mr2ag_oracle": ("mr2ag_oracle",),
    "mmkb_rag": ("mmkb_rag",),
}
"""The pipelines that a name in a config stands for."""

TUNED = ("mr2ag", "mmkb_rag")
"""Pipelines of a model that was tuned to reflect; each needs the scheme of its own name."""

SCHEME_OF = {"mr2ag": "mr2ag", "mr2ag_oracle": "mr2ag", "mmkb_rag": "mmkb_rag"}
"""The scheme of the checkpoint that a pipeline reads `model` with."""

RETRIEVING = (
    "naive_rag_article",
    "naive_rag_articles",
    "naive_rag_passages",
    "naive_rag_article_tuned",
    "naive_rag_articles_tuned",
    "naive_rag_passages_tuned",
    "oracle_articles",
    "oracle_articles_tuned",
    *TUNED,
)


class Count(int):
    """How many documents to keep, or `auto`, which is 0. The command line's and the YAML's word is read by calling it.

    Example:
        >>> Count("auto"), Count("5")
        (auto, 5)
    """

    def __new__(cls, value: int | str) -> Count:
        """Read a number, or the word."""
        return super().__new__(cls, 0 if value == "auto" else value)

    def __str__(self) -> str:
        return str(int(self)) if self else "auto"

    __repr__ = __str__


AUTO = Count("auto")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class ReadingConfig(RerankerConfig, ImageKeys):
    """What every pipeline needs: the models, the knowledge base, and how to read."""

    dataset: str = field(default="", metadata=_help("data set folder (questions, images, knowledge base)"))
    index: str = field(default="", metadata=_help("index folder; needed by naive_rag, mr2ag and mmkb_rag"))
    encoder: str = field(default="miniature/clip", metadata=_help("the encoder that the index was built with"))
    model: str = field(default="", metadata=_help("fine-tuned checkpoint, used by mr2ag and mmkb_rag"))
    base_model: str = field(
        default="", metadata=_help("plain model, used by closed_book, naive_rag, oracle, and mmkb_rag to answer")
    )
    plain_model: str = field(
        default="",
        metadata=_help("tuned_baselines: the base, fine-tuned without reflection (scheme plain)"),
    )
    scheme: str = field(default="", metadata=_help("the scheme that the checkpoint must have been tuned with"))
    top_n: int = field(default=5, metadata=_help("entries to retrieve for a question"))
    passages: int = field(default=5, metadata=_help("naive_rag: how many the reranker picks"))
    gamma: float = field(
        default=0.5, metadata=_help("retrieve if the gate's probability is at least this (mmkb_rag: above it)")
    )
    fallback: Fallback = field(default="best_product", metadata=_help("mr2ag: what if no passage is judged relevant"))
    documents: int = field(default=10, metadata=_help("mmkb_rag: passages of the entries to take, the best by words"))
    ret: bool = field(default=True, metadata=_help("mmkb_rag: let RET decide whether to retrieve; else always"))
    srt: bool = field(default=True, metadata=_help("mmkb_rag: let SRT order the documents; else as retrieved"))
    k: Count = field(
        default=AUTO,
        metadata=_help("mmkb_rag: documents to keep; auto: those that reach threshold, and at least 1 (5 without SRT)"),
    )
    threshold: float = field(
        default=0.5, metadata=_help("mmkb_rag: what `k: auto` keeps has at least this [Rel] score")
    )
    mct: Mct = field(default="filter", metadata=_help("mmkb_rag: what MCT does with two documents or more"))
    answer_model: Literal["base", "tuned"] = field(
        default="base", metadata=_help("mmkb_rag: who answers: base_model, or the checkpoint itself")
    )
    max_reply_tokens: int = field(default=128, metadata=_help("mmkb_rag: longest reply of MCT, in tokens"))
    lead: Lead = field(
        default="first_sentence", metadata=_help("what stands before each passage: nothing, or what the entry is")
    )
    max_new_tokens: int = field(default=32, metadata=_help("longest answer, in tokens"))
    token_budget: int | None = field(
        default=None,
        metadata=_help("most tokens in one forward pass; splits work, not text; what the memory has room for if unset"),
    )
    keep_images: int = field(
        default=0, metadata=_help("pictures whose reading is kept for later questions about them, those used last")
    )
    dtype: str = field(default="float32", metadata=_help("float32, bfloat16 or float16"))
    device: str = field(default="auto", metadata=_help("cpu, cuda, cuda:1, or auto: this process's own"))
    dry_run: bool = field(default=False, metadata=_help("say what would be done, and stop"))

    def __post_init__(self) -> None:
        """Read `k`, which a YAML file may hold as a number or as a word."""
        if isinstance(self.k, (int, str)):
            self.k = Count(self.k)

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = self.image_problems()
        issues += [
            f"`{name}` must be at least 1, found {getattr(self, name)}"
            for name in ("top_n", "passages", "max_new_tokens", "token_budget", "documents", "max_reply_tokens")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        issues += [
            f"`{name}` is a probability in [0, 1], found {getattr(self, name)}"
            for name in ("gamma", "threshold")
            if not 0.0 <= getattr(self, name) <= 1.0
        ]
        if not isinstance(self.k, int) or self.k < 0:
            issues.append(f"`k` is auto or a number of documents, at least 1; found {self.k}")
        elif self.k > self.documents:
            issues.append(f"`k` can be at most `documents`, {self.documents}, found {self.k}")
        if self.scheme and self.scheme not in TUNED:
            issues.append(f"`scheme` is one of {', '.join(TUNED)}; found `{self.scheme}`")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            issues.append(f"`dtype` is one of float32, bfloat16, float16; found `{self.dtype}`")
        if not self.dataset:
            issues.append("`dataset` is needed: a data set folder, e.g. the output of build_world")
        elif not Path(self.dataset, "dataset.json").is_file():
            issues.append(f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world wrote")
        if self.index and not Path(self.index, "manifest.json").is_file():
            issues.append(f"`index`: {self.index} has no manifest.json; build it with reflectune.retrieval.build_index")
        return issues + self.reranker_problems()


@dataclass
class EvaluateConfig(MetricConfig, ReadingConfig):
    """Run pipelines over a data set's questions; write traces, metrics.json and report.html."""

    splits: list[str] = field(
        default_factory=lambda: ["val_unseen_question", "val_unseen_entity"], metadata=_help("splits to answer")
    )
    pipelines: list[str] = field(
        default_factory=lambda: ["closed_book", "naive_rag", "oracle", "mr2ag"],
        metadata=_help("of closed_book, naive_rag, oracle, tuned_baselines, mr2ag, mr2ag_oracle or mmkb_rag"),
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
        issues = super().problems() + self.metric_issues(self.dataset)
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
        reflecting = [name for name in asked if name in SCHEME_OF]
        schemes = sorted({SCHEME_OF[name] for name in reflecting})
        if reflecting and not self.model:
            issues.append(f"`model` is needed by {', '.join(reflecting)}: a checkpoint that train/sft.py wrote")
        if len(schemes) > 1:
            issues.append("`pipelines`: mr2ag and mmkb_rag need checkpoints of different schemes; run them one by one")
        elif schemes and self.scheme not in ("", *schemes):
            issues.append(f"`scheme` is {self.scheme}, but {reflecting[0]} needs a checkpoint of scheme {schemes[0]}")
        tuned_plainly = [name for name in asked if name in FORMS["tuned_baselines"]]
        if tuned_plainly and not self.plain_model:
            issues.append(
                f"`plain_model` is needed by {', '.join(tuned_plainly)}: a checkpoint of scheme plain, see build_plain"
            )
        untuned = [name for name in asked if name not in (*reflecting, *tuned_plainly)]
        based = [*untuned, *(name for name in reflecting if name == "mmkb_rag" and self.answer_model == "base")]
        if based and not self.base_model:
            issues.append("`base_model` is needed by " + ", ".join(based))
        if self.batch_questions < 1:
            issues.append(f"`batch_questions` must be at least 1, found {self.batch_questions}")
        if self.limit is not None and self.limit < 1:
            issues.append(f"`limit` must be at least 1, or unset for all questions; found {self.limit}")
        if self.report_questions < 0:
            issues.append(f"`report_questions` must be at least 0, found {self.report_questions}")
        return issues

    def __post_init__(self) -> None:
        """Ask for the scheme of the tuned pipeline that is to be run, if none is named."""
        super().__post_init__()
        schemes = {SCHEME_OF[name] for name in self.forms() if name in SCHEME_OF}
        self.scheme = self.scheme or (schemes.pop() if len(schemes) == 1 else "")

    def forms(self) -> list[str]:
        """The pipelines to run: `naive_rag`, `oracle` and `tuned_baselines` are several each."""
        return list(dict.fromkeys(form for name in self.pipelines for form in FORMS.get(name, (name,))))


@dataclass
class AnswerConfig(ReadingConfig):
    """Answer one question about one image, and show how: with the pipeline of the checkpoint's own scheme."""

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
