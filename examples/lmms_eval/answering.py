"""Answer a benchmark's questions by the base model, or in a mode of a reflecting checkpoint.

Nothing here knows lmms-eval; `adapter` converts its requests and replies.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.config import Settings
from reflectune.core.errors import UserError
from reflectune.core.types import AnswerStyle, AnswerType, Question
from reflectune.examples.lmms_eval.config import BenchmarkSettings, Mode
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe, reflecting
from reflectune.inference.running.loading import open_engine, open_entries, open_plain, open_tuned
from reflectune.inference.trace import Trace
from reflectune.models.loading import Loaded
from reflectune.models.schemes.registry import find_scheme
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.queries import Query, Weights

ANSWER_TYPES: Mapping[AnswerStyle, AnswerType] = {"free": "free_form", "short": "string", "list": "multi_answer"}


@dataclass(frozen=True)
class BenchmarkRequest:
    """A document of a benchmark.

    Attributes:
        task: The benchmark.
        doc_id: The document's position in it.
        text: The question with the benchmark's own instruction.
        image: Its image.
        max_new_tokens: The longest answer; None if the benchmark sets none.
        stops: Texts that end an answer and are not included in it.
    """

    task: str
    doc_id: int
    text: str
    image: Image.Image
    max_new_tokens: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchmarkReply:
    """The reply to a request.

    Attributes:
        text: Text without reflection tokens, cut at a stop.
        mode: The mode that answered.
        checkpoint: The fingerprint of the model's weights, tokens and template.
        style: Style of our instruction; `free` adds none.
        gamma: The gate's threshold γ.
        gate: P([Retrieval]) / (P([Retrieval]) + P([No Retrieval])); None for the base model.
        opened: True if the gate decides to retrieve, whatever the mode does then; None for the base model.
        entries: Retrieved entries, best first.
        tokens: Number of generated tokens, without the gate's; None if the trace doesn't count them.
    """

    text: str
    mode: Mode
    checkpoint: str
    style: AnswerStyle = "free"
    gamma: float | None = None
    gate: float | None = None
    opened: bool | None = None
    entries: tuple[str, ...] = ()
    tokens: int | None = None

    @property
    def decision(self) -> dict[str, Any]:
        """The decision as lmms-eval's sample files keep it, for `table.py`."""
        found = {"mode": self.mode, "checkpoint": self.checkpoint, "style": self.style}
        gate = {"gamma": self.gamma, "gate": self.gate, "opened": self.opened, "entries": [*self.entries]}
        return found if self.opened is None else {**found, **gate}


