"""Settings that several pipelines share."""

from __future__ import annotations

from reflectune.core.config import Settings, setting
from reflectune.formats.passages import Lead


class AnswerSettings(Settings):
    """Length of an answer."""

    max_new_tokens: int = setting(32, "maximum number of tokens of an answer", ge=1)


class LeadSettings(AnswerSettings):
    """Form of passages."""

    lead: Lead = setting("first_sentence", "text before each passage: none, or a description of the entry")


class DepthSettings(Settings):
    """Number of entries to retrieve."""

    top_n: int = setting(5, "entries to retrieve for a question", ge=1)


class EntrySettings(DepthSettings, LeadSettings):
    """Settings of pipelines that answer from passages of retrieved entries."""


class PickingSettings(Settings):
    """Number of passages to read."""

    passages: int = setting(5, "naive_rag, text_rag, IBA, MM-R2: passages to read", ge=1)


class GateSettings(Settings):
    """Threshold of the retrieval gate."""

    gamma: float = setting(
        0.5, "γ: retrieve if the gate's probability is at least this (MMKB-RAG: above it)", ge=0, le=1
    )


class EntryShareSettings(Settings):
    """Form of S_ret."""

    s_ret_temperature: float = setting(
        0.0,
        "mR²AG: S_ret is a softmax of similarity / temperature over the retrieved entries; MMKB-RAG: documents are "
        "ranked by the SRT score times that softmax; 0: as published",
        ge=0,
    )
