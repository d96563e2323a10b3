"""Settings that the commands of inference share: the data set, the models, the index of passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.hashing import file_fingerprint
from reflectune.core.values import Dtype
from reflectune.formats.dataset import Dataset, DatasetKey
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.models.names import PlacementKeys, model_name
from reflectune.models.remote.endpoint import ConnectionKeys, url_problem
from reflectune.models.rendering.image_config import ImageKeys
from reflectune.models.schemes.registry import reflecting_schemes
from reflectune.retrieval.config import missing_encoder
from reflectune.retrieval.contexts import CONTEXT_FORMS

ModelRole = Literal["model", "plain_model", "base_model"]
"""The keys that name a model: tuned to reflect, tuned without reflection, not tuned."""


class DatasetSettings(DatasetKey):
    """The data set, and whether a command only describes its work."""

    dry_run: bool = setting(False, "describe the run without starting it", hashed=False)


class EngineSettings(Settings):
    """Settings of the engine that reads with a model."""

    token_budget: int | None = setting(
        None, "maximum tokens per forward pass; results don't depend on it; as many as fit the memory if unset", ge=1
    )
    compile: Literal["auto", "off"] = setting(
        "auto", "on a GPU, pack questions into one row by compiled attention, and compile the layers in long runs"
    )


class BaseModelSettings(Settings):
    """The untuned model."""

    base_model: str = setting(
        "",
        "untuned model, used by closed_book, naive_rag, oracle, and MMKB-RAG to answer",
        hashed=False,  # its content is
    )

    def roles(self) -> list[ModelRole]:
        """Return the keys whose models are loaded, so that they must exist now."""
        return ["base_model"]

    @cross_check
    def role_problems(self) -> Iterator[str]:
        """Yield the problems of the models' names."""
        for role in self.roles():
            named = getattr(self, role)
            for name in named.values() if isinstance(named, dict) else [named]:
                if problem := model_name(name):
                    yield f"`{role}` {problem}"


class ModelSettings(BaseModelSettings, EngineSettings, PlacementKeys, ImageKeys, ConnectionKeys):
    """The models of pipelines, and how they are loaded."""

    model: str = setting("", "checkpoint that was fine-tuned to reflect", hashed=False)  # its content is
    plain_model: str | dict[str, str] = setting(
        "",
        "tuned_baselines: the base, fine-tuned without reflection (scheme plain); or a mapping of contexts (none, "
        "article, articles, passage, passages) to the checkpoints that read them",
        hashed=False,  # their content is
    )
    scheme: str = setting("", "the scheme that the checkpoint must have been tuned with")
    calibrated: bool = setting(
        False, "scale gates by the checkpoint's calibration.json; gamma and threshold then compare calibrated values"
    )

    server: str | dict[str, str] = setting(
        "",
        "vLLM server of all models, e.g. http://localhost:8000/v1; or a mapping of model names to servers; other "
        "models are loaded in this process",
        secret=True,
    )

    def roles(self) -> list[ModelRole]:
        """Return the keys whose models are loaded, so that they must exist now."""
        return ["model", "base_model", "plain_model"]

    @property
    def precision(self) -> Dtype:
        """The precision that models are loaded in; the same on all machines if a server has all models."""
        is_served = isinstance(self.server, str) and bool(self.server)
        return "float32" if is_served and self.dtype == "auto" else super().precision

    def server_of(self, name: str) -> str:
        """Return the URL of the server that runs a model; "" if it is loaded in this process."""
        return self.server if isinstance(self.server, str) else self.server.get(name, "")

    @cross_check
    def server_problems(self) -> Iterator[str]:
        """Yield the problems of `server`: invalid URLs, and models that no key names."""
        servers = {"": self.server} if isinstance(self.server, str) else self.server
        plain = self.plain_model.values() if isinstance(self.plain_model, dict) else [self.plain_model]
        named = {"", self.model, self.base_model, *plain, getattr(self, "answerer", "")}
        for name, url in servers.items():
            if (url or name) and (problem := url_problem(url)):
                yield f"`server` {problem}"
            if name not in named:
                yield f"`server` names {name}, which no key does; name one of {', '.join(sorted(named - {''}))}"

    def checkpoint(self, role: ModelRole, reads: str = "") -> str:
        """Return the name of a role's model; "" for none.

        Args:
            role: The role.
            reads: Contexts that the model reads, if `plain_model` maps contexts to models.
        """
        named: str | dict[str, str] = getattr(self, role)
        return named if isinstance(named, str) else named.get(reads, "")

    @cross_check
    def reader_problems(self) -> Iterator[str]:
        """Yield the problem of unknown contexts in `plain_model`."""
        readers = self.plain_model if isinstance(self.plain_model, dict) else {}
        if unknown := [reads for reads in readers if reads not in ("none", *CONTEXT_FORMS)]:
            yield f"`plain_model`: contexts are none, {', '.join(CONTEXT_FORMS)}; found {', '.join(unknown)}"

    @cross_check
    def scheme_problems(self) -> Iterator[str]:
        """Yield the problem of an unknown scheme."""
        if self.scheme and self.scheme not in reflecting_schemes():
            yield f"`scheme` is one of {', '.join(reflecting_schemes())}; found `{self.scheme}`"


class TextIndexSettings(Settings):
    """The index of passages."""

    text_index: str = setting("", "text_rag, iterative: index of passages; see `build_index --rows passages`")
    text_knowledge: str = setting("", "the knowledge base of that index; default: the data set's")

    @cross_check
    def text_index_problems(self) -> Iterator[str]:
        """Yield the problems of folders that are not an index or a knowledge base, and of a missing encoder."""
        for key, marker in (("text_index", "manifest.json"), ("text_knowledge", "kb.json")):
            if (folder := getattr(self, key)) and not Path(folder, marker).is_file():
                yield f"`{key}`: {folder} has no {marker}"
        yield from missing_encoder("text_index", self.text_index)

    def article_source(self, dataset: Dataset) -> KnowledgeBase:
        """Return the knowledge base of the index."""
        return KnowledgeBase(self.text_knowledge) if self.text_knowledge else dataset.knowledge

    def texts_fingerprint(self) -> str:
        """Return the hash of the index's manifest; "" without an index."""
        return file_fingerprint(Path(self.text_index, "manifest.json")) if self.text_index else ""
