"""EVA-CLIP-8B and its like: the architecture as a module of our own, with the published weights by their names.

BAAI/EVA-CLIP-8B (arXiv 2402.04252) encodes the images of Encyclopedic-VQA and is ReflectiVA's retriever. Its repository
brings the model as code, which is never run; this is what that code computes, by its config.json: a vision transformer
without a norm before its layers, with RMS norms and without biases at queries, keys and values, whose first token is
projected; and CLIP's text transformer, whose end token is. Published for 8B: patches of 14 pixels, 32 layers of width
4096 for images, 32 of 1280 for texts, and 1280 dimensions.

Its images are made ready as its card's example does: the shortest side to 224 pixels (bicubic), the centre, CLIP's
mean and deviation.
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
from reflectune.core.errors import UserError
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
"""Settings of EVA-02's towers, which have different layers."""
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
        norm_behind: True if norms follow attention and MLP instead of preceding them.
        biases: True if query, key and value projections have biases.
    """

    width: int
    inner: int
    layers: int
    heads: int
    eps: float
    activation: str = "gelu"
    rms: bool = False
    norm_behind: bool = False
    biases: tuple[bool, bool, bool] = (True, True, True)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Tower:
        """Return a tower by its part of config.json.

        Raises:
            KeyError: It lacks a size.
            ValueError: It is of another kind.
        """
        if other := [name for name in _UNKNOWN if config.get(name)]:
            raise ValueError(f"it has {', '.join(other)}, which EVA-CLIP-8B and 18B don't")
        return cls(
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            eps=config["layer_norm_eps"],
            activation=config.get("hidden_act", "gelu"),
            rms=bool(config.get("use_rms_norm", False)),
            norm_behind=bool(config.get("post_layernorm") or False),
            biases=(config.get("q_bias", True), config.get("k_bias", True), config.get("v_bias", True)),
        )


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, the mean in fp32."""

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
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out_proj(seen.transpose(1, 2).flatten(2))


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
        self.norm_behind = tower.norm_behind

    def forward(self, states: Tensor, causal: bool) -> Tensor:
        """Return states of shape (batch, tokens, width)."""
        if self.norm_behind:
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
    """An image's patches and the token that stands for it all."""

    def __init__(self, width: int, image_size: int, patch_size: int, channels: int, bias: bool) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.patch_embedding = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size, bias=bias)
        self.position_embedding = nn.Embedding((image_size // patch_size) ** 2 + 1, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the pixels of shape (batch, channels, side, side) as states (batch, 1 + patches, width)."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)  # (batch, patches, width)
        first = self.class_embedding.expand(len(pixels), 1, -1)
        return torch.cat([first, patches], dim=1) + self.position_embedding.weight


class TextEmbeddings(nn.Module):
    """A text's tokens and their places."""

    def __init__(self, width: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(positions, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return ids of shape (batch, tokens) as states (batch, tokens, width)."""
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
        """Return the end token's state, shape (batch, width): its id is the highest, and the first one counts."""
        states = self.final_layer_norm(self.encoder(self.embeddings(ids), causal=True))
        return states[torch.arange(len(ids), device=ids.device), ids.argmax(-1)]


class EvaClip(nn.Module):
    """Both towers and their projections into one space; parameters have the published names.

    Args:
        config: Content of config.json.
        biases: The biases present, of `PATCH_BIAS` and `PROJECTION_BIAS`: 8B and 18B have neither.

    Raises:
        KeyError: A size is missing.
        ValueError: The config is of a different architecture.
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
        """Return vectors of images of shape (batch, channels, side, side): (batch, dimensions), not scaled."""
        return self.visual_projection(self.vision_model(pixels))

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return vectors of texts of shape (batch, tokens), padded at the end: (batch, dimensions), not scaled."""
        return self.text_projection(self.text_model(ids))


class EvaClipEncoder(ImageModel, ImageTextEncoder):
    """EVA-CLIP from its published files.

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
    """Return the model with its published weights, read one by one; no code of its authors' is run.

    Raises:
        UserError: The files are damaged, incomplete, or of another model.
    """
    where, fix = f"{checkpoint.name} in {checkpoint.folder}", f"replace the files in {checkpoint.folder}"
    try:
        # copied, since how a file lies in memory would decide the last digits
        held = {name: weight.to(device, dtype, copy=True) for name, weight in _weights(checkpoint)}
        with torch.device("meta"):
            model = EvaClip(config, held)
    except KeyError as error:
        raise UserError(f"the config.json of {where} lacks {error}; {fix}") from error
    except (*UNLOADABLE, pickle.UnpicklingError) as error:
        raise UserError(f"the model {where} cannot be loaded: {' '.join(str(error).split())[:300]}; {fix}") from error
    check_shapes(checkpoint.name, held, expected := model.state_dict(), fix=fix)
    model.load_state_dict({name: held[name] for name in expected}, assign=True)
    check_finite(checkpoint.name, model, fix=fix)
    return model.requires_grad_(False).eval()


def norm(tower: Tower) -> nn.Module:
    """Return a norm of a tower."""
    return RMSNorm(tower.width, tower.eps) if tower.rms else nn.LayerNorm(tower.width, eps=tower.eps)


def _weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Return the weights of a checkpoint's files, one after the other."""
    for path in weight_files(checkpoint):
        if checkpoint.pickled:
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
        else:
            with safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  it is not a mapping
