"""Encode an image, a text, or both with a multimodal LLM, as the last token's hidden state.

Any family that `models/loading.py` loads works. The prompts are those that a model was trained with:

- **gme** (Alibaba-NLP/gme-Qwen2-VL-2B-Instruct, arXiv 2412.16855): a chat of Qwen2-VL with an instruction as the
  system prompt, the image and the text as the user's turn, and `<|endoftext|>` after the assistant's cue as the last
  token; images of 256 to 1,280 tokens.
- **vlm2vec** (TIGER-Lab/VLM2Vec, arXiv 2410.05160): no chat; for an image the image token and a sentence, for a text
  the text alone.
- **qwen3_vl** (Qwen/Qwen3-VL-Embedding-2B, arXiv 2601.04720): a chat of Qwen3-VL with an instruction as the system
  prompt, and the image and the text as the user's turn; images of 4 to 1,800 tokens.
- **bge_vl** (BAAI/BGE-VL-MLLM-S1, arXiv 2412.14475): a turn of Mistral; images of 512 × 512. An image or a text alone
  has the prompt of a candidate; both together have that of a query, without a task.

Vectors are scaled to length 1, and texts are not truncated. Models must be full checkpoints: merge an adapter first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import to_rgb
from reflectune.models.loading import Loaded, load
from reflectune.models.names import EMBEDDERS
from reflectune.models.prefix.forward import Forward, find_budget
from reflectune.models.rendering.image_config import AS_IN_PROCESSOR, ImageSettings
from reflectune.models.rendering.image_fitting import fit_images
from reflectune.models.rendering.renderer import Chunks, Rendered
from reflectune.models.rendering.turns import Slot
from reflectune.retrieval.encoders.base import ImageTextEncoder, Vectors, dtype_name, unit_rows

IMAGE: Final = "{image}"
"""Placeholder of the family's image token in the prompts below."""
_TEXT: Final = Slot("text")
_SPECIAL: Final = re.compile(r"<\|\w+\|>|<(?:s|instruct|query)>")
"""Special tokens of the prompts below."""
_QWEN_IMAGE: Final = f"<|vision_start|>{IMAGE}<|vision_end|>"


@dataclass(frozen=True)
class EmbeddingPrompts:
    """Prompts of a multimodal LLM that was trained to embed.

    Attributes:
        image: Prompt of an image.
        text: Prompt of a text.
        both: Prompt of an image with a text.
        images: Image settings.
        square: Side in pixels of the square that images are resized to first; 0: none.
    """

    image: Chunks
    text: Chunks
    both: Chunks
    images: ImageSettings = AS_IN_PROCESSOR
    square: int = 0


def _qwen_chat(instruction: str, *user: str | Slot, end: str = "") -> Chunks:
    system = f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n"
    return (system, *user, f"<|im_end|>\n<|im_start|>assistant\n{end}")


_gme_chat = partial(_qwen_chat, "You are a helpful assistant.", end="<|endoftext|>")
_qwen3_chat = partial(_qwen_chat, "Represent the user's input.")


PROMPTS: Final[Mapping[str, EmbeddingPrompts]] = {
    "gme": EmbeddingPrompts(
        image=_gme_chat(_QWEN_IMAGE),
        text=_gme_chat(_TEXT),
        both=_gme_chat(_QWEN_IMAGE, _TEXT),
        images=ImageSettings(min_pixels=256 * 28 * 28, max_pixels=1280 * 28 * 28),
    ),
    "vlm2vec": EmbeddingPrompts(
        image=(f"{IMAGE} Represent the given image.",),
        text=(_TEXT,),
        both=(f"{IMAGE} Represent the given image with the following question: ", _TEXT),
    ),
    "qwen3_vl": EmbeddingPrompts(
        image=_qwen3_chat(_QWEN_IMAGE),
        text=_qwen3_chat(_TEXT),
        both=_qwen3_chat(_QWEN_IMAGE, _TEXT),
        images=ImageSettings(min_pixels=4 * 32 * 32, max_pixels=1800 * 32 * 32),
    ),
    "bge_vl": EmbeddingPrompts(
        image=(f"<s>[INST]  {IMAGE} [/INST]",),
        text=("<s>[INST]  ", _TEXT, " \n [/INST]"),
        both=("<s>[INST] \n <instruct>  <query> ", _TEXT, f" \n {IMAGE} [/INST]"),
        square=512,
    ),
}
"""Prompts by name."""

