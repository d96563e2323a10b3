"""Export traces as OpenTelemetry spans with OpenInference attributes, which Phoenix and other collectors show."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.inference.trace import PassageTrace, Step, Trace
from reflectune.models.rendering.turns import passage_text

if TYPE_CHECKING:  # an extra
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

KINDS: Final = {"search": "RETRIEVER", "rerank": "RERANKER", "judge": "EVALUATOR", "verify": "EVALUATOR"}
"""Span kind of a step by its operator; all others are LLM."""
_BATCH: Final = 50
"""Traces per export request."""


def new_provider() -> TracerProvider:
    """Return a provider of tracers whose spans are in the project `reflectune`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    names = {"service.name": "reflectune", "openinference.project.name": "reflectune"}
    return TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)


def send_traces(traces: Iterable[Trace], questions: Mapping[str, str], endpoint: str) -> int:
    """Send traces to a collector by OTLP over HTTP, and return their number.

    Args:
        traces: The traces.
        questions: Texts of questions by id; a question without one is shown by its id.
        endpoint: The collector's address, e.g. `http://localhost:6006/v1/traces`. Headers are read from the variable
            `OTEL_EXPORTER_OTLP_HEADERS`, as OpenTelemetry does.

    Raises:
        UserError: The collector didn't accept the spans.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, memory, provider = OTLPSpanExporter(endpoint=endpoint), InMemorySpanExporter(), new_provider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer, count = provider.get_tracer("reflectune"), 0

    def flush() -> None:
        spans = memory.get_finished_spans()
        if spans and exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise UserError(f"`otlp`: {endpoint} didn't accept the spans; start a collector there, or fix the address")
        memory.clear()

    for count, trace in enumerate(traces, start=1):
        record(tracer, trace, questions.get(trace.question_id, trace.question_id))
        if count % _BATCH == 0:
            flush()
    flush()
    return count


def record(tracer: Tracer, trace: Trace, question: str) -> None:
    """Record a trace as a span with a child for each step. It ends now and lasts as long as all steps."""
    from opentelemetry.trace import StatusCode

    spans = _Spans(tracer, time.time_ns() - int(1e9 * sum(trace.seconds.values())))
    facts = {"question_id": trace.question_id, "fallback": trace.fallback, "ended": trace.ended, **trace.tokens}
    root = spans.start(trace.pipeline, "CHAIN", None, question, trace.answer, facts)
    seconds = dict(trace.seconds)
    if trace.gate is not None:
        decided = "retrieve" if trace.retrieved else "answer from the image"
        spans.add("gate", "EVALUATOR", root, question, decided, {"probability": trace.gate}, seconds.pop("gate", 0))
    if trace.hits:
        found = _documents([(hit.entry_id, "", hit.score, {"rank": hit.rank}) for hit in trace.hits])
        spans.add("retrieve", "RETRIEVER", root, question, "", {}, seconds.pop("retrieve", 0), **found)
    judged = [passage for passage in trace.passages if passage.s_rel is not None]
    if judged:
        lasted = seconds.pop("judge", 0)
        judging = spans.start("judge", "CHAIN", root, question, f"{sum(p.relevant for p in judged)} relevant", {})
        for passage in judged:
            scores = {"s_ret": passage.s_ret, "s_rel": passage.s_rel, "s_irr": passage.s_irr}
            verdict = "relevant" if passage.relevant else "irrelevant"
            read, name = passage_text(passage.passage), f"judge {passage.passage.id}"
            spans.add(name, "EVALUATOR", judging, read, verdict, scores, lasted / len(judged))
        spans.end(judging)
    left = sum(seconds.values())
    for step in trace.steps:
        _record_step(spans, root, step, question, left / len(trace.steps))
    if not trace.steps:
        _record_answers(spans, root, trace, question, left)
    root.set_status(StatusCode.ERROR if trace.error else StatusCode.OK, trace.error or None)
    spans.end(root)


def _record_answers(spans: _Spans, root: Span, trace: Trace, question: str, seconds: float) -> None:
    """Record each passage's answer, or the single answer from all passages or from none."""
    read = [(row, passage) for row, passage in enumerate(trace.passages) if passage.answer is not None]
    for row, passage in read:
        facts = {"s_ans": passage.s_ans, "chosen": row == trace.chosen}
        source = _documents([_document(passage.passage, passage)])
        name = f"answer from {passage.passage.id}"
        spans.add(name, "LLM", root, question, str(passage.answer), facts, seconds / len(read), **source)
    if not read and not trace.error:
        rows = trace.used or range(len(trace.passages))
        used = [_document(trace.passages[row].passage, trace.passages[row]) for row in rows]
        facts = {"s_ans": trace.confidence}
        spans.add("answer", "LLM", root, question, trace.answer, facts, seconds, **_documents(used))


def _record_step(spans: _Spans, root: Span, step: Step, question: str, seconds: float) -> None:
    found = [(hit.passage_id, "", hit.score, {"base": hit.base, "rank": hit.rank}) for hit in step.found]
    counts = {"llm.token_count.prompt": step.read, "llm.token_count.completion": step.generated}
    facts = {"iteration": step.iteration, "probability": step.probability, "refused": step.refused}
    asked, kind = "\n".join(step.queries) or question, KINDS.get(step.operator, "LLM")
    more = _documents(found) | (counts if kind == "LLM" else {})
    spans.add(step.operator, kind, root, asked, step.text, facts, seconds, **more)


Document = tuple[str, str, float | None, dict[str, Any]]
"""Id, text, score and further facts."""


def _document(passage: Passage, scored: PassageTrace) -> Document:
    return passage.id, passage_text(passage), scored.s_rel, {"s_ret": scored.s_ret, "title": passage.title}


def _documents(documents: Iterable[Document]) -> dict[str, Any]:
    """Return the attributes of a list of documents."""
    attributes: dict[str, Any] = {}
    for number, (name, text, score, facts) in enumerate(documents):
        fields = {"id": name, "content": text or None, "score": score, "metadata": json.dumps(facts)}
        attributes |= {f"retrieval.documents.{number}.document.{key}": value for key, value in fields.items()}
    return attributes


class _Spans:
    """Writes consecutive spans, from a start time in nanoseconds since the epoch."""

    def __init__(self, tracer: Tracer, start: int) -> None:
        self._tracer, self._now = tracer, start

    def start(
        self, name: str, kind: str, parent: Span | None, asked: str, said: str, facts: Mapping[str, Any], **more: Any
    ) -> Span:
        """Start a span. Attributes without a value are left out."""
        from opentelemetry.trace import set_span_in_context

        shown = {key: value for key, value in facts.items() if value not in (None, "")}
        attributes = {
            "openinference.span.kind": kind,
            "input.value": asked,
            "output.value": said,
            "metadata": json.dumps(shown, ensure_ascii=False),
            **more,
        }
        context = set_span_in_context(parent) if parent is not None else None
        given = {key: value for key, value in attributes.items() if value is not None}
        return self._tracer.start_span(name, context, attributes=given, start_time=self._now)

    def end(self, span: Span) -> None:
        """End a span where the last one ended."""
        span.end(self._now)

    def add(
        self,
        name: str,
        kind: str,
        parent: Span,
        asked: str,
        said: str,
        facts: Mapping[str, Any],
        seconds: float,
        **more: Any,
    ) -> None:
        """Write a span that lasted some seconds."""
        span = self.start(name, kind, parent, asked, said, facts, **more)
        self._now += int(1e9 * seconds)
        self.end(span)
