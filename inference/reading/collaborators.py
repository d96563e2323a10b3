"""Load the parts of a pipeline: a model with its engine, a retriever over an index, a reranker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.launching import launch_device
from reflectune.formats.dataset import image_roots
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.config import ModelRole, ReadingConfig
from reflectune.models.loading import ADAPTER_FILE, Loaded, is_stored_in, load, read_info, resolve
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.processing.image_fitting import images_fingerprint, images_in_words
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.weights.pretrained import load_processor
from reflectune.retrieval.rerankers import loading as rerankers
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.retrievers import entry_retriever
from reflectune.retrieval.retrievers.entry_retriever import Retriever


def require_models(names: Iterable[str]) -> None:
    """Check that each model exists, by its folder or hub id and its config, before the first one runs for hours.

    Raises:
        UserError: A model doesn't exist.
    """
    for name in dict.fromkeys(filter(None, names)):
        source = resolve(name)
        if isinstance(source, Path) and (source / ADAPTER_FILE).is_file():
            require_models([str(read_info(source)["base_model"])])
        else:
            is_stored_in(name, "float32")


def open_tuned(config: ReadingConfig) -> Loaded:
    """Load the config's fine-tuned checkpoint.

    Raises:
        UserError: It has no scheme, a different scheme, or was never fine-tuned.
    """
    loaded = _load(config, config.model, config.scheme or None)
    if not loaded.is_tuned:
        raise UserError(
            f"`model`: {config.model} is not fine-tuned: its reflection tokens would mean nothing; give a folder "
            "that train/sft.py wrote"
        )
    return loaded


def open_model(config: ReadingConfig, role: ModelRole) -> Loaded:
    """Load the model of a role, and check its scheme.

    Raises:
        UserError: It was not fine-tuned with the scheme that the role needs.
    """
    if role == "model":
        return open_tuned(config)
    loaded = open_plain(config, getattr(config, role))
    if role == "plain_model" and (loaded.scheme is None or loaded.scheme.name != PLAIN.name):
        raise UserError(
            f"`plain_model`: {config.plain_model} was not fine-tuned with scheme plain; the untuned model is "
            "`base_model`, and one that reflects is `model`"
        )
    return loaded


def open_plain(config: ReadingConfig, name: str) -> Loaded:
    """Load a model without a scheme, normally a base without reflection tokens.

    Raises:
        UserError: It is of the checkpoint's family, and fits pictures differently.
    """
    loaded = _load(config, name, None)
    if config.model and Path(config.model).is_dir():
        _refuse_other_images(loaded, Path(config.model))
    return loaded


def _refuse_other_images(base: Loaded, checkpoint: Path) -> None:
    """Raise a UserError if two models of a family, which are compared or work together, fit pictures differently."""
    processor = load_processor(checkpoint, base.model.config.model_type)
    if type(processor) is not type(base.processor):
        return
    if images_fingerprint(processor) != images_fingerprint(base.processor):
        raise UserError(
            f"{checkpoint} was trained on pictures that were fitted with {images_in_words(processor)}, but "
            f"{base.name} would see them with {images_in_words(base.processor)}; give the first in the config, for both"
        )


def _load(config: ReadingConfig, model: str, scheme: str | None) -> Loaded:
    return load(
        model,
        scheme=scheme,
        dtype=config.dtype,
        device=launch_device(config.device),
        images=config.image_settings(),
        device_map=config.device_map,
    )


def open_engine(config: ReadingConfig, loaded: Loaded) -> PrefixEngine:
    """Return the engine of a loaded model."""
    return PrefixEngine(loaded, config.token_budget, config.keep_images)


def open_retriever(config: ReadingConfig, knowledge: KnowledgeBase) -> Retriever:
    """Open the retriever over the config's ranked entities, or over its index of this knowledge base."""
    roots = image_roots(config.dataset)
    return entry_retriever.open_retriever(config, knowledge, image_roots=roots, device=launch_device(config.device))


def open_reranker(config: ReadingConfig) -> Reranker:
    """Load the reranker of naive RAG's passages."""
    return rerankers.open_reranker(config, device=launch_device(config.device))
