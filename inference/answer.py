"""Answer one question about one image: `reflectune answer --config … --image X --question "…"`.

`--pipeline NAME` answers with that pipeline instead of that of the checkpoint's scheme.
With `--evaluation DIR --question_id ID` it shows the traces of a question that evaluate has answered, and with `--otlp`
it sends them to an OpenTelemetry collector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

from reflectune.core.command import command
from reflectune.core.types import Question
from reflectune.inference.running.config import AnswerConfig


@command(AnswerConfig)
def answer(config: AnswerConfig) -> None:
    """Answer one question about an image, or show how an evaluation answered it."""
    if config.evaluation:
        show_evaluation(config)
        return
    # slow to import, so only after the config is checked
    from reflectune.inference.report.words import explain
    from reflectune.inference.running import single
    from reflectune.inference.trace import to_row

    if config.dry_run:
        print(single.describe(config))
        return
    trace = single.answer(config)
    print(json.dumps(to_row(trace), indent=2, ensure_ascii=False) if config.as_json else trace.error or explain(trace))


def show_evaluation(config: AnswerConfig) -> None:
    """Print each pipeline's trace of one question, or all traces as JSONL; or send them to a collector."""
    from reflectune.inference.report.words import explain
    from reflectune.inference.trace import to_row
    from reflectune.inference.trace_files.reading import find_traces, read_traces

    if config.otlp:
        export_traces(config)
        return
    if not config.question_id:
        for trace in chain.from_iterable(map(read_traces, config.trace_files().values())):
            print(json.dumps(to_row(trace), ensure_ascii=False))
        return
    found = find_traces(config.trace_files(), config.question_id)
    if config.as_json:
        for trace in found.values():
            print(json.dumps(to_row(trace), indent=2, ensure_ascii=False))
        return
    asked = (question for question in questions_of(config) if question.id == config.question_id)
    if question := next(asked, None):
        print(f"{question.text}\nimage: {question.image or 'none'}\naccepted: {', '.join(question.answers)}\n")
    for name, trace in found.items():
        print(f"{name}, question {trace.question_id}\n{trace.error or explain(trace)}\n")


def questions_of(config: AnswerConfig) -> Iterator[Question]:
    """Yield all questions of `dataset`; none if it is not set."""
    from reflectune.formats.dataset import splits, stream_questions

    for split in splits(config.dataset) if config.dataset else ():
        yield from stream_questions(config.dataset, split)


def export_traces(config: AnswerConfig) -> None:
    """Send the traces of one question, or all traces, to an OpenTelemetry collector."""
    from reflectune.inference.trace_files.reading import read_traces
    from reflectune.inference.trace_files.spans import send_traces

    stored = chain.from_iterable(map(read_traces, config.trace_files().values()))
    chosen = (trace for trace in stored if config.question_id in ("", trace.question_id))
    if config.dry_run:
        print(f"would send {sum(1 for _ in chosen):,} traces to {config.otlp}")
        return
    texts = {question.id: question.text for question in questions_of(config)}
    print(f"{send_traces(chosen, texts, config.otlp):,} traces sent to {config.otlp}")


if __name__ == "__main__":
    answer.main()
