"""A renderer that renders a prompt once, however many grid points ask for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from PIL import Image

from reflectune.core.types import AnswerStyle, Passage
from reflectune.models.rendering.renderer import Rendered, Renderer, Texts
from reflectune.models.rendering.turns import Turns

Value = TypeVar("Value")


class CachingRenderer(Renderer):
    """Renders as the renderer it is made from, and keeps what it rendered until `forget`.

    Images are told apart by identity: a grid point must be given the same objects as the one before.

    Args:
        renderer: Whose scheme and processor to use.
    """

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer.scheme, renderer.processor)
        self._kept: dict[Hashable, Any] = {}
        self._images: dict[int, Image.Image] = {}

    def forget(self) -> None:
        """Drop everything that was rendered."""
        self._kept.clear()
        self._images.clear()

    def prefix(self, question: str, image: Image.Image) -> Rendered:
        """As `Renderer.prefix`."""
        key = ("prefix", question, self._name(image))
        return self._once(key, lambda: super(CachingRenderer, self).prefix(question, image))

    def question_prefix(self, question: str, image: Image.Image) -> Rendered:
        """As `Renderer.question_prefix`."""
        key = ("question_prefix", question, self._name(image))
        return self._once(key, lambda: super(CachingRenderer, self).question_prefix(question, image))

    def plain(
        self, question: str, image: Image.Image, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> Rendered:
        """As `Renderer.plain`."""
        key = ("plain", question, self._name(image), tuple(passages), style)
        return self._once(key, lambda: super(CachingRenderer, self).plain(question, image, passages, style))

    def after_prefix(self, turns: Turns, texts: Texts) -> list[int]:
        """As `Renderer.after_prefix`."""
        key = ("after_prefix", turns, tuple(texts.items()))
        return self._once(key, lambda: super(CachingRenderer, self).after_prefix(turns, texts))

    def after_question(self, turns: Turns, texts: Texts) -> list[int]:
        """As `Renderer.after_question`."""
        key = ("after_question", turns, tuple(texts.items()))
        return self._once(key, lambda: super(CachingRenderer, self).after_question(turns, texts))

    def _name(self, image: Image.Image) -> int:
        """A number for an image, which stays its own because the image is kept."""
        self._images[id(image)] = image
        return id(image)

    def _once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = make()
        value: Value = self._kept[key]
        return value
