"""How many bytes of activations a training step keeps for its backward pass: closed formulas on counts.

They follow "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, §4.1), which adds up what
each operation of a layer saves. Its layer is GPT's; here it is that of Llama and Qwen as transformers writes it, on the
attention of `models/attention/tree_mask.py`. They are compared with what autograd saves in
`tests/train/estimates/test_activations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectune.train.estimates.architecture import Architecture

_PROJECTIONS = 7
"""Matrices of a decoder layer: q, k, v, o, gate, up, down."""
_NORMED = 5
"""Those that read the output of a norm: q, k and v the first one's, gate and up the second one's."""


@dataclass(frozen=True)
class BatchSize:
    """What one forward pass reads.

    Attributes:
        tokens: Of all trees, as they are packed.
        longest: Of the longest tree.
        supervised: Tokens whose logits are computed.
        patches: That the vision tower reads.
        trees: In it.
    """

    tokens: int
    longest: int
    supervised: int
    patches: int
    trees: int

    def times(self, share: float) -> BatchSize:
        """A batch of more trees, or fewer, like these."""
        tokens, supervised, patches, trees = (
            round(count * share) for count in (self.tokens, self.supervised, self.patches, self.trees)
        )
        return BatchSize(tokens, self.longest, supervised, patches, trees)


@dataclass(frozen=True)
class ForwardPass:
    """How a forward pass is made.

    Attributes:
        compute: Bytes of a number in products: 2 in bfloat16, 4 in float32.
        residual: Bytes of a number of the hidden states between layers: 4 where weights in fp32 are cast for products
            alone (autocast), else those of the weights.
        adapters: Rank of the adapters, if only they train; None if all weights of the decoder do, 0 if none does.
        dropout: Whether adapters have dropout.
        trains_vision: Whether the vision tower trains.
        checkpointing: Whether a layer keeps its input alone and is computed again in the backward pass.
        by_parts: Whether attention can read trees by parts (on a CPU), or only with a mask for each.
    """

    compute: int
    residual: int
    adapters: int | None
    dropout: bool
    trains_vision: bool
    checkpointing: bool
    by_parts: bool


@dataclass(frozen=True)
class Activations:
    """Bytes of activations.

    Attributes:
        kept: From the forward pass to the backward pass.
        working: Of the one layer that is computed again, under checkpointing, and of the widest gradients.
        logits: Of the supervised tokens, with what their loss and its gradient take.
    """

    kept: int
    working: int
    logits: int


def activations(model: Architecture, batch: BatchSize, how: ForwardPass) -> Activations:
    """What a batch takes."""
    layer = batch.tokens * _decoder_layer(model, how)
    vision_layer = batch.patches * _vision_layer(model, how) if how.trains_vision else 0
    ends = batch.tokens * model.width * 4 + _masks(batch, how)  # the last norm's input; what all layers are given
    if how.adapters is None:
        ends += batch.tokens * model.width * how.residual  # scaled by a weight that trains
    logits = batch.supervised * model.vocabulary * (8 if how.compute == 4 else 4 + 4 + how.compute)
    gradients = 3 * batch.tokens * how.compute * model.hidden  # of the product, and of both its factors
    if not how.checkpointing:
        kept = model.layers * layer + model.vision_layers * vision_layer
        return Activations(kept + ends, gradients, logits)
    inputs = model.layers * batch.tokens * model.width * how.residual
    inputs += model.vision_layers * batch.patches * model.vision_width * how.residual if how.trains_vision else 0
    return Activations(inputs + ends, max(layer, vision_layer) + gradients, logits)


def _decoder_layer(model: Architecture, how: ForwardPass) -> int:
    """Bytes a token: two norms, attention, and a gated feed-forward layer."""
    full, compute = how.adapters is None, how.compute
    norms = 2 * 4 * model.width  # their inputs, in float32
    norms += 2 * how.residual * model.width if full else 0  # scaled by a weight that trains
    if model.normed_heads:
        norms += (4 + (compute if full else 0)) * (model.query_width + model.key_width)
    # One input for all that read a norm, unless each casts it or drops out of it by itself.
    apart = how.residual != compute if full else how.dropout or compute < 4
    read = (_NORMED if apart else 2) * model.width if how.adapters != 0 else 0
    if how.by_parts:
        attention = 2 * model.query_width + 2 * model.key_width  # queries, output; keys, values
    else:
        attention = 5 * model.query_width  # queries; keys and values for each of them; output, gathered and in place
    # gate, its activation, up, their product; the product is the input of a matrix that is frozen without adapters
    feed_forward = (4 if how.adapters != 0 else 3) * model.hidden
    adapters = 0
    if not full:
        adapters = _PROJECTIONS * (how.adapters or 0)
        if how.adapters and apart and compute < 4:
            adapters += model.query_width  # o casts its input too
    total = norms + compute * (read + attention + feed_forward + adapters)
    if not full and how.dropout:
        masks = _NORMED * model.width + model.query_width + model.hidden
        total += masks + (compute * (model.query_width + model.hidden) if compute == 4 else 0)
    return total


def _masks(batch: BatchSize, how: ForwardPass) -> int:
    """Bytes of the scores' mask in the products' precision, one for all layers; its rows begin at multiples of 8."""
    return 0 if how.by_parts else how.compute * batch.trees * batch.longest * (batch.longest + -batch.longest % 8)


def _vision_layer(model: Architecture, how: ForwardPass) -> int:
    """Bytes a patch, to a tenth: two norms, attention of a fused projection, and a feed-forward layer."""
    return 2 * how.residual * model.vision_width + how.compute * (8 * model.vision_width + 3 * model.vision_hidden)
