"""Load a reranker by its name in a config."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.devices import find_device
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.rerankers.config import Kind, RerankerConfig
from reflectune.retrieval.rerankers.words import WordReranker


def load_reranker(
    kind: Kind, model: str = "", settings: TextSettings | None = None, *, device: str = "cpu"
) -> Reranker:
    """Load a reranker.

    Args:
        kind: `words`, `embedding`, `cross_encoder`, `encoder` or `q_former`.
        model: A shipped model, a folder, or a hub id, `owner/name` or `owner/name@COMMIT`; for `encoder` as
            `load_encoder` takes it; for `q_former` a folder.
        settings: Settings of the model; the defaults if None.
        device: `cpu`, `cuda`, …; `auto` uses an accelerator if there is one.

    Raises:
        UserError: The model or device is missing, or the model is of a different kind.

    Example:
        >>> reranker = load_reranker("embedding", "miniature/text")
        >>> reranker.rank(["How tall is this tower?"], [passages], top_k=1)[0][0].score
        0.83
    """
    if kind == "words":
        return WordReranker()
    if kind == "q_former":
        from reflectune.retrieval.rerankers.q_former import QFormerReranker  # slow to import

        return QFormerReranker(Path(model), settings or TextSettings(), find_device(device))
    if kind == "encoder":
        from reflectune.retrieval.rerankers.encoder import EncoderReranker  # slow to import

        return EncoderReranker(model, settings or TextSettings(), device)
    from reflectune.retrieval.encoders.checkpoints import find_checkpoint  # slow to import, and BM25 needs none of it
    from reflectune.retrieval.rerankers.neural import CrossEncoderReranker, EmbeddingReranker

    reranker = EmbeddingReranker if kind == "embedding" else CrossEncoderReranker
    return reranker(find_checkpoint(model), settings or TextSettings(), find_device(device))


def open_reranker(config: RerankerConfig, *, device: str = "cpu") -> Reranker:
    """Load the reranker of a config; see `load_reranker`."""
    return load_reranker(config.reranker, config.reranker_model, config.reranker_settings(), device=device)
