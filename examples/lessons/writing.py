"""Run trajectories with the teacher in the model's place and real searches, and keep prompts with replies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.config import Settings
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import load_image
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.examples.lessons.config import LessonSettings, TeacherSettings
from reflectune.examples.lessons.reag import NAME as REAG
from reflectune.examples.lessons.reag import ReagTeacher
from reflectune.examples.lessons.renaming import TitleExchange, renamed
from reflectune.examples.lessons.teacher import TrajectoryTeacher, teacher_of
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import Manifest, build_split
from reflectune.inference.config import ModelSettings, TextIndexSettings
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeEachRequest,
    SearchReply,
    WriteReply,
    WriteRequest,
)
from reflectune.inference.operators.trajectory import TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, relayed
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.running.loading import open_engine, open_entries, open_model, open_texts
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.retrieval.config import RetrieverConfig


def run(
    settings: LessonSettings,
    models: ModelSettings,
    retriever: RetrieverConfig,
    texts: TextIndexSettings,
    pipelines: Mapping[str, Settings],
    decisive: Mapping[str, Any],
) -> None:
    """Write the lessons of a split. A dry run prints those of one question and writes nothing.

    Args:
        settings: Settings of the lessons.
        models: The model to train, and how it is loaded.
        retriever: The index of entries.
        texts: The index of passages, if any.
        pipelines: Settings of the pipelines that are taught, by name.
        decisive: Settings that decide the lessons; their hash is the data's.

    Raises:
        UserError: No question has evidence, the output folder holds other data, or an image is bad.
    """
    dataset = Dataset(Path(settings.dataset))
    questions = _questions(dataset, settings)
    writer = LessonWriter(dataset, settings, models, retriever, texts, pipelines)
    if settings.dry_run:
        print(f"{len(questions):,} questions of {settings.split}; the lessons of the first:")
        for lesson in writer.lessons(questions[:1]):
            for branch, documents in zip(lesson.branches, lesson.shown_documents, strict=True):
                print(f"  {lesson.source}: {documents} → {branch.reply}")
        return
    output, split = Path(settings.output), settings.split
    folders = tuple(str(Path(root).resolve()) for root in dataset.image_roots)
    manifest = Manifest(PLAIN.name, dataset.root, {}, folders)
    key = fingerprint(
        {
            "settings": decisive,
            "dataset": [dataset.fingerprint, dataset.split_fingerprint(split), dataset.manifest.get("image_root", "")],
            "index": retriever.finder_fingerprint(),
            "text_index": texts.texts_fingerprint(),
            "model": writer.renderer.fingerprint,
            "judge": writer.weights if settings.judge == "base_model" else None,
        }
    )
    size = settings.batch_questions
    lessons = build_split(output, split, manifest, key, PromptedExample, questions, size, writer.lessons)
    if lessons is None:
        return
    print(f"{output / split}.parquet: {len(lessons):,} lessons of {len(questions):,} questions")
    counts = Counter(lesson.source for lesson in lessons)
    print("\n".join(f"  {name}: {count:,}" for name, count in sorted(counts.items())))


def _questions(dataset: Dataset, settings: LessonSettings) -> list[Question]:
    """Return the questions of the split that can be taught."""
    split = settings.split
    questions = dataset.questions(split)
    if settings.asks_unaided:
        taught = [question for question in questions if question.answers and question.is_knowledge_based is not False]
    else:
        taught = [question for question in questions if teacher_of(question, dataset.knowledge)]
    if not taught:
        raise UserError(f"`split`: no question of {split} has an answer and its evidence; name another split")
    if left_out := len(questions) - len(taught):
        print(f"{left_out:,} questions of {split} have no answer or no evidence and are left out")
    return drawn(taught, settings)


def drawn(questions: list[Question], settings: TeacherSettings) -> list[Question]:
    """Return at most `limit` of the questions, drawn by seed."""
    if settings.limit is None or len(questions) <= settings.limit:
        return questions
    return random.Random(f"{settings.seed} {settings.split}").sample(questions, settings.limit)


@dataclass
class _Lessons:
    question: Question
    image: Image.Image
    teacher: TrajectoryTeacher | ReagTeacher
    written: list[PromptedExample] = field(default_factory=list)


class LessonWriter:
    """A writer of questions' lessons.

    Args:
        dataset: The data set with images and knowledge base.
        settings: Settings of the lessons.
        models: The base model is the one to train: prompts show as many documents as its context holds.
        retriever: The index of entries.
        texts: The index of passages, if any.
        pipelines: Settings of the pipelines that are taught, by name.
    """

    def __init__(
        self,
        dataset: Dataset,
        settings: LessonSettings,
        models: ModelSettings,
        retriever: RetrieverConfig,
        texts: TextIndexSettings,
        pipelines: Mapping[str, Any],
    ) -> None:
        self._dataset, self._settings, self._pipelines = dataset, settings, pipelines
        loaded = open_model(models, "base_model")
        engine, self.weights = open_engine(models, loaded), [loaded.fingerprint, models.precision]
        self._model, self.renderer = LocalModel(engine, settings.batch_questions), engine.renderer
        titles = (entry.title for entry in texts.article_source(dataset))
        self._titles = TitleExchange(titles) if settings.renamed else None
        self._parts = PipelineParts(
            dataset.knowledge,
            folder=dataset.root,
            engine=engine,
            retriever=open_entries(retriever, dataset, models.device),
            texts=open_texts(texts, dataset, models.device),
        )

    def lessons(self, questions: Sequence[Question]) -> list[PromptedExample]:
        """Return the lessons of all pipelines' trajectories, question by question."""
        images = [load_image(q.image, root=self._dataset.image_roots, needed_by=q.id) for q in questions]
        by_pipeline = [self._trajectories(name, questions, images) for name in self._settings.pipelines]
        return [
            lesson
            for rows in zip(*by_pipeline, strict=True)
            for row in rows
            for written in row
            for lesson in (
                [written]
                if self._titles is None
                else renamed(written, self._settings.renamed, self._titles, self._settings.seed)
            )
        ]

    def _trajectories(
        self, name: str, questions: Sequence[Question], images: Sequence[Image.Image]
    ) -> list[list[PromptedExample]]:
        pipeline = build_pipeline(name, self._pipelines[name], self._parts)
        if not isinstance(pipeline, TrajectoryPipeline):
            raise ValueError(f"{name} has no trajectory")
        begun: dict[str, _Lessons] = {}
        for question, image in zip(questions, images, strict=True):
            begun[question.id] = _Lessons(question, image, self._teacher(name, question))
        pipeline.guided(lambda question, steps: self._taught(name, begun[question.id], steps)).run(questions, images)
        return [begun[question.id].written for question in questions]

    def _teacher(self, name: str, question: Question) -> TrajectoryTeacher | ReagTeacher:
        settings, knowledge = self._settings, self._dataset.knowledge
        teacher = teacher_of(question, knowledge, settings.query_forms)
        if name == REAG:
            lead = self._pipelines[REAG].lead
            return ReagTeacher(question, teacher, knowledge, settings.shares, settings.seed, lead)
        if teacher is None:
            raise ValueError(f"question {question.id} has no evidence")
        return teacher

    def _taught(self, name: str, lessons: _Lessons, steps: Steps[TrajectoryResult]) -> Steps[TrajectoryResult]:
        """Run a trajectory with the teacher's replies; all other steps are carried out."""

        def relay(request: Any) -> Steps[Any]:
            if isinstance(request, WriteRequest):
                return self._replied(name, lessons, request)
            if isinstance(request, JudgeEachRequest) and self._settings.judge == "teacher":
                return self._judged(lessons, request)
            reply = yield request
            if isinstance(reply, SearchReply) and isinstance(lessons.teacher, ReagTeacher):
                lessons.teacher.see(reply)
            return reply

        return relayed(steps, relay)

    def _judged(self, lessons: _Lessons, request: JudgeEachRequest) -> JudgeEachReply:
        """Return the judgement of ReAG's teacher. If the critic is trained, keep it as a lesson."""
        teacher = lessons.teacher
        assert isinstance(teacher, ReagTeacher)  # no other pipeline that is taught judges
        if self._settings.stage == "critic" and (lesson := teacher.critic_lesson(request)):
            lessons.written.append(lesson)
        return teacher.judged(request)

    def _replied(self, name: str, lessons: _Lessons, request: WriteRequest) -> WriteReply:
        """Return the teacher's reply, and keep it as a lesson if there is one."""
        prompt = request.prompt
        shown, rendered = self._model.fit(lessons.image, prompt, request.max_tokens)
        text = self._reply(lessons.teacher, request, shown)
        if text:
            is_asked_only = name == REAG and self._settings.stage == "grpo"
            example = PromptedExample(
                lessons.question.id if is_asked_only else f"{lessons.question.id} {name} {len(lessons.written)}",
                lessons.question.image,
                prompt.texts["question"],
                (PromptedBranch("vqa", reply=text),),
                source=f"{name} {request.operator}",
                template=prompt.template,
                documents=prompt.text(shown)["documents"],
                system=prompt.system,
            )
            lessons.written.append(example)
        return WriteReply(text, shown, len(rendered.ids), len(self.renderer.reply_ids(text)))

    def _reply(self, teacher: TrajectoryTeacher | ReagTeacher, request: WriteRequest, shown: int) -> str:
        """Return the teacher's reply, or "". For GRPO it is the accepted answer, whatever the prompt shows."""
        if not isinstance(teacher, ReagTeacher):
            return teacher.reply(request, shown)
        if self._settings.stage == "grpo":
            return canonical_answer(teacher.question)
        if self._settings.stage == "critic":
            return ""
        documents = request.prompt.documents[:shown]
        return teacher.thoughts(documents) if self._pipelines[REAG].think else teacher.answer(documents)
