"""Show what happened to a question: `python -m reflectune.inference.show_trace --evaluation DIR --question ID`."""

from __future__ import annotations

import json
from itertools import chain

from reflectune.core.command import command
from reflectune.inference.report.words import explain
from reflectune.inference.trace import to_row
from reflectune.inference.trace_files.opening import ShowTraceConfig, find_traces, read_traces


@command(ShowTraceConfig)
def show_trace(config: ShowTraceConfig) -> None:
    """Show how an evaluation answered a question."""
    if not config.question:
        for trace in chain.from_iterable(map(read_traces, config.files().values())):
            print(json.dumps(to_row(trace), ensure_ascii=False))
        return
    for name, trace in find_traces(config.files(), config.question).items():
        if config.as_json:
            print(json.dumps(to_row(trace), indent=2, ensure_ascii=False))
        else:
            print(f"{name}, question {trace.question_id}\n{trace.error or explain(trace)}\n")


if __name__ == "__main__":
    show_trace.main()