def read_request(
    task: str, doc_id: int, text: str, visuals: Sequence[Any], generation: Mapping[str, Any]
) -> BenchmarkRequest:
    """Convert a document of lmms-eval.

    Args:
        task: The benchmark.
        doc_id: The document's position in it.
        text: The question.
        visuals: One image.
        generation: The benchmark's `generation_kwargs`.

    Raises:
        UserError: It has no image, several, or a video; or it asks for sampled answers or beams.
    """
    where = f"{task}, document {doc_id}"
    if len(visuals) != 1 or not isinstance(visuals[0], Image.Image):
        kinds = ", ".join(type(visual).__name__ for visual in visuals) or "none"
        raise UserError(f"{where}: a question needs one image, found {len(visuals)} ({kinds}); leave the task out")
    if (
        generation.get("do_sample")
        or (generation.get("temperature") or 0) > 0
        or (generation.get("num_beams") or 1) > 1
    ):
        raise UserError(
            f"{where}: answers are greedy here, but the task wants samples or beams; give "
            "--gen_kwargs do_sample=False,temperature=0,num_beams=1, for every model that is compared"
        )
    stops = generation.get("until") or ()
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    return BenchmarkRequest(task, doc_id, text, visuals[0].convert("RGB"), generation.get("max_new_tokens"), stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """Cut an answer at the first stop.

    Example:
        >>> cut("a cat\\n\\nASSISTANT: a dog", ["ASSISTANT:", "\\n\\n"])
        'a cat'
    """
    ends = [end for stop in stops if stop and (end := text.find(stop)) >= 0]
    return text[: min(ends)].strip() if ends else text


class BenchmarkAnswerer:
    """Answers requests in the config's mode.

    In every mode but `base` the checkpoint's own pipeline runs, so that nothing but the mode differs. `no_retrieval`
    raises γ above every probability. `gate` retrieves nothing: a question whose gate opens stays unanswered, as
    the model's own reply after [Retrieval] is.

    An answer may have as many tokens as the task allows; the gate is read or forced, so it takes none. No answer may
    take more than half of the model's context, since the prompt needs the other half.

    Args:
        settings: The mode, and the length and style of answers.
        models: The models, and how they are loaded.
        retriever: For mode `pipeline`, the index of the data set's knowledge base.
        pipelines: Settings of the pipelines that may answer, by name.

    Raises:
        UserError: A model, the knowledge base or the index is bad, or the checkpoint doesn't reflect.
    """

    def __init__(
        self,
        settings: BenchmarkSettings,
        models: ModelSettings,
        retriever: RetrieverConfig,
        pipelines: Mapping[str, Any],
    ) -> None:
        self._settings, self._models, self._retriever = settings, models, retriever
        if settings.mode == "base":
            loaded = open_plain(models, models.base_model)
            self._name = "closed_book"
            parts = PipelineParts(_no_knowledge(), engine=open_engine(models, loaded))
        else:
            loaded = open_tuned(models)
            self._name = _scheme_of(loaded)
            parts = self._reflecting_parts(loaded, pipelines[self._name])
        self._own = pipelines[self._name]
        self.checkpoint = loaded.fingerprint
        self._parts = parts
        for engine in (parts.engine, parts.base):
            if engine is not None:
                engine.renderer.keeps_lines = True
        self._longest = max(1, min(e.max_length for e in (parts.engine, parts.base) if e is not None) // 2)
        self._pipeline = functools.cache(self._build)

    def answer(self, requests: Iterable[BenchmarkRequest]) -> Iterator[BenchmarkReply]:
        """Yield a reply per request, in order. Requests, and so their images, are taken batch by batch."""
        remaining, answer_type = iter(requests), ANSWER_TYPES[self._settings.answer_style]
        while batch := list(islice(remaining, self._settings.batch_questions)):
            limits = [min(request.max_new_tokens or self._settings.max_new_tokens, self._longest) for request in batch]
            replies: dict[int, BenchmarkReply] = {}
            for limit in sorted(set(limits)):
                rows = [row for row, longest in enumerate(limits) if longest == limit]
                chosen = [batch[row] for row in rows]
                questions = [
                    Question(f"{request.task}_{request.doc_id}", image="", text=request.text, answer_type=answer_type)
                    for request in chosen
                ]
                traces = self._pipeline(limit).run(questions, [request.image for request in chosen])
                for row, request, trace in zip(rows, chosen, traces, strict=True):
                    replies[row] = self._reply(request, trace)
            yield from (replies[row] for row in range(len(batch)))

    def _build(self, limit: int) -> Pipeline:
        forced = {"gamma": math.inf} if self._settings.mode == "no_retrieval" else {}
        own = self._own.model_copy(update={"max_new_tokens": limit, **forced})
        return build_pipeline(self._name, own, self._parts)

    def _reply(self, request: BenchmarkRequest, trace: Trace) -> BenchmarkReply:
        mode = self._settings.mode
        text = "" if mode == "gate" and trace.retrieved else cut(trace.answer, request.stops)
        tokens, style = trace.tokens.get("generated"), self._settings.answer_style
        if mode == "base":
            return BenchmarkReply(text, mode, self.checkpoint, style, tokens=tokens)
        gamma, opens = self._own.gamma, find_scheme(self._name).retrieves
        return BenchmarkReply(
            *(text, mode, self.checkpoint, style, gamma, trace.gate),
            opened=opens(trace.gate or 0.0, gamma) if mode == "no_retrieval" else trace.retrieved,
            entries=tuple(hit.entry_id for hit in trace.hits),
            tokens=tokens,
        )

    def _reflecting_parts(self, loaded: Loaded, own: Settings) -> PipelineParts:
        """Return the parts of a checkpoint's pipeline. Only in mode `pipeline` its retriever finds anything."""
        models = self._models
        with_base = find_recipe(self._name).models(own).base_answers
        if with_base and not models.base_model:
            raise UserError(
                f"`base_model` is needed: {models.model} only reflects (answer_model: base); name the plain model that "
                "is to answer, or set answer_model: tuned"
            )
        engine = open_engine(models, loaded)
        base = open_engine(models, open_plain(models, models.base_model)) if with_base else None
        if self._settings.mode != "pipeline":
            return PipelineParts(_no_knowledge(), engine=engine, base=base, retriever=NothingFound())
        dataset = Dataset(Path(self._settings.dataset))
        retriever = open_entries(self._retriever, dataset, models.device)
        return PipelineParts(dataset.knowledge, engine=engine, base=base, retriever=retriever)


class NothingFound:
    """A retriever that finds nothing."""

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return no hits for each query."""
        return [[] for _ in queries]


def _scheme_of(loaded: Loaded) -> str:
    """Return the name of a checkpoint's scheme, and so of its pipeline; UserError if it doesn't reflect."""
    name = loaded.scheme.name if loaded.scheme else ""
    if name not in reflecting():
        raise UserError(
            f"`model`: {loaded.name} was fine-tuned with the scheme {name}, which doesn't reflect; give it as "
            "`base_model`, with mode: base"
        )
    return name


def _no_knowledge() -> KnowledgeBase:
    with tempfile.TemporaryDirectory() as folder:
        return write_knowledge_base(folder, [], name="none")
