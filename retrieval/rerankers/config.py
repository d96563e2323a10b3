"""Which reranker: keys that a command's config takes over, and the settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reflectune.core.config import DTYPES, bound_problems, setting
from reflectune.models.names import encoder_name
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.settings import Pooling, TextSettings

Kind = Literal["words", "embedding", "cross_encoder", "q_former"]


@dataclass
class RerankerConfig:
    """Keys of a config that choose a reranker; a command's own config class may inherit them."""

    reranker: Kind = setting(
        "words",
        "what picks passages: words (BM25), embedding (a text retriever), cross_encoder, or q_former (EchoSight)",
    )
    reranker_model: str = setting(
        "",
        "embedding, cross_encoder: miniature/text, a folder, or a hub id, owner/name[@COMMIT]; q_former: a folder",
        check=encoder_name,
    )
    reranker_pooling: Pooling = setting("auto", "embedding: mean, last or cls; auto: as its model card says")
    reranker_similarity: Literal["auto", "cosine", "dot"] = setting(
        "auto", "embedding: cosine or dot; auto: as its model card says"
    )
    reranker_query_prefix: str = setting("", "put before each question; unset: what the model card says")
    reranker_passage_prefix: str = setting("", "put before each passage; unset: what the model card says")
    reranker_max_length: int | None = setting(
        None, "tokens beyond which a passage is cut for scoring; unset: the model card's", low=1
    )
    reranker_token_budget: int = setting(16_384, "most tokens in one forward pass", low=1)
    reranker_dtype: str = setting("float32", "float32, bfloat16 or float16", choices=DTYPES)

    def reranker_settings(self) -> TextSettings:
        """The settings that these keys stand for; what is unset is the model's preset's, if any, else the usual."""
        return text_settings(
            self.reranker_model,
            pooling=self.reranker_pooling,
            similarity=self.reranker_similarity,
            query_prefix=self.reranker_query_prefix or None,
            passage_prefix=self.reranker_passage_prefix or None,
            max_length=self.reranker_max_length,
            token_budget=self.reranker_token_budget,
            dtype=self.reranker_dtype,
        )

    def as_used(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of this config by key, a reranker's unset similarity and length replaced by those that it uses.

        It is what a run hashes. Older runs, whose defaults were `cosine` and 512, stay valid where these are used.
        """
        used = self.reranker_settings()
        known = {"reranker_similarity": used.similarity, "reranker_max_length": used.max_length}
        return {name: known.get(name, value) for name, value in settings.items()}

    def reranker_problems(self) -> list[str]:
        """What is wrong with these keys, one sentence each."""
        issues = bound_problems(self, RerankerConfig)
        if self.reranker == "words":
            if self.reranker_model:
                issues.append(f"`reranker: words` uses no model, `reranker_model` is {self.reranker_model}; drop one")
        elif not self.reranker_model:
            issues.append(f"`reranker: {self.reranker}` needs `reranker_model`")
        elif self.reranker == "q_former" and not Path(self.reranker_model).is_dir():
            issues.append(
                f"`reranker_model`: {self.reranker_model} is no folder; `q_former` needs one with its weights"
            )
        return issues
