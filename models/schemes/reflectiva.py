"""ReflectiVA, arXiv 2411.16863 (CVPR 2025): two-stage reflective tokens, those of its released checkpoint.

    user:      <image> {question}
    assistant: [No Retrieval] {answer}          or     [Retrieval], followed, once per passage, by
    user:      Consider this paragraph: <paragraph>{passage}</paragraph>
    assistant: [Relevant] {answer}              or     [No Relevant]

and at last, after [Retrieval], by all relevant passages in one paragraph with `. Give a short answer.`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reflectune.core.types import AnswerStyle, Passage
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.rendering.turns import ANSWER_PROMPTS, Turn, Turns, passage_text, prompt_parts, question_turns
from reflectune.models.schemes.passages import PassageScheme


class Reflectiva(PassageScheme):
    """ReflectiVA. Its answers are asked for in the same words whatever their style, and stand after their token."""

    title = "ReflectiVA ([2411.16863](https://arxiv.org/abs/2411.16863))"
    is_released = True
    learns_from = ("mr2ag",)
    gap = " "  # as it was trained for the release

    def passage_turns(self, style: AnswerStyle) -> Turns:
        """Return the turns user: <image> {question}; assistant: [Retrieval]; user: {one passage}."""
        return self._turns("judge")

    def direct_turns(self, style: AnswerStyle) -> None:
        """Return None: an answer without retrieval stands in the assistant's first turn, whatever its style."""

    def answer_branch(self, renderer: Renderer, passages: Sequence[Passage]) -> list[int]:
        """Return the ids after `Renderer.prefix`: [Retrieval], all passages as one paragraph, up to the cue.

        Args:
            renderer: Renderer of the model.
            passages: Passages judged relevant, in order of reading, without separators.
        """
        return renderer.after_prefix(self._turns("answer"), {"passage": "".join(map(passage_text, passages))})

    def _turns(self, prompt: str) -> Turns:
        return (*question_turns(), self.reply("retrieve"), Turn("user", prompt_parts(self.prompts[prompt])))


SCHEME: Final = Reflectiva(
    name="reflectiva",
    tokens={
        "retrieve": "[Retrieval]",
        "no_retrieve": "[No Retrieval]",
        "relevant": "[Relevant]",
        "irrelevant": "[No Relevant]",
        "paragraph": "<paragraph>",
        "end_of_paragraph": "</paragraph>",
    },
    descriptions={
        "retrieve": "search for a document about this",
        "no_retrieve": "look at the picture and answer",
        "relevant": "yes, this document is evidence",
        "irrelevant": "no, another document",
        "paragraph": "here a paragraph begins",
        "end_of_paragraph": "here the paragraph ends",
    },
    prompts={
        "judge": "Consider this paragraph: <paragraph>{passage}</paragraph>",
        "answer": "Consider this paragraph: <paragraph>{passage}</paragraph>. Give a short answer.",
        **ANSWER_PROMPTS,
    },
)
