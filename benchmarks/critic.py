"""ReAG's critic over a question's passages: each prompt by itself, as its script does, against one shared prefix.

    python benchmarks/critic.py --output benchmarks/critic.md
    python benchmarks/critic.py --device cuda --size 7b --dtype bfloat16      # on a GPU

A picture of 576 tokens, a system's turn of about as many tokens as ReAG's has in Qwen2.5's tokenizer, passages of some
tokens each; all of random words. Random weights: they decide what is said, not how long it takes. Both sides run in one
process and must give the same P(Yes); on a CPU its own clock counts, which other work on the machine doesn't stop.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from geometry import SIZES, plain_inputs, save_as_base
from PIL import Image
from running import parser, timed, write

from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt
from reflectune.inference.pipelines.reag import CRITIC
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.turns import Turn, prompt_parts

WORDS = "oak bridge museum river kestrel built opened by the city council in of which was its tower and a".split()


def critic_prompt(loaded: Loaded, passages: int, arguments: argparse.Namespace) -> Prompt:
    """The critic's question about so many passages."""
    draw = random.Random(0)

    def text(tokens: int) -> str:
        words: list[str] = []
        while len(loaded.renderer.tokenizer(" ".join(words))["input_ids"]) < tokens:
            words += draw.choices(WORDS, k=4)
        return " ".join(words)

    texts = tuple(text(arguments.tokens) for _ in range(passages))
    return Prompt(CRITIC, {"question": "In what year was this bridge opened?"}, texts, text(arguments.system))


@torch.no_grad()
def one_by_one(loaded: Loaded, image: Image.Image, prompt: Prompt) -> tuple[list[float], int]:
    """P(Yes) from one forward pass of transformers for each prompt, and how many tokens that reads."""
    model, renderer = loaded.model, loaded.renderer
    turns = renderer.under_system(prompt.system, Turn("user", prompt_parts(prompt.template), image=True))
    yes, likely, tokens = renderer.reply_ids("Yes")[0], [], 0
    for document in prompt.documents:
        rendered = renderer.conversation(turns, {**prompt.texts, "documents": document}, image)
        inputs: dict[str, Any] = plain_inputs(model, rendered, [])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == renderer.image_token_id).int()
        logits = model(**inputs, use_cache=False, logits_to_keep=1).logits[0, -1]
        likely.append(float(logits.float().softmax(-1)[yes]))
        tokens += len(rendered.ids)
    return likely, tokens


def together(loaded: Loaded, image: Image.Image, prompt: Prompt, budget: int | None) -> tuple[list[float], int]:
    """P(Yes) by `judge_each`, with nothing kept from before, and how many tokens that reads."""
    (judged,) = LocalModel(PrefixEngine(loaded, budget), pictures=0).judge_each([(image, prompt)], "Yes", "No")
    return [each.yes for each in judged.each], judged.read


def measure(family: str, arguments: argparse.Namespace) -> list[str]:
    """The rows of a family's table."""
    with tempfile.TemporaryDirectory() as folder:
        parameters = save_as_base(family, SIZES[arguments.size], Path(folder), getattr(torch, arguments.dtype))
        loaded = load(folder, dtype=arguments.dtype, device=arguments.device)
    image = Image.effect_noise((672, 672), 60).convert("RGB")
    prompt, few = critic_prompt(loaded, arguments.passages, arguments), critic_prompt(loaded, 2, arguments)
    one_by_one(loaded, image, few)
    together(loaded, image, few, arguments.token_budget)
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    how = (arguments.device, arguments.repeats, clock)
    theirs, (expected, read_alone) = timed(lambda: one_by_one(loaded, image, prompt), *how)
    ours, (likely, read) = timed(lambda: together(loaded, image, prompt, arguments.token_budget), *how)
    difference = max(abs(a - b) for a, b in zip(likely, expected, strict=True))
    return [
        f"| {family}, {parameters / 1e6:.0f} M parameters: {arguments.passages} passages | {theirs:.2f} s "
        f"| {ours:.2f} s | {theirs / ours:.1f} × |",
        f"| tokens that the language model reads | {read_alone} | {read} | {read_alone / read:.1f} × |",
        f"| largest difference of P(Yes), relative | | {difference / max(expected):.0e} | |",
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--passages", type=int, default=32)
    options.add_argument("--tokens", type=int, default=150, help="of a passage")
    options.add_argument("--system", type=int, default=420, help="tokens of the system's turn")
    options.add_argument("--token_budget", type=int, help="the engine's; what it finds if unset")
    options.add_argument("--repeats", type=int, default=1)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = ["| | one by one | shared prefix | ratio |", "|---|---|---|---|"]
    for family in arguments.families:
        lines += measure(family, arguments)
    print("\n".join(lines))
    if arguments.output:
        write(
            arguments,
            "ReAG's critic",
            "critic.py",
            "both sides in one run, by the CPU's clock where there is no GPU",
            lines,
        )


if __name__ == "__main__":
    main()
