"""Closed-form formulas for the bytes of activations that a training step keeps for its backward pass.

They follow "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, §4.1), for a layer of
Llama or Qwen as transformers writes it, with the attention of `models/attention/tree_mask.py`.
`tests/train/estimates/test_activations.py` compares them with the tensors that autograd saves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reflectune.train.estimates.architecture import Architecture, LinearAttention

_PROJECTIONS = 7
"""Matrices of a decoder layer: q, k, v, o, gate, up, down."""
_NORMED = 5
"""Those that read the output of a norm: q, k, v, gate and up."""


@dataclass(frozen=True)
class BatchSize:
    """The size of one forward pass.

    Attributes:
        tokens: Tokens of all trees, packed.
        longest: Tokens of the longest tree.
        supervised: Tokens whose logits are computed.
        patches: Patches that the vision tower reads.
        trees: Number of trees.
    """

    tokens: int
    longest: int
    supervised: int
    patches: int
    trees: int

    def times(self, share: float) -> BatchSize:
        """Return the size of a batch of more or fewer trees like these."""
        tokens, supervised, patches, trees = (
            round(count * share) for count in (self.tokens, self.supervised, self.patches, self.trees)
        )
        return BatchSize(tokens, self.longest, supervised, patches, max(trees, 1))

    def within(self, budget: int | None, questions: int) -> BatchSize:
        """Return the size of the largest micro-batch by a budget of tokens.

        Args:
            budget: Maximum tokens, except of a longer tree alone; None for no budget.
            questions: Ratio of the questions of a step to those of this batch.
        """
        if budget is None:
            return self
        return self.times(min(max(budget, self.longest) / self.tokens, questions))


@dataclass(frozen=True)
class ForwardPass:
    """The settings of a forward pass that decide its activations.

    Attributes:
        compute: Bytes of a number in products: 2 in bfloat16, 4 in float32.
        residual: Bytes of a number of the hidden states between layers: 4 under autocast of float32, else a weight's.
        adapters: Rank of the adapters, if only they train; None if all weights of the decoder do, 0 if none does.
        dropout: True if adapters have dropout.
        trains_vision: True if the vision tower trains.
        recomputed: n if every n-th layer keeps its input alone and is computed again in the backward pass; 0 for none.
        attention: Trees are read by parts (on a CPU), as packed rows (by FlexAttention), or each with a dense mask.
    """

    compute: int
    residual: int
    adapters: int | None
    dropout: bool
    trains_vision: bool
    recomputed: int
    attention: Literal["parts", "packed", "dense"]


@dataclass(frozen=True)
class Activations:
    """Bytes of activations.

    Attributes:
        kept: Kept from the forward pass to the backward pass.
        working: Of the layer that is computed again, if any is, and of the widest gradients.
        logits: Of the supervised tokens, with their loss and its gradient.
    """

    kept: int
    working: int
    logits: int


def activations(model: Architecture, batch: BatchSize, forward: ForwardPass) -> Activations:
    """Compute the activations of a batch."""
    layer = widest = batch.tokens * _decoder_layer(model, forward)
    if model.linear is not None:
        linear = batch.tokens * _linear_layer(model, model.linear, forward)
        layer += (linear - layer) * model.linear.layers // model.layers  # the mean of all layers
        widest = max(widest, linear)
    vision_layer = batch.patches * _vision_layer(model, forward) if forward.trains_vision else 0
    ends = batch.tokens * model.width * 4 + _masks(
        batch, forward
    )  # the last norm's input, and the inputs of all layers
    if forward.adapters is None:
        ends += batch.tokens * model.width * forward.residual  # scaled by a weight that trains
    logits = batch.supervised * model.vocabulary * (8 if forward.compute == 4 else 4 + 4 + forward.compute)
    gradients = 3 * batch.tokens * forward.compute * model.hidden  # of the product, and of both its factors
    if not forward.recomputed:
        kept = model.layers * layer + model.vision_layers * vision_layer
        return Activations(kept + ends, gradients, logits)
    # transformers counts the vision tower's layers first
    vision_again, both = (
        -(-n // forward.recomputed) for n in (model.vision_layers, model.vision_layers + model.layers)
    )
    again = both - vision_again
    kept = (model.layers - again) * layer + (model.vision_layers - vision_again) * vision_layer
    kept += again * batch.tokens * model.width * forward.residual
    if forward.trains_vision:
        kept += vision_again * batch.patches * model.vision_width * forward.residual
    return Activations(kept + ends, max(widest, vision_layer) + gradients, logits)


def _decoder_layer(model: Architecture, forward: ForwardPass) -> int:
    """Return bytes per token: two norms, attention, and a gated feed-forward layer."""
    full, compute = forward.adapters is None, forward.compute
    norms = 2 * 4 * model.width  # their inputs, in float32
    norms += 2 * forward.residual * model.width if full else 0  # scaled by a weight that trains
    if model.normed_heads:
        norms += (4 + (compute if full else 0)) * (model.query_width + model.key_width)
    # readers of a norm share one input, unless each casts it or applies its own dropout
    apart = forward.residual != compute if full else forward.dropout or compute < 4
    read = (_NORMED if apart else 2) * model.width if forward.adapters != 0 else 0
    if forward.attention != "dense":
        outputs = 2 if forward.attention == "packed" else 1  # FlexAttention's, and its heads side by side
        attention = (1 + outputs) * model.query_width + 2 * model.key_width  # queries, output; keys, values
    else:
        attention = 5 * model.query_width  # queries; keys and values for each of them; output, gathered and in place
    # gate, its activation, up, their product; the product is the input of a matrix that is frozen without adapters
    feed_forward = (4 if forward.adapters != 0 else 3) * model.hidden
    adapters = 0
    if not full:
        adapters = _PROJECTIONS * (forward.adapters or 0)
        if forward.adapters and apart and compute < 4:
            adapters += model.query_width  # o casts its input too
    total = norms + compute * (read + attention + feed_forward + adapters)
    if not full and forward.dropout:
        masks = _NORMED * model.width + model.query_width + model.hidden
        total += masks + (compute * (model.query_width + model.hidden) if compute == 4 else 0)
    return total


def _linear_layer(model: Architecture, linear: LinearAttention, forward: ForwardPass) -> int:
    """Return bytes per token of a layer of linear attention, by transformers' own kernel; others keep less."""
    without = replace(model, query_width=0, key_width=0, normed_heads=False)
    return _decoder_layer(without, forward) + delta_rule_bytes(linear, forward.compute)


def delta_rule_bytes(linear: LinearAttention, compute: int) -> int:
    """Return bytes per token, to 10 %: convolution, chunks of 64 tokens in float32, states; fitted to saved tensors."""
    head = (36 + 5 * compute // 2) * linear.key_size + 50 * linear.value_size + 290 * compute + 230
    return linear.value_heads * head + linear.key_heads * linear.key_size * 6 * compute


def _masks(batch: BatchSize, forward: ForwardPass) -> int:
    """Return the bytes of the attention mask, one for all layers; its rows begin at multiples of 8."""
    if forward.attention != "dense":
        return 0
    return forward.compute * batch.trees * batch.longest * (batch.longest + -batch.longest % 8)


def _vision_layer(model: Architecture, forward: ForwardPass) -> int:
    """Return bytes per patch, to 10 %: two norms, attention of a fused projection, and a feed-forward layer."""
    return 2 * forward.residual * model.vision_width + forward.compute * (
        8 * model.vision_width + 3 * model.vision_hidden
    )
