"""EchoSight's reranker (arXiv 2407.12735): a Q-Former that reads the question with its image, and each passage alone.

The published weights are a pickled state dict of BLIP-2 in LAVIS's layout: EVA-CLIP-g, the Q-Former with its text
branch, and two projections. transformers has the same modules under different names. A passage's score is the highest
similarity of its first token's output to the outputs of the question's 32 query tokens.
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

from reflectune.core.errors import UserError, one_line
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import to_rgb
from reflectune.core.types import Passage
from reflectune.core.weights import UNLOADABLE, check_finite, check_shapes
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_tokenizer
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.texts import scatter, token_batches
from reflectune.retrieval.rerankers.base import ImageReranker, ScoredPassage, best_first, distinct_rows

ENTRY_SHARE: Final = 0.5
"""Weight of the entry's similarity in a passage's score; the Q-Former's has the rest (α of EchoSight's evaluation)."""
_MAX_ASPECT: Final = 1.25
"""Aspect ratio from which an image is padded."""
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
"""Patterns of LAVIS's names and their transformers names; the first match counts."""
_UNUSED: Final = re.compile(r"^Qformer\.cls\.|\.position_ids$|^temp$|^prompt_tokens$")
_BIAS: Final = re.compile(r"(.+)\.([qv])_bias$")


class QFormerReranker(ImageReranker):
    """EchoSight's multimodal reranker.

    Args:
        folder: Folder of the weights, a `.pth`, and of Salesforce/blip2-itm-vit-g's `config.json` and tokenizer files.
        settings: Token budget and dtype; other settings are not used.
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
        """See `ImageReranker.rank_with_images`. Each distinct passage is encoded once."""
        texts = [[passage_words(passage) for passage in candidates] for candidates in passages]
        row_of = distinct_rows(texts)
        if not row_of:
            return [[] for _ in questions]
        vectors = self._encode_passages(list(row_of))
        ranked = []
        for question, image, candidates, own_texts, score_of in zip(
            questions, images, passages, texts, entry_scores, strict=True
        ):
            queries = self._encode_question(question, image)  # (query tokens, dimensions)
            own_vectors = vectors[[row_of[text] for text in own_texts]]  # (candidates, dimensions)
            similarities = (own_vectors @ queries.T).amax(1).tolist()
            scores = [
                ENTRY_SHARE * score_of[passage.entry_id] + (1 - ENTRY_SHARE) * similarity
                for passage, similarity in zip(candidates, similarities, strict=True)
            ]
            ranked.append(best_first(candidates, scores, top_k))
        return ranked

    @torch.inference_mode()
    def _encode_question(self, question: str, image: Image.Image) -> Tensor:
        """Return the query tokens' outputs for a question and its image: unit length, (query tokens, dimensions)."""
        model = self._model
        side = int(model.config.vision_config.image_size)  # type: ignore[arg-type]  # an int in all published configs
        pixels = pixel_values(image, side).to(model.device, model.dtype)
        patches = model.vision_model(pixel_values=pixels).last_hidden_state  # (1, patches, width)
        inputs = self._tokenizer(question, truncation=True, max_length=self._longest, return_tensors="pt")
        count = model.query_tokens.shape[1]
        tokens = model.embeddings(input_ids=inputs["input_ids"].to(model.device), query_embeds=model.query_tokens)
        output = model.qformer(
            query_embeds=tokens,  # (1, query tokens + question's tokens, width)
            query_length=count,
            attention_mask=torch.ones(tokens.shape[:2], dtype=torch.long, device=model.device),
            encoder_hidden_states=patches,
            encoder_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long, device=model.device),
        )
        projected = model.vision_projection(output.last_hidden_state[0, :count])
        return normalize(projected.float(), dim=-1).cpu()

    @torch.inference_mode()
    def _encode_passages(self, texts: Sequence[str]) -> Tensor:
        """Return the first tokens' outputs for passages: unit length, (texts, dimensions)."""
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
    """Format a passage as EchoSight does a section: lower case, without some punctuation, at most 512 words."""
    text = f"# Wiki Article: {passage.title}\n## Section Title: {passage.heading}\n{passage.text}"
    plain = _SPACES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).rstrip("\n").strip(" ")
    return " ".join(plain.split(" ")[:_WORDS])


def pixel_values(image: Image.Image, side: int) -> Tensor:
    """Prepare an image as EchoSight does: pad a long one with black, resize, center-crop; (1, 3, side, side)."""
    image = to_rgb(image)
    width, height = image.size
    if max(width, height) / min(width, height) >= _MAX_ASPECT:
        min_side = max(width, height) / _MAX_ASPECT
        pad_x, pad_y = (max(int((min_side - size) / 2), 0) for size in (width, height))
        padded = Image.new("RGB", (width + 2 * pad_x, height + 2 * pad_y))
        padded.paste(image, (pad_x, pad_y))
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
    fix = f"put the published file and config.json of Salesforce/blip2-itm-vit-g into {folder}"
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        config: Any = Blip2Config.from_pretrained(folder)
    except pickle.UnpicklingError as error:
        raise UserError(f"{weights} is a pickle that contains more than tensors, and was not loaded; {fix}") from error
    except UNLOADABLE as error:
        raise UserError(f"the reranker in {folder} can't be loaded: {one_line(error)}; {fix}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{weights} is not a state dict of tensors; {fix}")
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
    model.vision_model.post_layernorm.eps = 1e-5  # as in LAVIS; the tower's other norms use the config's
    check_finite(str(weights), model, fix=fix)
    return model.requires_grad_(False).eval()


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a state dict of LAVIS to transformers' names, without the weights that only training uses.

    The tower's query and value biases are joined to one bias of queries, keys (zero) and values.
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
    for layer, parts in biases.items():
        if parts.keys() == {"q", "v"}:
            tensors[f"{layer}.qkv.bias"] = torch.cat([parts["q"], torch.zeros_like(parts["q"]), parts["v"]])
    return tensors


def _weights_file(folder: Path) -> Path:
    """Return the path of a folder's only weights file."""
    found = sorted(folder.glob("*.pth"))
    if len(found) != 1 or not (folder / "config.json").is_file():
        problem = f"{len(found)} `.pth` files" if len(found) != 1 else "no config.json"
        raise UserError(
            f"{folder} has {problem}; `reranker: q_former` needs a folder with EchoSight's weights, one `.pth` file, "
            "and with config.json and the tokenizer files of Salesforce/blip2-itm-vit-g"
        )
    return found[0]
