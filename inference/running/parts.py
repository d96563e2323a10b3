"""Open the parts that an evaluation's pipelines require, and hash them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from reflectune.core.config import Settings
from reflectune.core.hashing import file_fingerprint
from reflectune.core.images_ahead import Prepare
from reflectune.core.launching import launch_processes
from reflectune.core.secrets import route_of
from reflectune.formats.dataset import LOOK_ALIKES, PROBES, Dataset
from reflectune.inference.config import ModelRole, ModelSettings, TextIndexSettings
from reflectune.inference.operators.budget import Budget, BudgetSettings
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe
from reflectune.inference.pipelines.requirements import RoleSettings
from reflectune.inference.pipelines.settings import LeadSettings
from reflectune.inference.running.loading import open_engine, open_entries, open_model, open_plain, open_texts
from reflectune.models.prefix.interface import Engine
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint, RemoteConfig
from reflectune.models.rendering.image_config import ImageKeys
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.entry_retriever import search_preparers
from reflectune.retrieval.retrievers.web import ServedPages, WebConfig


def open_parts(
    config: Settings, dataset: Dataset, recipes: Iterable[Recipe[Any]], *, device: str, seed: int
) -> PipelineParts:
    """Open the parts that pipelines require, without models and servers.

    Args:
        config: Has the settings of the parts.
        recipes: The pipelines' recipes.
        device: Device of the encoder and the reranker.
        seed: Seed of a diagnosis.
    """
    required = {requirement.name for recipe in recipes for requirement in recipe.requires}
    retriever = RetrieverConfig.of(config)
    lead = LeadSettings.of(config).lead
    return PipelineParts(
        knowledge=dataset.knowledge,
        folder=dataset.root,
        probes=DiagnosticPassages(dataset.root, dataset.manifest, dataset.knowledge, lead, seed)
        if "probes" in required
        else None,
        retriever=open_entries(retriever, dataset, device) if retriever.finds_entries else None,
        reranker=open_reranker(RerankerConfig.of(config), device=device) if "reranker" in required else None,
        texts=open_texts(TextIndexSettings.of(config), dataset, device) if required & {"texts", "pages"} else None,
    )


@contextmanager
def open_servers(
    config: Settings, parts: PipelineParts, output: Path, *, remote: bool, pages: bool
) -> Iterator[PipelineParts]:
    """Connect to the servers that pipelines use. Their replies are stored in files of this process.

    Args:
        config: Has the settings of the servers.
        parts: The other parts.
        output: Folder of the files.
        remote: True if a remote model reads or answers.
        pages: True if a search tool is used.

    Returns:
        The parts with the servers, and with the budget of a run.
    """
    model: RemoteModel | None = None
    tool: ServedPages | None = None
    with ExitStack() as stack:
        if remote:
            replies = own_file(Path(RemoteConfig.of(config).llm_cache or output / "replies.jsonl"))
            model = stack.enter_context(RemoteModel(_endpoint(config), replies))
        if pages and (web := WebConfig.of(config)).web_url:
            tool = stack.enter_context(ServedPages(web.web_endpoint(), own_file(output / "pages.jsonl")))
        budget = Budget.of(BudgetSettings.of(config), model)
        yield dataclasses.replace(parts, remote=model, pages=tool, budget=budget)
    if model is not None:
        print(model.summary())


def open_pipelines(
    config: ModelSettings, recipes: Mapping[str, Recipe[Any]], dataset: Dataset, resources: ExitStack
) -> tuple[PipelineParts, Mapping[str, PipelineParts]]:
    """Open the parts of pipelines that answer users' questions, and each model once.

    Args:
        config: Has the settings of the pipelines and their parts.
        recipes: The pipelines' recipes.
        dataset: Has the entries.
        resources: Closes the connections to servers.

    Returns:
        The shared parts, and each pipeline's by its name.
    """
    models = ModelSettings.of(config)
    uses = {name: recipe.models(config) for name, recipe in recipes.items()}
    parts = open_parts(config, dataset, recipes.values(), device=config.device, seed=0)
    if parts.texts is None:
        parts = dataclasses.replace(parts, texts=open_texts(TextIndexSettings.of(config), dataset, config.device))
    remote, pages = any(use.is_served for use in uses.values()), any(it.needs("pages") for it in recipes.values())
    replies = Path(resources.enter_context(tempfile.TemporaryDirectory()))
    parts = resources.enter_context(open_servers(config, parts, replies, remote=remote, pages=pages))
    engines: dict[tuple[ModelRole | None, str], Engine] = {}

    def engine(role: ModelRole | None, name: str, reads: str = "") -> Engine | None:
        if name and (role, name) not in engines:
            loaded = open_model(models, role, reads) if role else open_plain(models, name)
            engines[role, name] = open_engine(models, loaded)
        return engines.get((role, name))

    parts_of = {}
    for name, use in uses.items():
        ready = dataclasses.replace(
            parts,
            use=use,
            engine=engine(use.reader, use.checkpoint(models), use.reads),
            base=engine("base_model", models.base_model) if use.base_answers else None,
            answerer=engine(None, use.second_model(models)),
            gate=engine("model", models.model) if use.judges else None,
        )
        parts_of[name] = ready
    return parts, parts_of


def hash_parts(
    config: Settings, dataset: Dataset, parts: PipelineParts, *, remote: bool, seed: int
) -> Mapping[str, Any]:
    """Return everything that answers depend on of each part, by the part's name.

    Args:
        config: Has the settings of the parts.
        dataset: May list look-alikes.
        remote: True if a remote model reads or answers.
        seed: Seed of a diagnosis.
    """
    retriever, texts = RetrieverConfig.of(config), TextIndexSettings.of(config)
    server = (*hash_server(config), sorted(RoleSettings.of(config).step_models.items())) if remote else None
    entries = {
        "index": retriever.finder_fingerprint() if retriever.finds_entries else None,
        "title_weight": retriever.title_weight,
        "summary_share": retriever.summary_share,
    }
    companions = (dataset.root / name for name in (PROBES, LOOK_ALIKES))
    look_alikes = [file_fingerprint(path) for path in companions if path.is_file()]
    return {
        "entries": entries,
        "texts": texts.texts_fingerprint(),
        "pages": WebConfig.of(config).web_place,
        "reranker": parts.reranker.fingerprint if parts.reranker is not None else None,
        "remote": server,
        "probes": [seed, *look_alikes] if look_alikes else seed,
        "budget": None,  # a higher budget resumes trajectories
    }


def hash_server(config: Settings) -> tuple[Any, ...]:
    """Return everything that a server's replies depend on."""
    endpoint = _endpoint(config)
    return route_of(endpoint.url), endpoint.request([]), endpoint.max_pixels, endpoint.context, endpoint.guided


def _endpoint(config: Settings) -> Endpoint:
    """Return a config's server, with the size of the images for it."""
    return dataclasses.replace(RemoteConfig.of(config).endpoint(), max_pixels=ImageKeys.of(config).max_pixels)


def own_file(path: Path) -> Path:
    """Return this process's variant of a file."""
    index = launch_processes().index
    return path if index == 0 else path.with_suffix(f".{index}{path.suffix}")


def preparers(parts: PipelineParts, recipe: Recipe) -> list[Prepare]:
    """Return functions that make an image ready for a pipeline's reader and for its search."""
    reader = [parts.engine.renderer.preparer()] if parts.engine else []
    return [*reader, *(search_preparers(parts.retriever) if recipe.needs("entries") else ())]
