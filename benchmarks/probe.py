"""Probing with the shared prefix against a loop of `generate`, on models of a given size.

    python benchmarks/probe.py --output benchmarks/probe.md
    python benchmarks/probe.py --device cuda --size 7b --dtype bfloat16      # on a GPU

Questions with an image of 576 tokens, each asked without a document and with K. Both sides run in one process, on the
same weights and threads, and must give the same answers. The loop is one `model.generate` per question and document.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from geometry import SIZES, build, engine_of, passages, plain_inputs, question
from running import parser, timed, write
from transformers import PreTrainedModel

from reflectune.models.rendering.renderer import Rendered

ALONE = 6
"""Tokens from the question to the cue."""

Asked = list[tuple[Rendered, list[list[int]]]]


def ask(model: PreTrainedModel, arguments: argparse.Namespace) -> Asked:
    """Questions, each with the branch that has no document and those that have one."""
    questions = []
    for seed in range(arguments.questions):
        documents = passages(model, arguments.documents, arguments.tokens, seed=100 + seed)
        alone = passages(model, 1, ALONE, seed=200 + seed)
        questions.append((question(model, seed=seed), [*alone, *documents]))
    return questions


@torch.no_grad()
def loop(model: Any, questions: Asked, new_tokens: int) -> list[list[int]]:
    """Answers from one `generate` per question and document, as peers do."""
    answers = []
    for prefix, branches in questions:
        for branch in branches:
            inputs = plain_inputs(model, prefix, branch)
            out: Any = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
            answers.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return answers


def probed(model: PreTrainedModel, questions: Asked, arguments: argparse.Namespace) -> list[list[int]]:
    """Answers from the engine, as `Prober` asks it: batches of questions, all branches of one on top of its prefix."""
    engine = engine_of(model, arguments.token_budget)
    answers = []
    for start in range(0, len(questions), arguments.batch_questions):
        batch = questions[start : start + arguments.batch_questions]
        state = engine.branch(engine.read([prefix for prefix, _ in batch]), [branches for _, branches in batch])
        rows = [(q, k) for q, (_, branches) in enumerate(batch) for k in range(len(branches))]
        answers += [
            generation.token_ids for generation in engine.generate(state, rows, max_new_tokens=arguments.new_tokens)
        ]
    return answers


def measure(family: str, arguments: argparse.Namespace) -> str:
    """A family's row of the table."""
    model = build(family, SIZES[arguments.size], dtype=getattr(torch, arguments.dtype), device=arguments.device)
    questions = ask(model, arguments)
    warm = [(questions[0][0], questions[0][1][:2])]
    loop(model, warm, 2)
    probed(model, warm, arguments)
    ours, answers = timed(lambda: probed(model, questions, arguments), arguments.device)
    theirs, expected = timed(lambda: loop(model, questions, arguments.new_tokens), arguments.device)
    same = sum(one == other for one, other in zip(answers, expected, strict=True))
    return (
        f"| {family}, {model.num_parameters() / 1e6:.0f} M | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.1f} × "
        f"| {same} of {len(expected)} |"
    )


def main() -> None:
    options = parser(__doc__, threads=2)
    options.add_argument("--questions", type=int, default=4)
    options.add_argument("--documents", type=int, default=10)
    options.add_argument("--tokens", type=int, default=120, help="of a document with its instruction")
    options.add_argument("--new_tokens", type=int, default=8, help="of an answer")
    options.add_argument("--batch_questions", type=int, default=4)
    options.add_argument("--token_budget", type=int, help="the engine's; what it finds if unset")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [
        f"{arguments.questions} questions, each without a document and with {arguments.documents} of "
        f"{arguments.tokens} tokens; answers of {arguments.new_tokens} tokens.",
        "",
        "| model | one `generate` each | shared prefix | ratio | answers equal |",
        "|---|---|---|---|---|",
        *(measure(family, arguments) for family in arguments.families),
    ]
    print("\n".join(lines))
    write(arguments, "Probing", "probe.py", "both sides in one run", lines)


if __name__ == "__main__":
    main()
