"""Parts that pipelines require: the settings that configure them, and the problem if a config lacks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import checked_by
from reflectune.inference.config import ModelRole, TextIndexSettings
from reflectune.inference.operators.budget import BudgetSettings
from reflectune.inference.operators.requests import WriteOperator
from reflectune.models.names import model_name
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.retrievers.web import WebConfig

SERVER: Final = "server"
"""Value of `reader` and `answerer` for the model behind `llm_url`."""


class RoleSettings(Settings):
    """The models of iterative pipelines, and the one of baselines that are not tuned."""

    reader: Literal["base_model", "server"] = setting(
        "base_model", "model of baselines and of iterative pipelines' steps: base_model, or the server's"
    )
    answerer: Annotated[str, checked_by(lambda name: "" if name == SERVER else model_name(name))] = setting(
        "", "iterative: model that answers from the records: a second model, or `server`; default: the reader"
    )

    step_models: dict[WriteOperator, str] = setting(
        {}, "iterative: the server's models of single operators, e.g. {caption: Qwen3-VL-2B}; for others `llm_model`"
    )

    @cross_check
    def step_problems(self) -> Iterator[str]:
        """Yield the problems of `step_models` that are not used."""
        if self.step_models and self.reader != SERVER:
            yield "`step_models` needs `reader: server`"
        elif "answer" in self.step_models and self.answerer not in ("", SERVER):
            yield f"`step_models` and `answerer: {self.answerer}` both name the model that answers; leave one out"

    @property
    def is_served(self) -> bool:
        """True if a server's model reads or answers."""
        return SERVER in (self.reader, self.answerer)


@dataclass(frozen=True)
class Requirement:
    """A part that pipelines require.

    Attributes:
        name: The part.
        settings: Settings that configure the part.
        missing: Returns the problems of a config that lacks the part, given the names of the pipelines.
    """

    name: str
    settings: tuple[type[Settings], ...] = ()
    missing: Callable[[Any, str], Iterable[str]] = lambda config, names: ()


def _lacking(sentence: str, *keys: str) -> Callable[[Any, str], Iterable[str]]:
    """Return a check that a config gives one of these keys; `{}` in the sentence stands for the pipelines' names."""
    return lambda config, names: () if any(getattr(config, key) for key in keys) else (sentence.format(names),)


def _no_index(config: Any, names: str, needed: str = "`index`") -> Iterable[str]:
    if config.ranked_entities:
        yield f"{needed} is needed by {names}: ranked entities can't be searched with texts"
    elif not config.index:
        yield f"{needed} is needed by {names}"


def _nothing_to_search(config: Any, names: str) -> Iterable[str]:
    if not config.text_index:
        yield from _no_index(config, names, "`index` or `text_index`")


def _no_lists(config: Any, names: str) -> Iterable[str]:
    if config.ranked_entities and not config.text_index:
        yield f"`text_index` is needed by {names}: ranked entities can't be searched with texts"
    elif not config.finds_entries:
        yield f"`index` is needed by {names}, or `ranked_entities` and `text_index`"


def _no_server(config: Any, names: str) -> Iterable[str]:
    if RoleSettings.of(config).is_served:
        yield from config.llm_problems()


def _reads_images(key: str = "", value: str = "") -> Callable[[Any, str], Iterable[str]]:
    """Return a check that the reranker reads only texts, which applies if the key has this value, or if it is ""."""

    def missing(config: Any, names: str) -> Iterable[str]:
        if not key or getattr(config, key) == value:
            yield from config.text_issues(names)

    return missing


_WRITTEN_BY: Final[Mapping[ModelRole, str]] = {
    "model": ": a checkpoint that sft wrote",
    "plain_model": ": a checkpoint of scheme plain, see build_plain",
    "base_model": "",
}
MODELS: Final[Mapping[ModelRole, Requirement]] = {
    role: Requirement(role, missing=_lacking(f"`{role}` is needed by {{}}{written}", role))
    for role, written in _WRITTEN_BY.items()
}

ENTRIES: Final = Requirement(
    "entries", (RetrieverConfig,), _lacking("`index` is needed by {}, or `ranked_entities`", "finds_entries")
)
"""Entries found by images: an index, or ranked entities."""
ENTRY_INDEX: Final = Requirement("entries", (RetrieverConfig,), _no_index)
"""An index of entries that is searched with images and texts."""
LISTED_ENTRIES: Final = Requirement("entries", (RetrieverConfig, TextIndexSettings), _no_lists)
"""An index of entries, or entries ranked for each image and an index of passages."""
ANY_INDEX: Final = Requirement("entries", (RetrieverConfig, TextIndexSettings), _nothing_to_search)
"""An index of entries, or of passages, perhaps with entries ranked for each image."""
TEXTS: Final = Requirement(
    "texts",
    (TextIndexSettings,),
    _lacking("`text_index` is needed by {}: build one with `reflectune build_index --rows passages`", "text_index"),
)
"""An index of passages."""
OPTIONAL_TEXTS: Final = Requirement("texts", (TextIndexSettings,))
"""An index of passages that is searched if there is one."""
PAGES: Final = Requirement(
    "pages",
    (TextIndexSettings, WebConfig),
    _lacking("`text_index` is needed by {}, or `web_url`: one of them finds pages", "web_url", "text_index"),
)
"""A search tool: a server, or the articles of the index of passages."""
PROBES: Final = Requirement("probes")
"""Passages of the data set for a diagnosis."""
RERANKER: Final = Requirement("reranker", (RerankerConfig,))
"""A reranker of passages; BM25 by default."""
TEXT_RERANKER: Final = Requirement("reranker", (RerankerConfig,), _reads_images())
"""A reranker that is given texts alone."""
DOCUMENT_RERANKER: Final = Requirement("reranker", (RerankerConfig,), _reads_images("documents_by", "reranker"))
"""The same, needed with `documents_by: reranker`."""
UNIT_RERANKER: Final = Requirement("reranker", (RerankerConfig,), _reads_images("unit", "passage"))
"""The same, needed with `unit: passage`."""
REMOTE: Final = Requirement("remote", (RoleSettings, RemoteConfig), _no_server)
"""A server's model, needed if `reader` or `answerer` is `server`."""
BUDGET: Final = Requirement("budget", (BudgetSettings,))
"""Limits of a question and of a run."""
