"""mRAG's unified agent (arXiv 2505.24073, §6): read document by document, until the model judges its answer valid.

The model judges whether a document is relevant, answers from it, and judges whether that answer is valid; at a No it
moves on to the next document. Both judgements compare probabilities of Yes and No, where the paper generates the word.
If no document leads to a valid answer, the paper's agent answers "Model fails to answer the question", which its judges
compare with the references like any other answer. Here it gives no answer, which is wrong but for
InfoSeek's ranges around 0 (its official program reads no number as 0), and the trace's `ended` has those words.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final, Literal

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.requests import WriteReply
from reflectune.inference.operators.reranking import paragraphs, relevance
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, judge
from reflectune.inference.pipelines.mrag import DocumentStageSettings, find_documents, generate, mrag_recipe

VALID: Final = """\
Given the following reference document, image, question, and response, please evaluate whether the response correctly \
answers the question by referring to the document. Do not use your own knowledge.

RELATED DOCUMENT:
{documents}

Now given the image, and the following question and response again, assess whether the response correctly answers the \
question by referring to the above reference document.

Question: {question}
Response: {response}

Return one of these labels: 'Yes' or 'No'. Please directly return your label, do not include the reasoning process!
Your evaluation is:"""
"""Figure 11: the agent's self-reflection."""

FAILS: Final = "Model fails to answer the question"


class MragAgentSettings(DocumentStageSettings):
    """Settings of mRAG's agent, which takes the documents as retrieved."""

    agent_fallback: Literal["abstain", "first"] = setting(
        "abstain", "mrag_agent: no document has a valid answer: none, as in mRAG, or the first document's"
    )


@dataclass(frozen=True)
class MragAgent:
    """mRAG's unified agent for one question. An iteration is a document."""

    settings: MragAgentSettings

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        documents, answers = tuple[Passage, ...](), dict[int, WriteReply]()
        with contextlib.suppress(BudgetSpent):
            documents = yield from find_documents(question, self.settings)
            for place, document in enumerate(documents):
                if (yield from relevance(place, question.text, document)) <= 0.5:
                    continue
                answer = answers[place] = yield from generate(place, question, [document], self.settings)
                if answer.text.strip() and (yield from self._is_valid(place, question, document, answer.text)):
                    ended = f"valid answer from document {place + 1} of {len(documents)}"
                    return TrajectoryResult(answer.text, ended, answer.score, documents, chosen=place, used=(place,))
        if self.settings.agent_fallback == "abstain" or not documents:
            return TrajectoryResult("", FAILS, passages=documents, fallback="abstain")
        first = answers.get(0) or (yield from generate(0, question, documents[:1], self.settings))
        return TrajectoryResult(first.text, FAILS, first.score, documents, chosen=0, used=(0,), fallback="first")

    def _is_valid(self, place: int, question: Question, document: Passage, response: str) -> Steps[bool]:
        """Return True if the model judges its answer correct by the document."""
        asked = {"question": question.text, "response": response}
        reply = yield from judge(place, VALID, asked, documents=paragraphs([document]))
        return reply.share > 0.5


RECIPES = mrag_recipe("mrag_agent", "mRAG, agent", MragAgentSettings, lambda settings, parts: MragAgent(settings))