PUBLISHED: Final[Mapping[str, str]] = {
    "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct": "gme",
    "Alibaba-NLP/gme-Qwen2-VL-7B-Instruct": "gme",
    "TIGER-Lab/VLM2Vec-LLaVa-Next": "vlm2vec",
    **{f"Qwen/Qwen3-VL-Embedding-{size}": "qwen3_vl" for size in ("2B", "8B")},
    **{f"BAAI/BGE-VL-MLLM-{stage}": "bge_vl" for stage in ("S1", "S2")},
}
"""Names of the prompts of published repositories, by hub id."""


def embedder_of(name: str) -> tuple[str, str] | None:
    """Split an encoder's name, such as `gme:MODEL`, into prompts' name and model; return None for other encoders."""
    prompts, colon, model = name.partition(":")
    if colon and prompts in EMBEDDERS:
        return prompts, model
    return (PUBLISHED[name], name) if name in PUBLISHED else None


class LvlmEncoder(ImageTextEncoder):
    """Multimodal LLM that encodes its input as the last token's hidden state.

    Args:
        name: Name as given by the user.
        prompts: Name of the prompts, a key of `PROMPTS`.
        model: Name of the model.
        device: Device of the model.
        dtype: Precision of the weights.

    Raises:
        UserError: The model is missing, or lacks a special token of the prompts.
    """

    reads_pairs = True

    def __init__(self, name: str, prompts: str, model: str, device: torch.device, dtype: torch.dtype) -> None:
        self._prompts = PROMPTS[prompts]
        # the head is not used, and Qwen3-VL-Embedding-8B has none
        loaded = load(model, dtype=dtype, device=str(device), may_lack=("lm_head.",))
        _check_tokens(loaded, name, prompts)
        fit_images(loaded.processor, loaded.model.config.model_type, self._prompts.images)
        self.name, self.precision = name, dtype_name(dtype)
        self.fingerprint = fingerprint(["lvlm", self._prompts, loaded.fingerprint])
        self._renderer = loaded.renderer
        self._forward = Forward(loaded.model.requires_grad_(False))
        self._budget = find_budget(self._forward)
        self.dimensions = int(loaded.model.config.get_text_config().hidden_size)

    def prepare(self, image: Image.Image) -> Rendered:
        """Return the model input of an image."""
        return self._render(self._prompts.image, "", image)

    def encode_prepared(self, joined: Sequence[Rendered]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        return self._encode(joined)

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return vectors of images, of length 1, shape (n, dimensions)."""
        return self._encode([self.prepare(image) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of texts, of length 1, shape (n, dimensions)."""
        return self._encode([self._render(self._prompts.text, text, None) for text in texts])

    def encode_pairs(self, images: Sequence[Image.Image], texts: Sequence[str]) -> Vectors:
        """Return vectors of pairs of an image and a text, of length 1, shape (n, dimensions)."""
        pairs = zip(images, texts, strict=True)
        return self._encode([self._render(self._prompts.both, text, image) for image, text in pairs])

    def _render(self, chunks: Chunks, text: str, image: Image.Image | None) -> Rendered:
        filled = tuple(
            part if isinstance(part, Slot) else part.replace(IMAGE, self._renderer.processor.image_token)
            for part in chunks
        )
        if image is not None:
            image, square = to_rgb(image), self._prompts.square
            image = image.resize((square, square)) if square else image
        return self._renderer.document(filled, {_TEXT.name: text}, image)

    @torch.inference_mode()
    def _encode(self, rendered: Sequence[Rendered]) -> Vectors:
        """Return vectors of rendered inputs, encoded in batches of similar length within the token budget."""
        vectors = np.empty((len(rendered), self.dimensions), dtype=np.float32)
        for batch in self._forward.batches([len(row.ids) for row in rendered], self._budget):
            vectors[batch] = unit_rows(self._forward.prefill([rendered[row] for row in batch]).hidden, self.name)
        return vectors


def _check_tokens(loaded: Loaded, name: str, prompts: str) -> None:
    """Refuse a model whose tokenizer lacks a special token of the prompts and would split it as text."""
    tokenizer = loaded.renderer.tokenizer
    text = "".join(part for part in PROMPTS[prompts].both if isinstance(part, str)).replace(IMAGE, "")
    known = tokenizer.get_added_vocab()
    if missing := [token for token in dict.fromkeys(_SPECIAL.findall(text)) if token not in known]:
        raise UserError(
            f"{name} lacks the token{'s' * (len(missing) > 1)} {', '.join(missing)}, which the prompts of "
            f"`{prompts}` contain; use a model that was trained with them"
        )
