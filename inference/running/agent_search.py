"""Open the searches of an agent's tools, for a scripted teacher or for training."""

from __future__ import annotations

from reflectune.formats.dataset import Dataset
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.operators.searching import knowledge_bases
from reflectune.inference.operators.trajectory import SearchFunction
from reflectune.inference.pipelines.promsa import PromsaSettings
from reflectune.inference.running.loading import open_entries, open_texts
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.ranked_retriever import RankedRetriever


def agent_search(
    dataset: Dataset, settings: PromsaSettings, retriever: RetrieverConfig, texts: TextIndexSettings, device: str
) -> tuple[SearchFunction, str]:
    """Return the search of ProMSA's tools, and the name of the base that text_search searches.

    Args:
        dataset: The data set with its knowledge base.
        settings: The pipeline's settings.
        retriever: The index of entries, or entries ranked for each image.
        texts: The index of passages; needed without an index of entries.
        device: Device of the encoders.
    """
    entries = open_entries(retriever, dataset, device)
    assert isinstance(entries, EntryRetriever | RankedRetriever)  # a config selects one of these
    passages = open_texts(texts, dataset, device)
    opened = knowledge_bases(
        entries,
        passages,
        dataset.knowledge,
        "section",
        search=settings,
        top_n=0,
        lead=settings.lead,
    )
    return opened.search, "texts" if passages else "pairs"
