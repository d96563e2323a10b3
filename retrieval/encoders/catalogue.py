"""Facts about published encoders and rerankers that configs name or that we suggest.

Compiled from the repositories' file lists and model cards; none of their files was opened. A repository that is not
listed is simply tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Published:
    """Facts about a repository.

    Attributes:
        use: `encoder` (images and titles), `embedding` or `cross_encoder` (rerankers).
        weights: Format of its weights: `safetensors`; `pickle`: pytorch_model.bin only, which needs `@commit`; `own
            code`: needs the repository's code, which is never run.
        licence: Licence by its model card.
        pixels: Side of the square that an image is resized to; None for texts.
        commit: Commit to pin, for `pickle`.
        note: Anything else worth knowing.
    """

    use: Literal["encoder", "embedding", "cross_encoder"]
    weights: Literal["safetensors", "pickle", "own code"]
    licence: str
    pixels: int | None = None
    commit: str = ""
    note: str = ""


CATALOGUE: Mapping[str, Published] = {
    "openai/clip-vit-large-patch14-336": Published(
        "encoder",
        "pickle",
        "none stated; openai/CLIP, which it was converted from, is MIT",
        pixels=336,
        commit="ce19dc912ca5cd21c8a653c79e251e808ccabcd1",
        note="mR²AG's retriever; shortest side to 336, then the centre",
    ),
    "openai/clip-vit-large-patch14": Published(
        "encoder",
        "safetensors",
        "none stated; openai/CLIP, which it was converted from, is MIT",
        pixels=224,
        note="the nearest to mR²AG's retriever that has safetensors; shortest side to 224, then the centre",
    ),
    "google/siglip-so400m-patch14-384": Published(
        "encoder", "safetensors", "Apache-2.0", pixels=384, note="both sides to 384, nothing cut off"
    ),
    "google/siglip2-so400m-patch14-384": Published(
        "encoder", "safetensors", "Apache-2.0", pixels=384, note="both sides to 384, nothing cut off"
    ),
    "google/siglip2-giant-opt-patch16-384": Published(
        "encoder",
        "safetensors",
        "Apache-2.0",
        pixels=384,
        note="PMSR's image tower; both sides to 384, nothing cut off",
    ),
    "BAAI/EVA-CLIP-8B": Published(
        "encoder",
        "pickle",
        "Apache-2.0",
        pixels=224,
        commit="feabc73833cf6198fa5b76a067651ab363a24d65",
        note="Encyclopedic-VQA's and ReflectiVA's retriever; its model is code of its own, which is never run: "
        "eva_clip.py is that model; shortest side to 224, then the centre; 33 GB in float32, 16 in bfloat16",
    ),
    **{
        f"BAAI/BGE-VL-{size}": Published(
            "encoder",
            "safetensors",
            "MIT",
            pixels=224,
            note="a CLIP with code of its own, which is never run: it is read as any CLIP",
        )
        for size in ("base", "large")
    },
    "nvidia/MM-Embed": Published(
        "encoder",
        "own code",
        "CC-BY-NC-4.0",
        pixels=336,
        note="its model is code of its own, which is never run; take Alibaba-NLP/gme-Qwen2-VL-2B-Instruct",
    ),
    "Salesforce/SFR-Embedding-Mistral": Published(
        "embedding", "safetensors", "CC-BY-NC-4.0, for research", note="LLaVA-SFR's filter; it reads as presets.py says"
    ),
    "facebook/contriever-msmarco": Published(
        "embedding",
        "pickle",
        "none stated; facebookresearch/contriever is CC-BY-NC-4.0",
        commit="abe8c1493371369031bcb1e02acb754cf4e162fa",
        note="it reads as presets.py says, as facebook/contriever does",
    ),
    **{
        f"Alibaba-NLP/gte-{size}-en-v1.5": Published(
            "embedding",
            "own code",
            "Apache-2.0",
            note="its model is code of its own, which is never run; take Alibaba-NLP/gte-modernbert-base",
        )
        for size in ("base", "large")
    },
    "Alibaba-NLP/gte-modernbert-base": Published(
        "embedding", "safetensors", "Apache-2.0", note="MI-RAG's text encoder; reads 8192 tokens"
    ),
    "Qwen/Qwen3-Embedding-0.6B": Published(
        "embedding", "safetensors", "Apache-2.0", note="PMSR's text encoder; it reads as presets.py says"
    ),
    "BAAI/bge-reranker-v2-m3": Published("cross_encoder", "safetensors", "Apache-2.0", note="reads 8192 tokens"),
    "cross-encoder/ms-marco-MiniLM-L-6-v2": Published(
        "cross_encoder", "safetensors", "Apache-2.0", note="English; reads 512 tokens"
    ),
}
"""By hub id, or by a miniature's name."""
