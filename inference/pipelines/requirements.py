"""Parts that pipelines require: the settings that configure them, and the problem if a config lacks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from reflectune.core.config import Settings, setting
from reflectune.core.values import checked_by
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.operators.budget import BudgetSettings
from reflectune.models.names import model_name
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.retrievers.web import WebConfig

SERVER: Final = "server"
"""Value of `reader` and `answerer` for the model behind `llm_url`."""


def answerer_problem(value: str) -> str:
    """Return a problem if this is neither `server` nor a model's name."""
    return "" if value == SERVER else model_name(value)


class RoleSettings(Settings):
    """The models of an iterative pipeline."""

    reader: Literal["base_model", "server"] = setting(
        "base_model", "iterative: who describes, writes queries and reasons: base_model, or a server's model"
    )
    answerer: Annotated[str, checked_by(answerer_problem)] = setting(
        "", "iterative: who answers from the records: a second model, or server, a server's; default: the reader"
    )

    @property
    def is_served(self) -> bool:
        """True if a server's model reads or answers."""
        return SERVER in (self.reader, self.answerer)


@dataclass(frozen=True)
class Requirement:
    """A part that pipelines require.

    Attributes:
        name: The part.
        missing: Returns the problems of a config that lacks the part, given the names of the pipelines.
        settings: Settings that configure the part.
    """

    name: str
    missing: Callable[[Any, str], Iterable[str]]
    settings: tuple[type[Settings], ...] = ()


def _model(key: str, hint: str = "") -> Requirement:
    def missing(config: Any, names: str) -> Iterable[str]:
        if not getattr(config, key):
            yield f"`{key}` is needed by {names}{hint}"

    return Requirement(key, missing)


def _no_entries(config: Any, names: str) -> Iterable[str]:
    if not config.finds_entries:
        yield f"`index` is needed by {names}, or `ranked_entities`"


def _no_index(config: Any, names: str) -> Iterable[str]:
    if config.ranked_entities:
        yield f"`index` is needed by {names}: ranked entities can't be searched with texts"
    elif not config.index:
        yield f"`index` is needed by {names}"


def _nothing_to_search(config: Any, names: str) -> Iterable[str]:
    if config.ranked_entities or not config.text_index:
        yield from _no_index(config, names)


def _no_texts(config: Any, names: str) -> Iterable[str]:
    if not config.text_index:
        yield f"`text_index` is needed by {names}: build one with `reflectune build_index --rows passages`"


def _no_pages(config: Any, names: str) -> Iterable[str]:
    if not (config.web_url or config.text_index):
        yield f"`text_index` is needed by {names}, or `web_url`: one of them finds pages"


def _no_server(config: Any, names: str) -> Iterable[str]:
    if RoleSettings.of(config).is_served:
        yield from config.llm_problems()


def _none(config: Any, names: str) -> Iterable[str]:
    return ()


TUNED_MODEL: Final = _model("model", ": a checkpoint that sft wrote")
PLAIN_MODEL: Final = _model("plain_model", ": a checkpoint of scheme plain, see build_plain")
BASE_MODEL: Final = _model("base_model")

ENTRIES: Final = Requirement("entries", _no_entries, (RetrieverConfig,))
"""Entries found by pictures: an index, or ranked entities."""
ENTRY_INDEX: Final = Requirement("entries", _no_index, (RetrieverConfig,))
"""An index of entries that is searched with pictures and texts."""
ANY_INDEX: Final = Requirement("entries", _nothing_to_search, (RetrieverConfig, TextIndexSettings))
"""An index of entries, or of passages."""
TEXTS: Final = Requirement("texts", _no_texts, (TextIndexSettings,))
"""An index of passages."""
OPTIONAL_TEXTS: Final = Requirement("texts", _none, (TextIndexSettings,))
"""An index of passages that is searched if there is one."""
PAGES: Final = Requirement("pages", _no_pages, (TextIndexSettings, WebConfig))
"""A search tool: a server, or the articles of the index of passages."""
PROBES: Final = Requirement("probes", _none)
"""Passages of the data set for a diagnosis."""
RERANKER: Final = Requirement("reranker", _none, (RerankerConfig,))
"""A reranker of passages by text; BM25 by default."""
REMOTE: Final = Requirement("remote", _no_server, (RoleSettings, RemoteConfig))
"""A server's model, needed if `reader` or `answerer` is `server`."""
BUDGET: Final = Requirement("budget", _none, (BudgetSettings,))
"""Limits of a question and of a run."""
