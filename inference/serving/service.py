"""Answer questions from many threads: a worker thread answers waiting questions in batches."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit, PassageHit
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.registry import all_forms, build_pipeline
from reflectune.inference.running.parts import open_pipelines
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.events import Event, events_between
from reflectune.inference.trace import Trace, observed_by
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query

_PAUSE: Final = 0.01
"""Seconds to wait for further questions after a batch of several, so that its clients can ask again together."""
_FAILURES: Final = 3
"""Number of consecutive failed tasks after which the server is unhealthy, as after a CUDA error."""
_KEPT_BATCHES: Final = 64
"""Number of batches of images whose vectors stay cached. Few, since a batch rarely repeats on a server."""


@dataclass(eq=False)
class _Task:
    """A question that waits for its answer, or a function that waits for the models."""

    future: Future[Any]
    pipeline: Pipeline | None = None
    question: Question | None = None
    image: Image.Image | None = None
    on_event: Callable[[Event], None] | None = None
    function: Callable[[], Any] | None = None
    shown: Trace | None = None

    def show(self, trace: Trace) -> None:
        """Send the events of a partial trace. Each is sent once, even if the question is retried."""
        if self.on_event:
            for event in events_between(self.shown, trace):
                self.on_event(event)
        if self.shown is None or all(map(operator.ge, _progress(trace), _progress(self.shown))):
            self.shown = trace


class AnswerService:
    """Serves the pipelines of a config to any number of threads.

    A single worker thread uses the models. It answers waiting questions of a pipeline as one batch, and runs searches
    between batches.

    Attributes:
        config: The config.
        dataset: The data set with its knowledge base.
        pipelines: Names of the pipelines; the first is the default.
        parts: Parts of each pipeline, by name, from which pipelines with other settings can be built.
        on_batch: Called with a pipeline's name and the number of questions before each batch.

    Raises:
        UserError: A model, the index or the data set can't be read.

    Example:
        >>> with AnswerService(config) as service:
        ...     trace = service.submit("What does it eat?", image).result()
        ...     later = service.submit("What does it eat?", image, "closed_book", on_event=print)
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config, self.dataset = config, Dataset(Path(config.dataset))
        self.pipelines: tuple[str, ...] = tuple(config.forms())
        self.on_batch: Callable[[str, int], None] = lambda pipeline, questions: None
        self._resources = ExitStack()
        self._shared, self.parts = open_pipelines(config, config.recipes(), self.dataset, self._resources)
        if isinstance(self._shared.retriever, EntryRetriever):
            self._shared.retriever.max_cached = _KEPT_BATCHES
        self._built = {name: build_pipeline(name, config, parts) for name, parts in self.parts.items()}
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._tasks: deque[_Task] = deque()  # taken from the queue, but not started
        self._numbers, self._closed, self._lock = itertools.count(), False, threading.Lock()
        self._failed = 0
        self._worker = threading.Thread(target=self._work, name="answers", daemon=True)
        self._worker.start()

    def __enter__(self) -> AnswerService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer the waiting questions, then stop the worker. Later questions are refused."""
        with self._lock:
            is_first, self._closed = not self._closed, True
        if is_first:
            self._waiting.put(None)
        self._worker.join()
        self._resources.close()

    def pipeline_named(self, name: str) -> str:
        """Return the pipeline that a request names: the default for "", and the first one of a form like `naive_rag`.

        Raises:
            UserError: It is not served.
        """
        served = [form for form in (name, *all_forms().get(name, ())) if form in self.pipelines]
        if name and not served:
            raise UserError(f"unknown pipeline `{name[:100]}`; one of {', '.join(self.pipelines)}")
        return served[0] if name else self.pipelines[0]

    def submit(
        self,
        question: str,
        image: Image.Image,
        pipeline: str | Pipeline = "",
        on_event: Callable[[Event], None] | None = None,
    ) -> Future[Trace]:
        """Enqueue a question.

        Args:
            question: The question.
            image: The image.
            pipeline: A name for `pipeline_named`, or a pipeline built from `parts`.
            on_event: Called on the worker's thread with each event except `done`.

        Returns:
            Future of the trace. Cancelling it removes the question from the queue.

        Raises:
            UserError: The pipeline is not served, or the question is empty.
        """
        chosen = self._built[self.pipeline_named(pipeline)] if isinstance(pipeline, str) else pipeline
        number = next(self._numbers)
        asked = Question(f"question_{number}", image="", text=question, answer_type=self.config.answer_type)
        if not question.strip():
            raise UnusableInput("the question is empty; ask one")
        return self._put(_Task(Future(), chosen, asked, image, on_event))

    def search_texts(self, queries: Sequence[str], top: int) -> Future[list[list[PassageHit]]]:
        """Find the `top` best passages of each query.

        Raises:
            UserError: `text_index` was not given.
        """
        if (texts := self._shared.texts) is None:
            raise UserError("no index of passages is served; start the server with `text_index`")
        return self._put(_Task(Future(), function=lambda: texts.search(queries, top)))

    def search_images(
        self, images: Sequence[Image.Image], top: int, excluded: Sequence[str] = ()
    ) -> Future[list[list[Hit]]]:
        """Find the `top` best entries of each image, without the excluded entries.

        Raises:
            UserError: `index` was not given.
        """
        if (retriever := self._shared.retriever) is None:
            raise UserError("no index of entries is served; start the server with `index`")
        left_out = set(excluded)

        def search() -> list[list[Hit]]:
            found = retriever.search([Query(image) for image in images], top + len(left_out))
            kept = [[hit for hit in hits if hit.entry_id not in left_out][:top] for hits in found]
            return [[dataclasses.replace(hit, rank=n) for n, hit in enumerate(hits, start=1)] for hits in kept]

        return self._put(_Task(Future(), function=search))

    def waiting(self) -> int:
        """Return the number of questions and searches that have not started."""
        return self._waiting.qsize() + len(self._tasks)

    def is_healthy(self) -> bool:
        """Return False if the worker has stopped, or the latest tasks failed by other errors than UserError."""
        return self._worker.is_alive() and self._failed < _FAILURES

    def _put(self, task: _Task) -> Future[Any]:
        with self._lock:
            if self._closed:
                raise UserError("the service is closed; start it again")
            self._waiting.put(task)
        return task.future

    def _work(self) -> None:
        tasks, is_open, answered = self._tasks, True, 0
        while is_open or tasks:
            is_open = is_open and self._collect(_PAUSE if answered > 1 else 0)
            batch = [
                task
                for task in _next_batch(tasks, self.config.batch_questions)
                if task.future.set_running_or_notify_cancel()
            ]
            self._run(batch)
            answered = len(batch)

    def _collect(self, pause: float) -> bool:
        """Append waiting tasks, at least one, until none arrives for `pause` seconds.

        Returns:
            False if the service was closed.
        """
        while True:
            try:
                task = self._waiting.get(timeout=pause if self._tasks else None)
            except queue.Empty:
                return True
            if task is None:
                return False
            self._tasks.append(task)

    def _run(self, tasks: Sequence[_Task]) -> None:
        """Complete started tasks; if a batch fails, retry each of its questions alone."""
        if not tasks:
            return
        first = tasks[0]
        try:
            if first.function is not None:
                results = [first.function()]
            else:
                assert first.pipeline is not None
                self.on_batch(first.pipeline.name, len(tasks))
                results = self._answer(first.pipeline, tasks)
        except Exception as error:
            if len(tasks) > 1:
                for task in tasks:
                    self._run([task])
            else:
                self._failed += not isinstance(error, UserError)
                first.future.set_exception(error)
            return
        self._failed = 0
        for task, result in zip(tasks, results, strict=True):
            task.future.set_result(result)

    def _answer(self, pipeline: Pipeline, tasks: Sequence[_Task]) -> list[Trace]:
        by_id = {task.question.id: task for task in tasks if task.question}
        questions = [task.question for task in tasks if task.question]
        with observed_by(lambda trace: by_id[trace.question_id].show(trace)):
            traces = pipeline.run(questions, [task.image for task in tasks if task.image])
        for task, trace in zip(tasks, traces, strict=True):
            task.show(trace)
        return traces


def _progress(trace: Trace) -> tuple[int, ...]:
    """Return the counts of a partial trace's decisions, which only grow while a question is answered."""
    return trace.gate is not None, len(trace.hits), len(trace.passages), len(trace.steps)


def _next_batch(tasks: deque[_Task], max_size: int) -> list[_Task]:
    """Remove and return the first task, with later questions of its pipeline. A search is a batch of its own."""
    if not tasks:
        return []
    first = tasks.popleft()
    if first.pipeline is None:
        return [first]
    others = [task for task in tasks if task.pipeline is first.pipeline][: max_size - 1]
    for task in others:
        tasks.remove(task)
    return [first, *others]
