"""EVA-CLIP-8B and 18B: an implementation that loads the published weights.

BAAI/EVA-CLIP-8B (arXiv 2402.04252) is ReflectiVA's retriever for Encyclopedic-VQA. The code in its repository is never
run; this module computes the same from config.json. The vision transformer has RMS norms, no norm before its layers and
no biases of queries, keys and values; its first token is projected. The text transformer is CLIP's; its end token is
projected. The published 8B has patches of 14 pixels, 32 layers of width 4096 for images, 32 of 1280 for texts, and 1280
dimensions.

Images are prepared as in the card's example: the shortest side resized to 224 pixels (bicubic), the center cropped, and
normalized with CLIP's mean and standard deviation.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError, one_line
from reflectune.core.weights import UNLOADABLE, check_finite, check_shapes
from reflectune.retrieval.encoders.base import (
    ImageModel,
    ImageTextEncoder,
    Prepared,
    Vectors,
    no_vectors,
    unit_rows,
    with_dtype,
)
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_tokenizer, weight_files
from reflectune.retrieval.encoders.texts import longer_than

ARCHITECTURE: Final = "EvaCLIPModel"
"""Architecture name in config.json."""
_UNKNOWN: Final = ("use_rope", "use_swiglu_mlp", "use_sub_ln")
"""Keys of EVA-02's towers, whose layers are not implemented."""
PATCH_BIAS: Final = "vision_model.embeddings.patch_embedding.bias"
PROJECTION_BIAS: Final = "visual_projection.bias"


