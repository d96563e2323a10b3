"""Questions of the page, answered with the gate open and closed, and stored for permalinks."""

from __future__ import annotations

import dataclasses
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.rows import from_row
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.decisions import Alternatives, Controls, closed_settings, opened_settings
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings
from reflectune.inference.pipelines.mr2ag import ChoiceSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.inference.report.data import data_uri
from reflectune.inference.serving.bodies import MAX_CHARACTERS
from reflectune.inference.serving.images import read_image
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.serving.views import AskedQuestion
from reflectune.inference.trace import Trace
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever

ENTRIES: Final = 10
"""Minimum number of entries that are judged, so that the sliders can select fewer or others of them."""
KEPT: Final = 200
"""Number of latest questions with permalinks."""
SIDE: Final = 256
"""Longer side of a thumbnail, in pixels."""
_BUILT: Final = 64
"""Maximum number of cached pipelines with other settings."""


class PageQuestions:
    """Asks a service the page's questions, and stores the latest ones.

    Attributes:
        service: The service.
        name: The pipeline that decides.
        scheme: Its checkpoint's scheme.
        settings: Its settings.
        entries: Number of entries that are judged.
    """

    def __init__(self, service: AnswerService, name: str) -> None:
        """Build the pipeline with its gate open, and with its gate closed, over the models of the service."""
        self.service, self.name, self._recipe = service, name, find_recipe(name)
        self.scheme = self._recipe.scheme
        self.settings = self._recipe.settings_of(service.config)
        self.entries = DepthSettings.of(opened_settings(self.settings, ENTRIES)).top_n
        self._closed = self._recipe.make(name, closed_settings(self.settings), service.parts[name])
        self._opened = lru_cache(maxsize=_BUILT)(self._build_opened)
        self._asked: OrderedDict[str, AskedQuestion] = OrderedDict()
        self._lock = threading.Lock()
        self._entry = lru_cache(maxsize=2048)(self._read_entry)

    def ask(self, question: str, image: bytes, controls: Controls | None = None) -> Iterator[AskedQuestion]:
        """Answer a question with the gate open, with the gate closed, and by the other pipelines.

        Args:
            question: The question.
            image: The image's file.
            controls: Settings of the search and the reading; None for those of the service.

        Yields:
            The question with the gate, then with the entries, without an id; last with everything.

        Raises:
            UserError: The question can't be used.
            RequestProblem: The image can't be used.
        """
        service, weights = self.service, RetrieverConfig.of(self.service.config)
        title_weight, update = self._model_settings(controls)
        if not image:
            raise UserError("an image is needed; drop, paste or photograph one")
        if len(question) > MAX_CHARACTERS:
            raise UserError(f"the question has {len(question):,} characters; at most {MAX_CHARACTERS:,} are read")
        decoded = read_image(image)
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        opened = service.submit(question, decoded, self._opened(title_weight, update), events.put)
        opened.add_done_callback(lambda _: events.put(None))
        others = {self.plain(name): service.submit(question, decoded, name) for name in self.others()}
        closed, trace = service.submit(question, decoded, self._closed), Trace("", self.name)
        futures = [opened, closed, *others.values()]
        alternatives = Alternatives(trace, trace, self.scheme, title_weight, weights.summary_share)
        asked = AskedQuestion("", question, data_uri(decoded, SIDE), alternatives)
        try:
            while (event := events.get()) is not None:
                if event.name == "gate":
                    trace = dataclasses.replace(trace, gate=event.data["gate"])
                elif event.name == "hits":
                    trace = dataclasses.replace(trace, hits=tuple(from_row(Hit, row) for row in event.data["hits"]))
                else:
                    continue
                yield self._with(asked, trace)
            asked = dataclasses.replace(
                self._with(asked, opened.result(), closed.result()),
                id=secrets.token_urlsafe(9),
                others={name: future.result() for name, future in others.items()},
            )
        finally:  # the visitor may have left before the answer
            for future in futures:
                future.cancel()
        with self._lock:
            self._asked[asked.id] = asked
            if len(self._asked) > KEPT:
                self._asked.popitem(last=False)
        yield asked

    def others(self) -> list[str]:
        """Return the pipelines to compare with."""
        return [name for name in self.service.pipelines if name != self.name]

    def plain(self, name: str) -> str:
        """Return a pipeline's plain name."""
        return find_recipe(name).plain_name(self.service.config)

    def find(self, question_id: str) -> AskedQuestion | None:
        """Return a stored question by the id of its permalink; None if it has expired."""
        return self._asked.get(question_id)

    def _model_settings(self, controls: Controls | None) -> tuple[float, tuple[tuple[str, Any], ...]]:
        """Return the weight of titles, and the settings that need a run of the model. mR²AG needs none."""
        weight = RetrieverConfig.of(self.service.config).title_weight
        if controls is None:
            return weight, ()
        weight = weight if controls.title_weight is None else controls.title_weight
        if isinstance(self.settings, MmkbRagSettings):
            return weight, (("threshold", controls.threshold), ("k", controls.documents or "auto"))
        if isinstance(self.settings, ChoiceSettings):
            return weight, ()
        return weight, (("top_n", controls.entries or ENTRIES),)

    def _build_opened(self, title_weight: float, update: tuple[tuple[str, Any], ...]) -> Pipeline:
        """Build the pipeline with its gate open and other settings."""
        recipe, config = self._recipe, RetrieverConfig.of(self.service.config)
        settings = opened_settings(self.settings, ENTRIES).model_copy(update=dict(update))
        parts = self.service.parts[self.name]
        if isinstance(parts.retriever, EntryRetriever) and title_weight != config.title_weight:
            weighted = parts.retriever.weighted(title_weight=title_weight, summary_share=config.summary_share)
            parts = dataclasses.replace(parts, retriever=weighted)
        if isinstance(self.settings, ChoiceSettings) and recipe.answer_each is not None:
            return recipe.answer_each(settings, parts)
        return recipe.make(self.name, settings, parts)

    def _with(self, asked: AskedQuestion, opened: Trace, closed: Trace | None = None) -> AskedQuestion:
        """Add a question's traces, and titles and images of its entries."""
        alternatives = dataclasses.replace(asked.alternatives, opened=opened, closed=closed or opened)
        entries = {hit.entry_id: self._entry(hit.entry_id) for hit in opened.hits}
        return dataclasses.replace(asked, alternatives=alternatives, entries=entries)

    def _read_entry(self, entry_id: str) -> tuple[str, str]:
        knowledge, roots = self.service.dataset.knowledge, self.service.dataset.image_roots
        entry = knowledge.get(entry_id)
        try:
            image = (
                load_image(knowledge.image_path(entry), root=(knowledge.image_root, *roots)) if entry.images else None
            )
        except (UserError, OSError):
            image = None
        return entry.title, data_uri(image, SIDE) if image else ""
