"""Judge an iterative pipeline's documents by the relevance token of a checkpoint that reflects turn by turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import AnswerStyle, Passage
from reflectune.inference.operators.models import AboutImage, LocalModel
from reflectune.inference.operators.requests import JudgeEachReply, JudgeReply, Prompt
from reflectune.inference.reading.reader import calibrated
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.schemes.passages import PassageScheme

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine


class GateModel(LocalModel):
    """A model that judges documents by its relevance token: p([Relevant]), equation 6 of mR²AG (arXiv 2411.15041).

    The checkpoint's scheme renders the prompt: the question, [Retrieval], and the document as a passage.
    `Prompt.template` is ignored; `Prompt.texts` has the `question` and the answer's `style`.

    Args:
        engine: Engine of a checkpoint of a `PassageScheme`.
        batch_size: See `LocalModel`.

    Raises:
        UserError: The checkpoint's scheme has no relevance token after each passage.
    """

    def __init__(self, engine: Engine, batch_size: int) -> None:
        super().__init__(engine, batch_size)
        self._scheme = PassageScheme.of(engine.renderer)

    def judge_each(self, prompts: Sequence[AboutImage], yes: str, no: str) -> list[JudgeEachReply]:
        """Compute p([Relevant]) and p([Irrelevant]) for each document alone, after the question's shared prefix.

        Args:
            yes: Role of the token for relevant documents in the scheme.
            no: Role of the other token.
        """
        replies = super().judge_each(prompts, yes, no)
        gate = self._scheme.gates[1].name
        if gate not in self._engine.calibration:
            return replies
        return [dataclasses.replace(reply, each=tuple(map(self._calibrated, reply.each))) for reply in replies]

    def _calibrated(self, judged: JudgeReply) -> JudgeReply:
        scaled = calibrated(self._engine, self._scheme.gates[1].name, judged.yes)
        return dataclasses.replace(judged, yes=scaled, no=1.0 - scaled) if judged.shown else judged

    def _branches(self, image: Images, prompt: Prompt) -> tuple[Rendered, list[list[int]]]:
        """Return the question's prefix, and the turns of each document after it."""
        if not isinstance(image, Image.Image):
            raise ValueError("the relevance gate needs a question with exactly one image")
        style = cast("AnswerStyle", prompt.texts["style"])
        passages = [Passage("", 0, 0, title="", lead="", heading="", text=document) for document in prompt.documents]
        branches = [self._scheme.passage_branch(self._renderer, passage, style) for passage in passages]
        return self._scheme.open(self._renderer, prompt.texts["question"], image), branches

    def _distinguishing_tokens(self, yes: str, no: str) -> tuple[list[int], list[int]]:
        return [], self._renderer.ids_of(yes, no)