@dataclass(frozen=True)
class Tower:
    """Shape of a tower.

    Attributes:
        width: Length of a token's vector.
        inner: Width within a layer's MLP.
        layers: Number of layers.
        heads: Attention heads of a layer.
        eps: Epsilon of the norms.
        activation: Activation of the MLP, by its transformers name.
        rms: True for RMS norms, without bias and mean subtraction.
        post_norm: True if norms follow attention and MLP instead of preceding them.
        biases: True if query, key and value projections have biases.
    """

    width: int
    inner: int
    layers: int
    heads: int
    eps: float
    activation: str = "gelu"
    rms: bool = False
    post_norm: bool = False
    biases: tuple[bool, bool, bool] = (True, True, True)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Tower:
        """Return the tower of a section of config.json.

        Raises:
            KeyError: A size is missing.
            ValueError: The architecture is a different one.
        """
        if unknown := [name for name in _UNKNOWN if config.get(name)]:
            raise ValueError(f"it has {', '.join(unknown)}, which EVA-CLIP-8B and 18B don't")
        return cls(
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            eps=config["layer_norm_eps"],
            activation=config.get("hidden_act", "gelu"),
            rms=bool(config.get("use_rms_norm", False)),
            post_norm=bool(config.get("post_layernorm") or False),
            biases=(config.get("q_bias", True), config.get("k_bias", True), config.get("v_bias", True)),
        )


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, with the mean in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, states: Tensor) -> Tensor:
        """Return states of shape (…, width)."""
        scale = torch.rsqrt(states.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (states * scale).to(self.weight.dtype)


class Attention(nn.Module):
    """Multi-head attention of a tower."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        width, (q, k, v) = tower.width, tower.biases
        self.heads = tower.heads
        self.k_proj = nn.Linear(width, width, bias=k)
        self.v_proj = nn.Linear(width, width, bias=v)
        self.q_proj = nn.Linear(width, width, bias=q)
        self.out_proj = nn.Linear(width, width)

    def forward(self, states: Tensor, causal: bool) -> Tensor:
        """Return states of shape (batch, tokens, width)."""
        query, key, value = (
            project(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, tokens, width / heads)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """The MLP of a tower's layer."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(tower.width, tower.inner), nn.Linear(tower.inner, tower.width)
        self.activation = ACT2FN[tower.activation]

    def forward(self, states: Tensor) -> Tensor:
        """Return states of shape (batch, tokens, width)."""
        return self.fc2(self.activation(self.fc1(states)))


class Layer(nn.Module):
    """Attention and MLP, each with a residual connection."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(tower), MLP(tower)
        self.layer_norm1, self.layer_norm2 = norm(tower), norm(tower)
        self.post_norm = tower.post_norm

    def forward(self, states: Tensor, causal: bool) -> Tensor:
        """Return states of shape (batch, tokens, width)."""
        if self.post_norm:
            states = states + self.layer_norm1(self.self_attn(states, causal))
            return states + self.layer_norm2(self.mlp(states))
        states = states + self.self_attn(self.layer_norm1(states), causal)
        return states + self.mlp(self.layer_norm2(states))


class Layers(nn.Module):
    """The layers of a tower."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(tower) for _ in range(tower.layers))

    def forward(self, states: Tensor, causal: bool) -> Tensor:
        """Return states of shape (batch, tokens, width)."""
        for layer in self.layers:
            states = layer(states, causal)
        return states


class ImageEmbeddings(nn.Module):
    """Embeddings of an image's class token and patches."""

    def __init__(self, width: int, image_size: int, patch_size: int, channels: int, bias: bool) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.patch_embedding = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size, bias=bias)
        self.position_embedding = nn.Embedding((image_size // patch_size) ** 2 + 1, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return states (batch, 1 + patches, width) of pixels (batch, channels, side, side)."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)  # (batch, patches, width)
        class_token = self.class_embedding.expand(len(pixels), 1, -1)
        return torch.cat([class_token, patches], dim=1) + self.position_embedding.weight


class TextEmbeddings(nn.Module):
    """Embeddings of a text's tokens and their positions."""

    def __init__(self, width: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(positions, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return states (batch, tokens, width) of ids (batch, tokens)."""
        return self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]


class ImageTransformer(nn.Module):
    """The vision tower."""

    def __init__(self, config: Mapping[str, Any], patch_bias: bool) -> None:
        super().__init__()
        tower = Tower.of(config)
        size, patch, channels = config["image_size"], config["patch_size"], config.get("num_channels", 3)
        self.embeddings = ImageEmbeddings(tower.width, size, patch, channels, patch_bias)
        self.encoder, self.post_layernorm = Layers(tower), norm(tower)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the first token's state, shape (batch, width)."""
        return self.post_layernorm(self.encoder(self.embeddings(pixels), causal=False)[:, 0])


class TextTransformer(nn.Module):
    """The text tower."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        tower = Tower.of(config)
        self.embeddings = TextEmbeddings(tower.width, config["vocab_size"], config["max_position_embeddings"])
        self.encoder, self.final_layer_norm = Layers(tower), norm(tower)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the state of the first end token, which has the highest id; shape (batch, width)."""
        states = self.final_layer_norm(self.encoder(self.embeddings(ids), causal=True))
        return states[torch.arange(len(ids), device=ids.device), ids.argmax(-1)]


class EvaClip(nn.Module):
    """Both towers and their projections into one space, with the published parameter names.

    Args:
        config: Content of config.json.
        biases: Names of parameters, `PATCH_BIAS` and `PROJECTION_BIAS` among them if these biases exist; 8B and 18B
            have neither.

    Raises:
        KeyError: A size is missing.
        ValueError: The architecture is a different one.
    """

    def __init__(self, config: Mapping[str, Any], biases: Collection[str] = ()) -> None:
        super().__init__()
        vision, text, dimensions = config["vision_config"], config["text_config"], config["projection_dim"]
        self.vision_model = ImageTransformer(vision, PATCH_BIAS in biases)
        self.text_model = TextTransformer(text)
        self.visual_projection = nn.Linear(vision["hidden_size"], dimensions, bias=PROJECTION_BIAS in biases)
        self.text_projection = nn.Linear(text["hidden_size"], dimensions, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(float(config.get("logit_scale_init_value", 2.6592))))

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Return unscaled vectors (batch, dimensions) of pixels (batch, channels, side, side)."""
        return self.visual_projection(self.vision_model(pixels))

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return unscaled vectors (batch, dimensions) of token ids (batch, tokens), padded on the right."""
        return self.text_projection(self.text_model(ids))


class EvaClipEncoder(ImageModel, ImageTextEncoder):
    """EVA-CLIP, loaded from its published files.

    Args:
        checkpoint: The model's files.
        device: Device of the model.
        dtype: Precision of the weights.

    Raises:
        UserError: The files are damaged or belong to a different model.
    """

    longest: int

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.revision, self.fingerprint = checkpoint.revision, with_dtype(checkpoint.fingerprint, dtype)
        config = read_json(checkpoint.folder / "config.json", "the encoder's config")
        self._model = load_eva_clip(checkpoint, config, device, dtype)
        self._tokenizer = load_tokenizer(checkpoint)
        self.longest = int(config["text_config"]["max_position_embeddings"])
        side = int(config["vision_config"]["image_size"])
        square = {"height": side, "width": side}
        processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=square)
        super().__init__(checkpoint.name, processor, device, dtype)
        self.dimensions = int(config["projection_dim"])

    def features(self, inputs: Prepared) -> Tensor:
        """Return the projected vectors of images, shape (n, dimensions)."""
        return self._model.encode_image(inputs["pixel_values"])

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return no_vectors(self.dimensions)
        inputs = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
        )
        with torch.inference_mode():
            return unit_rows(self._model.encode_text(inputs["input_ids"].to(self._device)), self.name)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is longer than the model reads."""
        return longer_than(self.longest, self._tokenizer, texts)


def is_eva_clip(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint's config.json names this architecture."""
    config = read_json(checkpoint.folder / "config.json", "the encoder's config")
    names = config.get("architectures") if isinstance(config, dict) else None
    return isinstance(names, list) and ARCHITECTURE in names


def load_eva_clip(
    checkpoint: Checkpoint, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype
) -> EvaClip:
    """Load the model with its published weights, one tensor at a time, without running its repository's code.

    Raises:
        UserError: The files are damaged, incomplete, or of another model.
    """
    where, fix = f"{checkpoint.name} in {checkpoint.folder}", f"replace the files in {checkpoint.folder}"
    try:
        # copied, since the memory alignment of a mapped file would change the last digits
        weights = {name: weight.to(device, dtype, copy=True) for name, weight in _weights(checkpoint)}
        with torch.device("meta"):
            model = EvaClip(config, weights)
    except KeyError as error:
        raise UserError(f"the config.json of {where} lacks {error}; {fix}") from error
    except (*UNLOADABLE, pickle.UnpicklingError) as error:
        raise UserError(f"the model {where} cannot be loaded: {one_line(error)}; {fix}") from error
    expected = model.state_dict()
    check_shapes(checkpoint.name, weights, expected, fix=fix)
    model.load_state_dict({name: weights[name] for name in expected}, assign=True)
    check_finite(checkpoint.name, model, fix=fix)
    return model.requires_grad_(False).eval()


def norm(tower: Tower) -> nn.Module:
    """Return a new norm layer of a tower."""
    return RMSNorm(tower.width, tower.eps) if tower.rms else nn.LayerNorm(tower.width, eps=tower.eps)


def _weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and weights of a checkpoint, file by file."""
    for path in weight_files(checkpoint):
        if checkpoint.pickled:
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
        else:
            with safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  it is not a mapping
