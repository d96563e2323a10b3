"""Traces as spans: one tree a question, in OpenInference's attributes, and sent over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.trace import FoundPassage, PassageTrace, Step, Trace
from reflectune.inference.trace_files.spans import new_provider, record, send_traces

PASSAGES = (
    PassageTrace(Passage("e1", 0, 0, "Oak", "", "", "It is 9 m tall."), 0.8, 0.9, 0.1, "9 m", 0.7),
    PassageTrace(Passage("e2", 0, 0, "Elm", "", "", "It is old."), 0.6, 0.2, 0.8),
)
SECONDS = {"gate": 1.0, "retrieve": 2.0, "judge": 4.0, "answer": 8.0}
LOOKED_UP = Trace(
    *("q1", "mr2ag", "9 m"), gate=0.75, retrieved=True, passages=PASSAGES, chosen=0, seconds=SECONDS,
    hits=(Hit("e1", 0.8, 1), Hit("e2", 0.6, 2)),
)  # fmt: skip
SEARCHED = Trace(
    *("q2", "pmsr", "oak"), seconds={"run": 6.0}, steps=(
        Step("search", 0, queries=("a tree", "oak"), found=(FoundPassage("e1#0.0", "e1", "texts", 0, 1, 0.5),)),
        Step("reason", 0, text="It is oak.", read=90, generated=5),
    ),
)  # fmt: skip


def spans_of(trace: Trace) -> list:
    memory, provider = InMemorySpanExporter(), new_provider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    record(provider.get_tracer("test"), trace, "How tall?")
    return sorted(memory.get_finished_spans(), key=lambda span: span.start_time)


@pytest.mark.parametrize(
    ("trace", "tree"),
    [
        (LOOKED_UP, {
            "mr2ag": ("CHAIN", "", 15), "gate": ("EVALUATOR", "mr2ag", 1), "retrieve": ("RETRIEVER", "mr2ag", 2),
            "judge": ("CHAIN", "mr2ag", 4), "judge e1#0.0": ("EVALUATOR", "judge", 2),
            "judge e2#0.0": ("EVALUATOR", "judge", 2), "answer from e1#0.0": ("LLM", "mr2ag", 8),
        }),
        (SEARCHED, {"pmsr": ("CHAIN", "", 6), "search": ("RETRIEVER", "pmsr", 3), "reason": ("LLM", "pmsr", 3)}),
        (Trace("q3", "mr2ag", "red", gate=0.1, seconds={"gate": 1, "answer": 2}), {
            "mr2ag": ("CHAIN", "", 3), "gate": ("EVALUATOR", "mr2ag", 1), "answer": ("LLM", "mr2ag", 2),
        }),
    ],
)  # fmt: skip
def test_a_trace_is_a_tree_of_steps_that_last_as_long(trace, tree) -> None:
    spans = spans_of(trace)
    names = {span.context.span_id: span.name for span in spans}
    found = {
        span.name: (
            span.attributes["openinference.span.kind"],
            names[span.parent.span_id] if span.parent else "",
            round((span.end_time - span.start_time) / 1e9, 6),
        )
        for span in spans
    }
    assert found == tree
    assert len({span.context.trace_id for span in spans}) == 1
    (root,) = (span for span in spans if span.parent is None)
    assert root.status.status_code.name == "OK"
    assert (root.attributes["input.value"], root.attributes["output.value"]) == ("How tall?", trace.answer)


def test_spans_have_the_attributes_that_collectors_read() -> None:
    spans = {span.name: span.attributes for span in (*spans_of(LOOKED_UP), *spans_of(SEARCHED))}
    documents = [
        spans["retrieve"][f"retrieval.documents.{n}.document.{key}"] for n in (0, 1) for key in ("id", "score")
    ]
    assert documents == ["e1", 0.8, "e2", 0.6]
    assert json.loads(spans["gate"]["metadata"]) == {"probability": 0.75}
    assert json.loads(spans["judge e2#0.0"]["metadata"]) == {"s_ret": 0.6, "s_rel": 0.2, "s_irr": 0.8}
    assert spans["judge e2#0.0"]["output.value"] == "irrelevant"
    assert spans["answer from e1#0.0"]["retrieval.documents.0.document.content"] == "Oak: It is 9 m tall."
    assert spans["search"]["input.value"] == "a tree\noak"
    assert spans["search"]["retrieval.documents.0.document.id"] == "e1#0.0"
    assert spans["reason"]["llm.token_count.prompt"] == 90
    (failed,) = (s for s in spans_of(Trace("q", "mr2ag", "", error="too long")) if s.parent is None)
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "too long")


def test_traces_are_sent_to_a_collector_or_it_is_said() -> None:
    bodies, status = [], [200]

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        assert send_traces([LOOKED_UP, SEARCHED], {"q1": "How tall?"}, endpoint) == 2
        status[0] = 400
        with pytest.raises(UserError, match="didn't accept the spans; start a collector"):
            send_traces([SEARCHED], {}, endpoint)
    finally:
        server.shutdown()
        server.server_close()
    request = ExportTraceServiceRequest.FromString(bodies[0])
    spans = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    assert len(spans) == 10
    attributes = [attribute for span in spans if not span.parent_span_id for attribute in span.attributes]
    assert {a.value.string_value for a in attributes if a.key == "input.value"} == {"How tall?", "q2"}
