"""EchoSight's reranker (arXiv 2407.12735): a Q-Former reads the question with its image, and passages by themselves.

Its published weights are a `torch.save` of the state dict of a BLIP-2 in LAVIS's layout: EVA-CLIP-g, the Q-Former with
its text branch, and two projections. transformers has the same modules under different names. The outputs of the
question's 32 query tokens are compared with each passage's first token; the best of the 32 counts.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from transformers import Blip2Config, Blip2ForImageTextRetrieval

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import to_rgb
from reflectune.core.types import Passage
from reflectune.core.weights import UNLOADABLE, check_finite, check_shapes
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_tokenizer
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.texts import scatter, token_batches
from reflectune.retrieval.rerankers.base import ImageReranker, ScoredPassage, best_first, places_of

ENTRY_SHARE: Final = 0.5
"""Share of the entry's similarity in a passage's score, the rest is the Q-Former's: α of EchoSight's evaluation."""
_WIDEST: Final = 1.25
"""Aspect ratio beyond which an image is padded."""
_MEAN, _DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_WORDS: Final = 512
_PUNCTUATION, _SPACES = re.compile(r'[.!"()*#:;~]'), re.compile(r"\s{2,}")

_RENAMED: Final = (
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm([12])\.", r"vision_model.encoder.layers.\1.layer_norm\2."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision_model.encoder.layers.\1.self_attn.projection."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.", r"vision_model.encoder.layers.\1.self_attn."),
    (r"^visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision_model.encoder.layers.\1.mlp."),
    (r"^ln_vision\.", "vision_model.post_layernorm."),
    (r"^Qformer\.bert\.embeddings\.LayerNorm\.", "qformer.layernorm."),
    (r"^Qformer\.bert\.embeddings\.", "embeddings."),
    (r"^Qformer\.bert\.(encoder\.layer\.\d+\.(?:cross)?attention)\.self\.", r"qformer.\1.attention."),
    (r"^Qformer\.bert\.", "qformer."),
    (r"^(vision|text)_proj\.", r"\1_projection."),
)
"""LAVIS's names, and those of transformers, in the order that they are tried in."""
_UNUSED: Final = re.compile(r"^Qformer\.cls\.|\.position_ids$|^temp$|^prompt_tokens$")
_BIAS: Final = re.compile(r"(.+)\.([qv])_bias$")


class QFormerReranker(ImageReranker):
    """EchoSight's multimodal reranker.

    Args:
        folder: Holds `config.json` and the tokenizer's files of Salesforce/blip2-itm-vit-g, and the weights, a `.pth`.
        settings: Token budget and dtype; the rest is the model's own.
        device: Device of the model.

    Raises:
        UserError: A file is missing or damaged, or the weights belong to a different model.

    Example:
        >>> reranker = QFormerReranker(Path("models/echosight"), TextSettings(), torch.device("cpu"))
        >>> reranker.rank_with_images(["How tall is it?"], [photo], [passages], [{"Q243": 0.4}])[0][0].score
        0.53
    """

    def __init__(self, folder: Path, settings: TextSettings, device: torch.device) -> None:
        self.name, weights = f"q_former {folder}", _weights_file(folder)
        files = [weights, *sorted(path for pattern in ("*.json", "*.txt") for path in folder.glob(pattern))]
        files_fingerprint = file_fingerprint(*files)
        self.fingerprint = fingerprint(["q_former", files_fingerprint, settings.dtype])
        self._tokenizer = load_tokenizer(Checkpoint(str(folder), folder, "", True, files_fingerprint))
        self._model: Any = load_q_former(folder, weights)
        self._model.to(device=device, dtype=as_dtype(settings.dtype))
        self._budget = settings.token_budget
        qformer: Any = self._model.config.qformer_config
        self._longest = min(qformer.max_position_embeddings, self._tokenizer.model_max_length)

    def rank_with_images(
        self,
        questions: Sequence[str],
        images: Sequence[Image.Image],
        passages: Sequence[Sequence[Passage]],
        entry_scores: Sequence[Mapping[str, float]],
        top_k: int | None = None,
    ) -> list[list[ScoredPassage]]:
        """See `ImageReranker.rank_with_images`. Each distinct passage is read once."""
        texts = [[passage_words(one) for one in choice] for choice in passages]
        distinct = places_of(texts)
        if not distinct:
            return [[] for _ in questions]
        vectors = self._encode_passages(list(distinct))
        ranked = []
        for row in zip(questions, images, passages, texts, entry_scores, strict=True):
            question, image, choice, own_texts, of_entries = row
            queries = self._encode_question(question, image)  # (query tokens, dimensions)
            fits = (vectors[[distinct[text] for text in own_texts]] @ queries.T).amax(1).tolist() if choice else []
            scores = [
                ENTRY_SHARE * of_entries[passage.entry_id] + (1 - ENTRY_SHARE) * fit
                for passage, fit in zip(choice, fits, strict=True)
            ]
            ranked.append(best_first(choice, scores, top_k))
        return ranked

    @torch.inference_mode()
    def _encode_question(self, question: str, image: Image.Image) -> Tensor:
        """Encode a question and its image as the outputs of the query tokens: unit length, (tokens, dimensions)."""
        model = self._model
        side = int(model.config.vision_config.image_size)  # type: ignore[arg-type]  # one number in every published one
        pixels = pixel_values(image, side).to(model.device, model.dtype)
        seen = model.vision_model(pixel_values=pixels).last_hidden_state  # (1, patches, width)
        inputs = self._tokenizer(question, truncation=True, max_length=self._longest, return_tensors="pt")
        count = model.query_tokens.shape[1]
        tokens = model.embeddings(input_ids=inputs["input_ids"].to(model.device), query_embeds=model.query_tokens)
        output = model.qformer(
            query_embeds=tokens,  # (1, query tokens + question's tokens, width)
            query_length=count,
            attention_mask=torch.ones(tokens.shape[:2], dtype=torch.long, device=model.device),
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=model.device),
        )
        projected = model.vision_projection(output.last_hidden_state[0, :count])
        return normalize(projected.float(), dim=-1).cpu()

    @torch.inference_mode()
    def _encode_passages(self, texts: Sequence[str]) -> Tensor:
        """Encode passages as the outputs of their first tokens: unit length, (texts, dimensions)."""
        model, parts = self._model, []
        encoded = self._tokenizer(list(texts), truncation=True, max_length=self._longest)
        for batch, inputs in token_batches(model, self._tokenizer, encoded, self._budget):
            output = model.qformer(
                query_embeds=model.embeddings(input_ids=inputs["input_ids"]),
                query_length=0,
                attention_mask=inputs["attention_mask"],
            )
            projected = model.text_projection(output.last_hidden_state[:, 0])
            parts.append((batch, normalize(projected.float(), dim=-1).cpu()))
        return scatter(parts, len(texts))


