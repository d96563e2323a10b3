"""A multimodal language model as an encoder: the state of the last token, of an image, a text, or both.

Any family that `models/loading.py` loads can be one; the prompts are those of its training:

- **gme** (Alibaba-NLP/gme-Qwen2-VL-2B-Instruct, arXiv 2412.16855): a chat of Qwen2-VL with an instruction as its
  system prompt, the image and the text as the user's turn, and `<|endoftext|>` after the assistant's cue, which is
  the token whose state is taken; images of 256 to 1,280 tokens.
- **vlm2vec** (TIGER-Lab/VLM2Vec, arXiv 2410.05160): no chat; the image token and a sentence for an image, the bare
  text for a text, and the last token, whatever it is.

- **qwen3_vl** (Qwen/Qwen3-VL-Embedding-2B, arXiv 2601.04720): a chat of Qwen3-VL with an instruction as its system
  prompt, the image and the text as the user's turn, and the last token of the assistant's cue; images of 4 to 1,800
  tokens.
- **bge_vl** (BAAI/BGE-VL-MLLM-S1, arXiv 2412.14475): a turn of Mistral and its last token; images of 512 × 512. An
  image or a text alone has the prompt of a candidate; both together have that of a query, without a task.

All scale vectors to length 1, and none cuts a text. They are full checkpoints: an adapter has to be merged first.
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
"""Stands for the family's image token in the prompts below."""
_TEXT: Final = Slot("text")
_SPECIAL: Final = re.compile(r"<\|\w+\|>|<(?:s|instruct|query)>")
"""Special tokens of the prompts below."""
_QWEN_IMAGE: Final = f"<|vision_start|>{IMAGE}<|vision_end|>"


@dataclass(frozen=True)
class Way:
    """Embedding prompts of a model.

    Attributes:
        image: Prompt of an image.
        text: Prompt of a text.
        both: Prompt of an image with a text.
        images: Fitting of images.
        square: Side of the square that an image is resized to before that; 0 keeps it.
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


WAYS: Final[Mapping[str, Way]] = {
    "gme": Way(
        image=_gme_chat(_QWEN_IMAGE),
        text=_gme_chat(_TEXT),
        both=_gme_chat(_QWEN_IMAGE, _TEXT),
        images=ImageSettings(min_pixels=256 * 28 * 28, max_pixels=1280 * 28 * 28),
    ),
    "vlm2vec": Way(
        image=(f"{IMAGE} Represent the given image.",),
        text=(_TEXT,),
        both=(f"{IMAGE} Represent the given image with the following question: ", _TEXT),
    ),
    "qwen3_vl": Way(
        image=_qwen3_chat(_QWEN_IMAGE),
        text=_qwen3_chat(_TEXT),
        both=_qwen3_chat(_QWEN_IMAGE, _TEXT),
        images=ImageSettings(min_pixels=4 * 32 * 32, max_pixels=1800 * 32 * 32),
    ),
    "bge_vl": Way(
        image=(f"<s>[INST]  {IMAGE} [/INST]",),
        text=("<s>[INST]  ", _TEXT, " \n [/INST]"),
        both=("<s>[INST] \n <instruct>  <query> ", _TEXT, f" \n {IMAGE} [/INST]"),
        square=512,
    ),
}
"""By name."""

PUBLISHED: Final[Mapping[str, str]] = {
    "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct": "gme",
    "Alibaba-NLP/gme-Qwen2-VL-7B-Instruct": "gme",
    "TIGER-Lab/VLM2Vec-LLaVa-Next": "vlm2vec",
    **{f"Qwen/Qwen3-VL-Embedding-{size}": "qwen3_vl" for size in ("2B", "8B")},
    **{f"BAAI/BGE-VL-MLLM-{stage}": "bge_vl" for stage in ("S1", "S2")},
}
"""Embedding prompts of published repositories, by hub id."""


def embedder_of(name: str) -> tuple[str, str] | None:
    """Return the prompts and the model of an encoder's name, such as `gme:FOLDER`; None for other encoders."""
    way, colon, model = name.partition(":")
    if colon and way in EMBEDDERS:
        return way, model
    return (PUBLISHED[name], name) if name in PUBLISHED else None


