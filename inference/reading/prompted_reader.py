"""Reader of MMKB-RAG's models: RET, SRT, MCT and the answer, four prompts on top of one shared prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.reading.reader import OpenedQuestions, ReaderAnswer, calibrated, share
from reflectune.models.rendering.turns import fit_leading
from reflectune.models.schemes.examples import PromptName
from reflectune.models.schemes.prompts import PromptScheme

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine
    from reflectune.models.prefix.state import Generation


@dataclass(frozen=True)
class PromptedReply:
    """A reply to P_MCT.

    Attributes:
        raw: The decoded reply.
        text: The reply without reflection tokens.
        shown: Number of documents shown: the leading ones that fit the model's context.
        tokens: Number of tokens generated.
        finished: True if it ended with the end token.
    """

    raw: str
    text: str
    shown: int
    tokens: int
    finished: bool


class PromptedReader:
    """A loaded model of a `PromptScheme` with its engine.

    Args:
        max_new_tokens: Maximum length of an answer, in tokens.
        max_reply_tokens: Maximum length of a reply to P_MCT, in tokens.
    """

    def __init__(self, engine: Engine, max_new_tokens: int, max_reply_tokens: int) -> None:
        self._engine, self._renderer = engine, engine.renderer
        self.scheme = PromptScheme.of(engine.renderer)
        self._max_new_tokens, self._max_reply_tokens = max_new_tokens, max_reply_tokens

    def open(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> OpenedQuestions:
        """Read images and questions: the prefix that the four prompts share."""
        return OpenedQuestions.read(self._engine, self.scheme, questions, images)

    def gates(self, opened: OpenedQuestions) -> list[float]:
        """Compute Score_RET of each question, equation 4: the softmax of two logits, in [0, 1]."""
        prompt = self.scheme.prompt_branch(self._renderer, "ret")
        state = self._engine.branch(opened.prefixes, [[prompt] for _ in opened.questions])
        for row, length in enumerate(opened.lengths):
            opened.usage.branch(row, length, len(prompt))
        probabilities = state.probabilities(self._renderer.ids_of("retrieve", "no_retrieve"))
        gate = self.scheme.gates[0].name
        return [calibrated(self._engine, gate, share(*question[0].tolist())) for question in probabilities]

    def judge(
        self, opened: OpenedQuestions, documents: Sequence[Sequence[Passage]], found: Sequence[Mapping[str, str]] = ()
    ) -> list[list[float | None]]:
        """Compute Score_SRT of each question's documents, equation 7, in one batch; a question may have none.

        Args:
            opened: The questions.
            documents: Their documents.
            found: Rank of each entry in the question's search results (`describe_ranks`), if P_SRT includes it.

        Returns:
            Scores in [0, 1], by question and document; None for a document that doesn't fit the context together with
            its question and an answer.
        """
        fitting: list[list[int]] = []
        branches: list[list[list[int]]] = []
        for i, (length, question_documents) in enumerate(zip(opened.lengths, documents, strict=True)):
            ids = [
                self.scheme.prompt_branch(
                    self._renderer, "srt", [passage], found=found[i].get(passage.entry_id, "") if found else ""
                )
                for passage in question_documents
            ]
            room = self._engine.max_length - length - self._max_new_tokens
            fitting.append([k for k, prompt in enumerate(ids) if len(prompt) <= room])
            branches.append([ids[k] for k in fitting[-1]])
            for prompt in branches[-1]:
                opened.usage.branch(i, length, len(prompt))
        state = self._engine.branch(opened.prefixes, branches)
        scores: list[list[float | None]] = [[None] * len(question_documents) for question_documents in documents]
        for i, probabilities in enumerate(state.probabilities(self._renderer.ids_of("relevant", "irrelevant"))):
            for k, (yes, no) in zip(fitting[i], probabilities.tolist(), strict=True):
                scores[i][k] = calibrated(self._engine, self.scheme.gates[1].name, share(yes, no))
        return scores

    def agree(self, opened: OpenedQuestions, documents: Mapping[int, Sequence[Passage]]) -> dict[int, PromptedReply]:
        """Generate replies to P_MCT, by position of the question.

        A question gets no reply if fewer than two of its documents fit the context.
        """
        fitted = {
            i: self._fit("mct", opened, i, question_documents, self._max_reply_tokens)
            for i, question_documents in documents.items()
        }
        prompts = {i: ids for i, (shown, ids) in fitted.items() if shown >= 2}
        generations = self._generate(opened, prompts, self._max_reply_tokens)
        return {
            i: PromptedReply(
                raw=generation.text,
                text=" ".join(self._renderer.strip(generation.text).split()),
                shown=fitted[i][0],
                tokens=len(generation.token_ids),
                finished=generation.finished,
            )
            for i, generation in generations.items()
        }

    def answer(self, opened: OpenedQuestions, documents: Mapping[int, Sequence[Passage]]) -> dict[int, ReaderAnswer]:
        """Answer questions, given by position, from their documents by P_vqa, equation 9.

        Only the leading documents that fit the model's context whole are read. A question without documents is answered
        from its image alone.
        """
        fitted = {
            i: self._fit("vqa", opened, i, question_documents, self._max_new_tokens)
            for i, question_documents in documents.items()
        }
        generations = self._generate(opened, {i: ids for i, (_, ids) in fitted.items()}, self._max_new_tokens)
        return {i: ReaderAnswer.of(reply, self._renderer, fitted[i][0]) for i, reply in generations.items()}

    def _fit(
        self, name: PromptName, opened: OpenedQuestions, row: int, passages: Sequence[Passage], max_tokens: int
    ) -> tuple[int, list[int]]:
        """Return the number of leading passages that leave room for a reply, and the prompt with them."""
        style = opened.questions[row].answer_style
        room = self._engine.max_length - opened.lengths[row] - max_tokens
        return fit_leading(
            lambda count: self.scheme.prompt_branch(self._renderer, name, passages[:count], style), len(passages), room
        )

    def _generate(
        self, opened: OpenedQuestions, prompts: Mapping[int, list[int]], max_tokens: int
    ) -> dict[int, Generation]:
        branches = [[prompts[i]] if i in prompts else [] for i in range(len(opened.questions))]
        state = self._engine.branch(opened.prefixes, branches)
        generations = self._engine.generate(state, [(i, 0) for i in prompts], max_new_tokens=max_tokens)
        self._engine.check_numbers(*(generation.score for generation in generations))
        for i, generation in zip(prompts, generations, strict=True):
            opened.usage.branch(i, opened.lengths[i], len(prompts[i]), len(generation.token_ids))
        return dict(zip(prompts, generations, strict=True))
