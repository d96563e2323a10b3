"""A language model as judge, by the protocols of PMSR and mRAG: correct, incorrect, or unparsed.

Judges are not interchangeable: on the same answers to E-VQA, mRAG's GPT-4.1 finds 41.77 % right and its InternVL3
17.65 %. So a result names the judge and the hash of its prompt, and stands in a column of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reflectune.core.hashing import fingerprint
from reflectune.core.types import Question
from reflectune.models.rendering.thoughts import without_thoughts

CompleteAll = Callable[[list[list[dict[str, Any]]]], Sequence[str]]
"""Function of conversations in OpenAI's form that returns their replies, in order, at `TEMPERATURE`.

A reply is "" where the server refuses the conversation.
"""

Verdict = Literal["correct", "incorrect", "unparsed"]

TEMPERATURE = 0.0

JUDGE_PMSR = """\
Question: {question}
Ground Truth Answers: {references}
Model Response: {response}

Evaluation Instructions:

You are an AI assistant tasked with evaluating the correctness of model responses given the Question and Ground Truth \
answer. Your judgment should follow these principles:

1. Consider the question, and ground truth answer holistically before evaluating the model's response.
2. Your decision should be strictly **Yes** or **No**, based on whether the model's response is factually accurate and \
aligns with the ground truth answer.
3. If the model response is a more specific form that includes the ground truth answer, it is correct.
4. If the model response includes all key information but adds minor details, it is correct as long as the extra \
details are factually correct.
5. If the model response contradicts, modifies, or omits critical parts of the answer, it is incorrect.
6. For numerical values, ensure correctness even when presented in different units.
7. For names, check for first and last name correctness. If the middle name is extra but correct, consider it correct.
8. For yes/no questions, the response must exactly match "Yes" or "No" to be correct.

Evaluate whether the Model Response is correct based on the Question and Ground Truth Answer. Follow the predefined \
judgment rules and provide a clear Yes/No answer along with a justification.

Output Format:

<reason>Detailed reasoning following the evaluation principles.</reason>
<judge>Yes/No</judge>
"""
"""PMSR, figure A7, which follows MMSearch-R1."""

JUDGE_MRAG = """\
You are now a good judge on comparing the response from a student and several reference answers. Compare the generated \
RESPONSE to the REFERENCE answers. Evaluate if the generated response correctly conveys the same meaning with one of \
the listed REFRENCE answers, even if the wording is different. Return one of these labels: 'Correct' or 'Incorrect'. \
Please directly return your label, do not include the reasoning process!!

Generated RESPONSE : {response}

Candidate REFERENCE answers (Correct answers): {references}

The evaluation is:"""
"""mRAG, figure 9, its spelling included."""

_TAGGED = re.compile(r"<judge>(.*?)</judge>", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"[a-z]+", re.IGNORECASE)


@dataclass(frozen=True)
class Protocol:
    """Prompt of a judge, and the reader of its reply.

    Attributes:
        name: Name in results.
        template: Prompt, one user turn; `{question}`, `{references}`, `{response}` are filled in.
        verdict: Parses a reply.
    """

    name: str
    template: str
    verdict: Callable[[str], Verdict]

    @property
    def prompt_hash(self) -> str:
        """A hash of everything that the protocol sends."""
        return fingerprint({"name": self.name, "template": self.template, "temperature": TEMPERATURE})

    def messages(self, answer: Answer) -> list[dict[str, Any]]:
        """Return the conversation that asks about an answer. Braces in an answer are left as they are."""
        fields = {"question": answer.question, "references": repr(list(answer.references)), "response": answer.response}
        parts = re.split(r"\{(question|references|response)\}", self.template)
        text = "".join(fields[part] if number % 2 else part for number, part in enumerate(parts))  # odd parts are names
        return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Answer:
    """Answer to be judged, with its question and references."""

    question: str
    references: tuple[str, ...]
    response: str


def answer_to(question: Question, response: str) -> Answer:
    """Return a response as a judge sees it. Without accepted answers, the range is shown instead."""
    answer_range = () if question.range is None else (f"{question.range[0]:g} to {question.range[1]:g}",)
    return Answer(question.text, question.answers or answer_range, response)


@dataclass(frozen=True)
class Judge:
    """A judge: the protocol, the model's name, and the function that requests its replies."""

    protocol: Protocol
    model: str
    complete_all: CompleteAll

    def verdicts(self, answers: Sequence[Answer]) -> tuple[Verdict, ...]:
        """Judge all answers in one call; repeated answers to a question are asked once."""
        distinct_answers = list(dict.fromkeys(answers))
        replies = self.complete_all([self.protocol.messages(answer) for answer in distinct_answers])
        verdicts = {
            answer: self.protocol.verdict(without_thoughts(reply))
            for answer, reply in zip(distinct_answers, replies, strict=True)
        }
        return tuple(verdicts[answer] for answer in answers)

    def summary(self, verdicts: Sequence[Verdict], missing: int) -> dict[str, Any]:
        """Return judge, protocol, prompt hash, temperature, both accuracies, and the counts of verdicts and missing.

        `accuracy_strict` is the correct share of all answers, missing ones included; `accuracy_official` (PMSR's) is
        that of the replies that could be parsed. Either is None if there are none.
        """
        counts = Counter(verdicts)
        total = len(verdicts) + missing
        parsed = counts["correct"] + counts["incorrect"]
        return {
            "judge": self.model,
            "protocol": self.protocol.name,
            "prompt_hash": self.protocol.prompt_hash,
            "temperature": TEMPERATURE,
            "accuracy_strict": counts["correct"] / total if total else None,
            "accuracy_official": counts["correct"] / parsed if parsed else None,
            "correct": counts["correct"],
            "incorrect": counts["incorrect"],
            "unparsed": counts["unparsed"],
            "missing": missing,
        }


def tagged_verdict(reply: str) -> Verdict:
    """Return the yes or no between the last `<judge>` tags, ignoring punctuation around it ("**Yes**", "No.")."""
    tagged = _TAGGED.findall(reply)
    return _as_verdict(tagged[-1], yes="yes", no="no") if tagged else "unparsed"


def label_verdict(reply: str) -> Verdict:
    """Return "Correct" or "Incorrect" if it is the reply's only word, ignoring punctuation around it."""
    return _as_verdict(reply, yes="correct", no="incorrect")


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (Protocol("pmsr", JUDGE_PMSR, tagged_verdict), Protocol("mrag", JUDGE_MRAG, label_verdict))
}
"""`pmsr`: GPT-4o in the paper; reads the question, gives its reasons first. `mrag`: GPT-4.1, InternVL3-14B.

Several references are written as a Python list, as in PMSR's program, where a paper does not specify it.
"""


def _as_verdict(text: str, *, yes: str, no: str) -> Verdict:
    words = [word.lower() for word in _LABEL.findall(text)]
    if words == [yes]:
        return "correct"
    return "incorrect" if words == [no] else "unparsed"