class LvlmEncoder(ImageTextEncoder):
    """Multimodal language model that embeds its input as the last token's state.

    Args:
        name: Name as given by the user.
        way: Embedding prompts, of `WAYS`.
        model: Name of the model.
        device: Device of the model.
        dtype: Precision of the weights.

    Raises:
        UserError: The model is missing, or lacks a token of the prompts.
    """

    reads_pairs = True

    def __init__(self, name: str, way: str, model: str, device: torch.device, dtype: torch.dtype) -> None:
        self._way = WAYS[way]
        # nothing reads the head, and Qwen3-VL-Embedding-8B has none
        loaded = load(model, dtype=dtype, device=str(device), may_lack=("lm_head.",))
        _check_tokens(loaded, name, way, self._way)
        fit_images(loaded.processor, loaded.model.config.model_type, self._way.images)
        self.name, self.precision = name, dtype_name(dtype)
        self.fingerprint = fingerprint(["lvlm", self._way, loaded.fingerprint])
        self._renderer = loaded.renderer
        self._forward = Forward(loaded.model.requires_grad_(False))
        self._budget = find_budget(self._forward)
        self.dimensions = int(loaded.model.config.get_text_config().hidden_size)

    def prepare(self, image: Image.Image) -> Rendered:
        """Return the model input of an image."""
        return self._render(self._way.image, "", image)

    def encode_prepared(self, joined: Sequence[Rendered]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        return self._encode(joined)

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return vectors of images, of length 1, shape (n, dimensions)."""
        return self._encode([self.prepare(image) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of texts, of length 1, shape (n, dimensions)."""
        return self._encode([self._render(self._way.text, text, None) for text in texts])

    def encode_pairs(self, images: Sequence[Image.Image], texts: Sequence[str]) -> Vectors:
        """Return vectors of images with a text each, of length 1, shape (n, dimensions)."""
        pairs = zip(images, texts, strict=True)
        return self._encode([self._render(self._way.both, text, image) for image, text in pairs])

    def _render(self, chunks: Chunks, text: str, image: Image.Image | None) -> Rendered:
        named = tuple(
            part if isinstance(part, Slot) else part.replace(IMAGE, self._renderer.processor.image_token)
            for part in chunks
        )
        shown = None if image is None else to_rgb(image)
        if shown is not None and self._way.square:
            shown = shown.resize((self._way.square, self._way.square))
        return self._renderer.document(named, {_TEXT.name: text}, shown)

    @torch.inference_mode()
    def _encode(self, rendered: Sequence[Rendered]) -> Vectors:
        """Return the vectors of rows, read in batches of similar length that fit the token budget."""
        vectors = np.empty((len(rendered), self.dimensions), dtype=np.float32)
        for batch in self._forward.batches([len(row.ids) for row in rendered], self._budget):
            vectors[batch] = unit_rows(self._forward.prefill([rendered[row] for row in batch]).hidden, self.name)
        return vectors


def _check_tokens(loaded: Loaded, name: str, way: str, prompts: Way) -> None:
    """Refuse a model whose tokenizer would read a special token of the prompts as plain text."""
    tokenizer = loaded.renderer.tokenizer
    text = "".join(part for part in prompts.both if isinstance(part, str)).replace(IMAGE, "")
    known = tokenizer.get_added_vocab()
    if missing := [token for token in dict.fromkeys(_SPECIAL.findall(text)) if token not in known]:
        raise UserError(
            f"{name} lacks the token{'s' * (len(missing) > 1)} {', '.join(missing)}, which `{way}` puts into its "
            "prompts; take a model that was trained so"
        )
