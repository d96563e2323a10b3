"""Settings of `write_lessons.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed, output_of
from reflectune.examples.lessons.reag import NAME as REAG
from reflectune.examples.lessons.reag import CriticShares, LessonStage
from reflectune.examples.lessons.teacher import FORMS
from reflectune.formats.dataset import SplitKey
from reflectune.inference.config import DatasetSettings, ModelSettings
from reflectune.inference.pipelines.registry import find_recipe, pipeline_settings
from reflectune.inference.pipelines.requirements import BUDGET, REMOTE
from reflectune.models.rendering.turns import Slot, prompt_parts
from reflectune.retrieval.config import RetrieverConfig

TAUGHT: Final = ("mi_rag", "pmsr", REAG)
"""Pipelines that the teacher can reply to."""
_UNTAUGHT: Final = ("gate_filter", "gate_stop", "pair_images", "extract_answer", "answer_form")
"""Keys of these pipelines that lessons are written without."""


# Type checkers see no keys of pipelines here: only the pipelines' own files may read them.
if TYPE_CHECKING:
    TaughtPipelines = Settings
else:
    TaughtPipelines = pipeline_settings(TAUGHT, without=(REMOTE, BUDGET))


class ReagLessonKeys(Settings):
    """Settings of ReAG's lessons, for one of its three stages of training."""

    stage: LessonStage = setting(
        "critic",
        "reag: critic: Yes and No about passages; answer: thoughts and an answer; grpo: the answer's prompt, with the "
        "accepted answer",
    )
    judge: Literal["teacher", "base_model"] = setting(
        "teacher", "reag, answer and grpo: who keeps passages: the teacher, or base_model as the critic"
    )
    negatives: int = setting(4, "reag, critic: passages that don't state the answer, for each that does", ge=1)
    hard_share: float = setting(
        0.7, "reag, critic: share of the negatives among the found passages; the rest is of any entry", ge=0, le=1
    )
    distractors: int = setting(
        2, "reag, judge teacher: most passages without the answer that are kept in addition", ge=0
    )

    @cross_check
    def reag_problems(self) -> Iterator[str]:
        """Yield the problem of keys that must fit each other."""
        if self.stage == "critic" and self.judge == "base_model":
            yield "`judge: base_model` means nothing for `stage: critic`, which teaches that very model"

    @property
    def shares(self) -> CriticShares:
        """The number of passages in a lesson."""
        return CriticShares(self.negatives, self.hard_share, self.distractors)


class TeacherSettings(SplitKey, DatasetSettings):
    """Settings of a teacher: its questions and its queries."""

    query_forms: list[str] = setting(
        list(FORMS),
        "forms of the teacher's query, and of MI-RAG's second one or ProMSA's next: texts with {title} and {heading}",
    )
    limit: int | None = setting(None, "questions, drawn by seed; all if unset", ge=1)
    batch_questions: int = setting(32, "questions looked up together", ge=1)
    seed: Seed = setting(0, "seed of sampling")

    @cross_check
    def query_problems(self) -> Iterator[str]:
        """Yield the problems of the forms of queries."""
        if problem := next(filter(None, map(_form_problem, self.query_forms)), ""):
            yield f"`query_forms`: {problem}"
        elif len(self.query_forms) != 2:
            yield f"`query_forms` are two texts; found {len(self.query_forms)}"


class LessonSettings(ReagLessonKeys, TeacherSettings):
    """Settings of lessons: the questions, whose prompts are taught, and the teacher's queries."""

    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the data", needed="", hashed=False)
    pipelines: list[str] = setting(["mi_rag", "pmsr"], "whose prompts, of " + ", ".join(TAUGHT))
    renamed: int = setting(
        0, "times each lesson is kept, with titles exchanged for others of the same last word; 0: as it is", ge=0
    )

    @cross_check
    def pipeline_problems(self) -> Iterator[str]:
        """Yield the problems of the pipelines."""
        unknown = [name for name in self.pipelines if name not in TAUGHT]
        yield from [f"`pipelines`: no teacher for `{name}`; there is one for {', '.join(TAUGHT)}" for name in unknown]
        if not self.pipelines or len(set(self.pipelines)) < len(self.pipelines):
            yield f"`pipelines` should name at least one, each once; found {self.pipelines}"

    @cross_check
    def idle_problems(self) -> Iterator[str]:
        """Yield the keys that mean nothing."""
        if self.renamed and REAG in self.pipelines and self.stage == "grpo":
            yield "`renamed` means nothing for `stage: grpo`: rewards are of the questions' own answers"

    @property
    def asks_unaided(self) -> bool:
        """True if every question with an answer can be taught, since no teacher has to know its evidence."""
        return self.pipelines == [REAG] and self.stage == "grpo" and self.judge == "base_model"


class LessonsConfig(LessonSettings, ModelSettings, TaughtPipelines):
    """Write the prompts of an iterative pipeline, with ideal replies, as training data of scheme plain."""

    @cross_check
    def missing_parts(self) -> Iterator[str]:
        """Yield the model and the index that are missing."""
        values = {"base_model": self.base_model, "index": RetrieverConfig.of(self).index}
        yield from [f"`{name}` is needed" for name, value in values.items() if not value]

    @cross_check
    def untaught_problems(self) -> Iterator[str]:
        """Yield the keys of steps that a teacher doesn't do, and of prompts that a lesson doesn't hold."""
        given = [name for name in _UNTAUGHT if getattr(self, name) != type(self).model_fields[name].default]
        yield from (f"`{name}` is for evaluate: no lesson is written with it; leave it out" for name in given)

    def hashed(self) -> dict[str, Any]:
        """Return the settings that decide the lessons: of the pipelines, those of the ones that are taught."""
        retriever = RetrieverConfig.of(self)
        unused = () if REAG in self.pipelines else ReagLessonKeys.model_fields
        lessons = LessonSettings.of(self).hashed()
        return {
            "lessons": {name: value for name, value in lessons.items() if name not in unused},
            "pipelines": {name: settings.hashed() for name, settings in self.taught().items()},
            "retriever": [retriever.title_weight, retriever.summary_share],
            "images": self.image_settings(),
        }

    def taught(self) -> dict[str, Settings]:
        """Return the settings of each pipeline that is taught."""
        return {name: find_recipe(name).settings_of(self) for name in self.pipelines}


def _form_problem(form: str) -> str:
    slots = {part.name for part in prompt_parts(form) if isinstance(part, Slot)}
    if "title" not in slots:
        return f"`{form}` has no slot {{title}}"
    if unknown := sorted(slots - {"title", "heading"}):
        return f"`{form}` has the slot `{unknown[0]}`; it can have `title` and `heading`"
    return ""
