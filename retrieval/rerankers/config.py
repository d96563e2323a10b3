"""Settings of the reranker, inherited by the configs of commands that rerank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Dtype
from reflectune.models.names import EncoderName
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.settings import Pooling, TextSettings

Kind = Literal["words", "embedding", "cross_encoder", "encoder", "q_former"]
DocumentRanking = Literal["words", "reranker"]
DOCUMENTS_BY: Final = "MMKB-RAG: ranking of the entries' passages: words (BM25), or reranker (as the baselines')"
WITH_IMAGES: Final[tuple[Kind, ...]] = ("encoder", "q_former")
"""Rerankers that read the question's image."""
_TEXT: Final = ("embedding", "cross_encoder")
_READERS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "reranker_pooling": ("embedding",),
    "reranker_similarity": ("embedding",),
    "reranker_query_prefix": _TEXT,
    "reranker_passage_prefix": _TEXT,
    "reranker_max_length": _TEXT,
    "reranker_token_budget": (*_TEXT, "q_former"),
    "reranker_dtype": (*_TEXT, "q_former", "encoder"),
}
"""Rerankers that read each key."""


class RerankerConfig(Settings):
    """Settings of the reranker."""

    reranker: Kind = setting(
        "words",
        "reranker of passages: words (BM25), embedding (a text retriever), cross_encoder; by the image, too: encoder "
        "(images and texts), q_former (EchoSight)",
    )
    reranker_model: EncoderName = setting(
        "",
        "miniature/text, a folder, or a hub id, owner/name[@COMMIT]; encoder: as for `build_index`; q_former: a folder",
        hashed=False,  # its content is
    )
    reranker_pooling: Pooling = setting("auto", "embedding: mean, last or cls; auto: as its model card says")
    reranker_similarity: Literal["auto", "cosine", "dot"] = setting(
        "auto", "embedding: cosine or dot; auto: as its model card says"
    )
    reranker_query_prefix: str | None = setting(None, "prefix of each question; unset: the model card's")
    reranker_passage_prefix: str | None = setting(None, "prefix of each passage; unset: the model card's")
    reranker_max_length: int | None = setting(
        None, "tokens beyond which a passage is cut for scoring; unset: the model card's", ge=1
    )
    reranker_token_budget: int = setting(16_384, "maximum tokens per forward pass", ge=1, hashed=False)
    reranker_dtype: Dtype = setting("float32", "float32, bfloat16 or float16")

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys that the chosen reranker doesn't read."""
        kind = values.get("reranker", cls.model_fields["reranker"].default)
        unread = {key for key, kinds in _READERS.items() if kind not in kinds}
        return {*super().unread_keys(values), *unread, *(["reranker_model"] if kind == "words" else [])}

    def reranker_settings(self) -> TextSettings:
        """Return the encoder's settings. Unset values are those of the model's preset, if it has one."""
        keys = {name: getattr(self, f"reranker_{name}") for name in TextSettings.__dataclass_fields__}
        return text_settings(self.reranker_model, **keys)

    def text_issues(self, names: str) -> Iterator[str]:
        """Yield the problem of an image reranker for pipelines, `names`, that rerank by text only."""
        if self.reranker in WITH_IMAGES:
            yield f"`reranker: {self.reranker}` reads images, and {names} rerank by texts alone"

    def hashed(self) -> dict[str, Any]:
        """Return the keys that determine the results, with the similarity and length in use for unset ones."""
        used = self.reranker_settings().completed()
        return super().hashed() | {"reranker_similarity": used.similarity, "reranker_max_length": used.max_length}

    @cross_check
    def unread_problems(self) -> Iterator[str]:
        """Yield the problem of changed keys that the reranker doesn't read."""
        unused = [key for key, kinds in _READERS.items() if self.reranker not in kinds]
        if unread := [key for key in unused if getattr(self, key) != RerankerConfig.model_fields[key].default]:
            yield f"`reranker: {self.reranker}` doesn't read {', '.join(f'`{key}`' for key in unread)}; leave it out"

    @cross_check
    def reranker_problems(self) -> Iterator[str]:
        """Yield the problem of a missing or unused `reranker_model`."""
        if self.reranker == "words":
            if self.reranker_model:
                yield f"`reranker: words` uses no model, `reranker_model` is {self.reranker_model}; drop one"
        elif not self.reranker_model:
            yield f"`reranker: {self.reranker}` needs `reranker_model`"
        elif self.reranker == "q_former" and not Path(self.reranker_model).is_dir():
            yield f"`reranker_model`: {self.reranker_model} is not a folder; `q_former` needs one with its weights"