def passage_words(passage: Passage) -> str:
    """Return a passage as EchoSight writes a section, in lower case, without some punctuation, of at most 512 words."""
    text = f"# Wiki Article: {passage.title}\n## Section Title: {passage.heading}\n{passage.text}"
    plain = _SPACES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).rstrip("\n").strip(" ")
    return " ".join(plain.split(" ")[:_WORDS])


def pixel_values(image: Image.Image, side: int) -> Tensor:
    """Return an image as EchoSight reads it: padded with black if long, center-cropped, shape (1, 3, side, side)."""
    image = to_rgb(image)
    width, height = image.size
    if max(width, height) / min(width, height) >= _WIDEST:
        least = max(width, height) / _WIDEST
        across, down = (max(int((least - size) / 2), 0) for size in (width, height))
        padded = Image.new("RGB", (width + 2 * across, height + 2 * down))
        padded.paste(image, (across, down))
        image, (width, height) = padded, padded.size
    short = min(width, height)
    image = image.resize((int(side * width / short), int(side * height / short)), Image.Resampling.BICUBIC)
    left, top = (round((size - side) / 2) for size in image.size)
    square = np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.float32) / 255
    scaled = (square - np.array(_MEAN, dtype=np.float32)) / np.array(_DEVIATION, dtype=np.float32)
    return torch.from_numpy(scaled).permute(2, 0, 1)[None]


def load_q_former(folder: Path, weights: Path) -> Any:
    """Return the `Blip2ForImageTextRetrieval` of a folder's `config.json` with weights in LAVIS's layout.

    Raises:
        UserError: A file is damaged, or the weights are of another model, incomplete, or not finite.
    """
    fix = f"take the published file, and config.json of Salesforce/blip2-itm-vit-g, in {folder}"
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        config: Any = Blip2Config.from_pretrained(folder)
    except pickle.UnpicklingError as error:
        raise UserError(f"{weights} is a pickle with more in it than tensors; nothing of it was run; {fix}") from error
    except UNLOADABLE as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"the reranker in {folder} can't be loaded: {reason}; {fix}") from error
    if not isinstance(state, dict) or not all(isinstance(each, Tensor) for each in state.values()):
        raise UserError(f"{weights} holds no state dict: tensors by name; {fix}")
    tensors = renamed(state)
    if (words := tensors.get("embeddings.word_embeddings.weight")) is not None:
        config.qformer_config.vocab_size = len(words)
    config.qformer_config.use_qformer_text_input = True
    with torch.device("meta"):
        model = Blip2ForImageTextRetrieval(config)
    check_shapes(str(weights), tensors, model.state_dict(), fix=fix)
    model.load_state_dict({name: tensors[name].float() for name in model.state_dict()}, assign=True)
    positions = torch.arange(config.qformer_config.max_position_embeddings)[None]
    model.embeddings.register_buffer("position_ids", positions, persistent=False)
    model.vision_model.post_layernorm.eps = 1e-5  # LAVIS's own; the tower's other norms have the config's
    check_finite(str(weights), model, fix=fix)
    return model.requires_grad_(False).eval()


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict of LAVIS under transformers' names, without what only training uses.

    The tower's biases of queries and values become one of queries, keys (zero) and values.
    """
    tensors: dict[str, Tensor] = {}
    biases: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        if _UNUSED.search(key):
            continue
        name = next((re.sub(old, new, key) for old, new in _RENAMED if re.search(old, key)), key)
        if match := _BIAS.match(name):
            biases.setdefault(match[1], {})[match[2]] = tensor
        else:
            tensors[name] = tensor
    for layer, both in biases.items():
        if both.keys() == {"q", "v"}:
            tensors[f"{layer}.qkv.bias"] = torch.cat([both["q"], torch.zeros_like(both["q"]), both["v"]])
    return tensors


def _weights_file(folder: Path) -> Path:
    """Return the one file of weights of a folder."""
    found = sorted(folder.glob("*.pth"))
    if len(found) != 1 or not (folder / "config.json").is_file():
        lacking = f"{len(found)} files `.pth`" if len(found) != 1 else "no config.json"
        raise UserError(
            f"{folder} has {lacking}: `reranker: q_former` needs a folder with one, EchoSight's weights, next to "
            "config.json and the tokenizer's files of Salesforce/blip2-itm-vit-g"
        )
    return found[0]
