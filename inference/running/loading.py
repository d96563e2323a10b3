"""Load the parts of a pipeline: a model with its engine, a retriever over an index."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from reflectune.core.devices import precision_warning
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.secrets import shown_url
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import EngineSettings, ModelRole, ModelSettings, TextIndexSettings
from reflectune.models.loading import Loaded, checkpoint_scheme, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.interface import Engine
from reflectune.models.records import INFO_FILE, SAVED, read_info, resolve, stored_dtype
from reflectune.models.remote.checkpoint import load_without_weights
from reflectune.models.remote.probe import served_engine
from reflectune.models.remote.token_server import TokenServer
from reflectune.models.rendering.image_fitting import images_fingerprint, images_in_words
from reflectune.models.schemes.calibration import Calibration, load_calibration
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.schemes.registry import find_scheme
from reflectune.models.weights.pretrained import load_processor
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import Retriever, open_retriever
from reflectune.retrieval.retrievers.text_retriever import TextRetriever, open_text_retriever


def require_models(names: Iterable[str]) -> None:
    """Check that each model's folder or hub id exists and has a config, before the first model runs for hours.

    Raises:
        UserError: A model doesn't exist.
    """
    for name in dict.fromkeys(filter(None, names)):
        stored_dtype(name)


def require_tuned(models: ModelSettings) -> None:
    """Check that the checkpoint's folder, if it is one, was fine-tuned with the scheme; its weights are not read.

    Raises:
        UserError: It has no scheme, or a different one.
    """
    requested, folder = find_scheme(models.scheme) if models.scheme else None, resolve(models.model)
    if not isinstance(folder, Path) or (requested and requested.is_released):  # the tokens then tell
        return
    if checkpoint_scheme(folder, requested) is None:
        raise _untuned(models.model)


def _untuned(model: str) -> UserError:
    return UserError(
        f"`model`: {model} is not fine-tuned: its reflection tokens are untrained; give a folder that train/sft.py "
        "wrote"
    )


def open_tuned(models: ModelSettings) -> Loaded:
    """Load the fine-tuned checkpoint.

    Raises:
        UserError: It has no scheme, a different scheme, or was never fine-tuned; or its calibration can't be read.
    """
    loaded = _load(models, models.model, models.scheme or None)
    if not loaded.is_tuned:
        raise _untuned(models.model)
    if calibration := open_calibration(models):
        scalings = sorted((name, asdict(gate)) for name, gate in calibration.gates.items())
        return replace(loaded, calibration=calibration.gates, fingerprint=fingerprint([loaded.fingerprint, scalings]))
    return loaded


def open_calibration(models: ModelSettings) -> Calibration | None:
    """Read the fine-tuned checkpoint's calibration; None unless `calibrated` is set."""
    if not models.calibrated:
        return None
    folder = Path(resolve(models.model))
    return load_calibration(folder, saved_weights(folder))


def calibration_for(models: ModelSettings, dataset: Dataset, splits: Iterable[str]) -> Calibration:
    """Read the calibration for an evaluation of these splits; an empty one unless `calibrated` is set.

    Raises:
        UserError: The calibration was fitted on one of the splits.
    """
    saved = open_calibration(models) or Calibration()
    if saved.dataset == dataset.fingerprint and (shared := sorted({*saved.splits} & {*splits})):
        raise UserError(f"`calibrated`: {models.model} was calibrated on {', '.join(shared)}; evaluate on other splits")
    return saved


def saved_weights(folder: Path) -> str:
    """Return the hash of a checkpoint's weights in its record."""
    return str(read_info(folder).get(SAVED, ""))


def open_model(models: ModelSettings, role: ModelRole, reads: str = "") -> Loaded:
    """Load the model of a role, and check its scheme.

    Args:
        models: The models.
        role: The role.
        reads: Contexts that select one of several plain models.

    Raises:
        UserError: It was not fine-tuned with the scheme that the role needs.
    """
    if role == "model":
        return open_tuned(models)
    loaded = open_plain(models, models.checkpoint(role, reads))
    if role == "plain_model" and (loaded.scheme is None or loaded.scheme.name != PLAIN.name):
        raise UserError(
            f"`plain_model`: {loaded.name} was not fine-tuned with scheme plain; the untuned model is "
            "`base_model`, and one that reflects is `model`"
        )
    return loaded


def tuned_on(name: str) -> tuple[str, ...]:
    """Return the contexts that a checkpoint was trained to answer from, as build_plain named them; () if unknown."""
    source = resolve(name)
    info = read_info(source) if isinstance(source, Path) and (source / INFO_FILE).is_file() else {}
    return tuple(info.get("training", {}).get("evidence", ()))


def open_plain(models: ModelSettings, name: str) -> Loaded:
    """Load a model without requiring a scheme, normally the untuned base.

    Raises:
        UserError: The model is of the checkpoint's family, but resizes images differently.
    """
    loaded = _load(models, name, None)
    if models.model and Path(models.model).is_dir():
        _refuse_other_images(loaded, Path(models.model))
    return loaded


def _refuse_other_images(base: Loaded, checkpoint: Path) -> None:
    """Raise a UserError if two models of one family, which are compared or combined, resize images differently."""
    processor = load_processor(checkpoint, base.model.config.model_type)
    if type(processor) is not type(base.processor):
        return
    if images_fingerprint(processor) != images_fingerprint(base.processor):
        raise UserError(
            f"{checkpoint} was trained on images that were fitted with {images_in_words(processor)}, but "
            f"{base.name} would see them with {images_in_words(base.processor)}; give the first in the config, for both"
        )


def _load(models: ModelSettings, model: str, scheme: str | None) -> Loaded:
    if url := models.server_of(model):
        return load_without_weights(model, shown_url(url), scheme=scheme, images=models.image_settings())
    loaded = load(
        model,
        scheme=scheme,
        dtype=models.precision,
        device=models.device,
        images=models.image_settings(),
        device_map=models.device_map,
    )
    if slow := precision_warning(models.precision, loaded.model.device):
        warnings.warn(slow, stacklevel=2)
    return loaded


def open_engine(settings: EngineSettings, loaded: Loaded) -> Engine:
    """Return the engine of a loaded model, or of a server, after a check that it serves this checkpoint."""
    if isinstance(settings, ModelSettings) and (url := settings.server_of(loaded.name)):
        return served_engine(loaded, TokenServer(settings.connect(url, loaded.name, "server")))
    return PrefixEngine(loaded, settings.token_budget, compiling=settings.compile == "auto")


def open_entries(settings: RetrieverConfig, dataset: Dataset, device: str) -> Retriever:
    """Open the retriever over ranked entities, or over the index of the data set's knowledge base."""
    return open_retriever(settings, dataset.knowledge, image_roots=dataset.image_roots, device=device)


def open_texts(settings: TextIndexSettings, dataset: Dataset, device: str) -> TextRetriever | None:
    """Open the retriever over the index of passages; None without one."""
    if not settings.text_index:
        return None
    return open_text_retriever(settings.text_index, settings.article_source(dataset), device=device)
