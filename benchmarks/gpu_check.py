"""Every recipe's family by every method, for some steps of `train/sft.py` on random weights, as a Markdown table.

    bash scripts/gpu_check.sh                                          # on a GPU: true widths, two layers
    bash scripts/gpu_check.sh --whole --families llava --methods lora  # all layers, by the recipe of that name
    bash scripts/gpu_check.sh --device cpu --size tiny --steps 4       # anywhere: narrow ones

For each: the loss, the time, the memory beside what `--dry_run` foretold, and whether plain transformers or peft (and
vLLM, where it is installed) load what was written. Where there are two GPUs, each base answers with its layers spread
over them, too. It ends with status 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from PIL import Image
from random_bases import RECIPES, write_base
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from reflectune.core.types import Passage
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import Branch, ReflectionExample
from reflectune.models.weights.spreading import Places

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("full", "lora", "qlora")
HEAD = [
    "| family | method | loss | seconds a step | tokens/s | peak memory, GiB | estimated, GiB | loads |",
    "|---|---|---|---|---|---|---|---|",
]
_UNITS = {"GiB": 1.0, "MiB": 1 / 1024}
_VLLM = "from vllm import LLM; LLM({folder!r}, enforce_eager=True, max_model_len=2048, gpu_memory_utilization=0.5)"


@dataclass(frozen=True)
class Shape:
    """How large the data's questions are: the side of a picture, passages, and words of one."""

    side: int
    passages: int
    words: int


SHAPES = {"true": Shape(672, 6, 150), "tiny": Shape(56, 3, 12)}


class Failed(Exception):
    """A command of a cell; its message is the end of what it said."""


def write_data(folder: Path, shape: Shape, count: int) -> None:
    """Write mR²AG examples of noisy pictures and made-up passages, two of three with retrieval."""
    rng = random.Random(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    examples = []
    for number in range(count):
        name = f"{number}.png"
        pixels = torch.randint(0, 256, (shape.side // 8, shape.side // 8, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).resize((shape.side, shape.side)).save(folder / "images" / name)
        if number % 3 == 2:
            examples.append(ReflectionExample(str(number), name, "Which colour is it?", False, answer="red"))
            continue
        branches = []
        for order in range(shape.passages):
            text = " ".join(str(rng.randint(1000, 9999)) for _ in range(shape.words // 4))
            passage = Passage(f"e{number}", 0, order, f"Tower {number}", "", "", f"It was built in {text}.")
            branches.append(Branch(passage, order == 0, text[:4] if order == 0 else "", "made up"))
        examples.append(ReflectionExample(str(number), name, "When was it built?", True, branches=tuple(branches)))
    write_examples(folder / "train.parquet", examples)
    write_manifest(folder, Manifest("mr2ag", folder / "images", {"train": "0"}))


def check(family: str, method: str, base: Path, arguments: argparse.Namespace) -> str:
    """Train one cell, and return its row.

    Raises:
        Failed: A command did.
    """
    output = arguments.run / f"{family}_{method}"
    shutil.rmtree(output, ignore_errors=True)
    on_cpu = arguments.device == "cpu"
    recipe = ROOT / f"configs/{RECIPES[family]}/mr2ag_{method}.yaml"
    settings = {
        **({"config": recipe, "gradient_accumulation_steps": 1} if arguments.whole else {}),
        "model": base,
        "train_data": arguments.run / "data",
        "output_dir": output,
        "method": method,
        "device": "cpu" if on_cpu else "auto",
        "dtype": "float32" if on_cpu else "bfloat16",
        "freeze_vision": "true",
        "learning_rate": "1e-3" if method != "full" else "1e-4",
        "per_device_train_batch_size": 2,
        "max_steps": arguments.steps,
        "logging_steps": 1,
        "save_steps": 10_000,
    }
    command = [sys.executable, str(ROOT / "train/sft.py")]
    command += [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    estimated = foretold(finished([*command, "--dry_run"]))
    finished(command)
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    rows, whole = [row for row in history if "loss" in row], history[-1]
    losses = [row["loss"] for row in rows]
    if not all(math.isfinite(loss) for loss in losses):
        raise Failed(f"losses {losses}")
    speeds = [row["tokens_per_second"] for row in rows[1:]]  # the first step warms up
    peak = f"{rows[-1]['peak_memory_gib']:.1f}" if "peak_memory_gib" in rows[-1] else "–"
    return (
        f"| {family} | {method} | {losses[0]:.2f} → {losses[-1]:.2f} | {whole['train_runtime'] / len(rows):.2f} "
        f"| {sum(speeds) / len(speeds):,.0f} | {peak} | {estimated:.2f} | {loads(output, base, method, arguments)} |"
    )


def finished(command: list[str]) -> str:
    """What a command has printed.

    Raises:
        Failed: It ended with an error.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stderr or done.stdout).strip()[-1500:])
    return done.stdout


def foretold(said: str) -> float:
    """GiB of tensors in a dry run's table: the sum but for the accelerator's context."""
    gib_by_name = {name: float(value.replace(",", "")) * _UNITS[unit] for name, value, unit in _AMOUNT.findall(said)}
    return gib_by_name["sum"] - gib_by_name.get("context", 0.0)


_AMOUNT = re.compile(r"^  (sum|context) +([\d.,]+) (GiB|MiB)", re.M)


def loads(output: Path, base: Path, method: str, arguments: argparse.Namespace) -> str:
    """Load a checkpoint without reflectune, and name the libraries that loaded it.

    Raises:
        Failed: A weight is missing or left over, or vLLM does not load it.
    """
    if method == "full":
        made: Any = AutoModelForImageTextToText.from_pretrained(output, output_loading_info=True)
        report = {kind: list(names)[:3] for kind, names in made[1].items() if names}
        if report:
            raise Failed(f"plain transformers does not load {output} whole: {report}")
        if find_spec("vllm") is None or arguments.device == "cpu":
            return "transformers"
        finished([sys.executable, "-c", _VLLM.format(folder=str(output))])
        return "transformers, vLLM"
    adapted = PeftModel.from_pretrained(load(str(base), scheme="mr2ag", dtype="bfloat16").model, output)
    loaded_weights, written = get_peft_model_state_dict(adapted), load_file(output / "adapter_model.safetensors")
    odd = [
        name
        for name in {*loaded_weights, *written}
        if name not in loaded_weights or not torch.equal(loaded_weights[name], written[name])
    ]
    if odd:
        raise Failed(f"plain peft does not load {output} whole: {odd[:3]}")
    return "peft"


def spread(base: Path, one: str, several: str | Places) -> str:
    """A base's gates and answer with its layers on one device and on several, which must be the same.

    Raises:
        Failed: They differ.
    """
    said = []
    for where in ({"device": one}, {"device_map": several}):
        loaded = load(str(base), scheme="mr2ag", dtype="bfloat16", **where)
        engine = PrefixEngine(loaded, token_budget=4096)
        picture = Image.new("RGB", (336, 336), "red")
        state = engine.read([loaded.renderer.prefix(text, picture) for text in ("Which colour is it?", "What is it?")])
        gates = state.probabilities([loaded.renderer.token_id(role) for role in ("retrieve", "no_retrieve")])
        branches = engine.branch(state, [[[5, 6, 7], [8, 9]], [[10]]])
        answers = engine.generate(branches, [(0, 0), (0, 1), (1, 0)], max_new_tokens=8)
        said.append((gates.tolist(), [answer.token_ids for answer in answers]))
    if said[0] != said[1]:
        raise Failed(f"spread over several devices, the model says {said[1]} in place of {said[0]}")
    model: Any = loaded.model
    return f"its layers over {len(set(model.hf_device_map.values()))} devices: the same gates and answers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=SHAPES, default="true")
    parser.add_argument("--whole", action="store_true", help="all layers, and what else the recipe of that name says")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--run", type=Path, default=Path("runs/gpu_check"))
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = parser.parse_args()
    write_data(arguments.run / "data", SHAPES[arguments.size], 2 * arguments.steps + 2)
    lines, notes, failures = [*HEAD], [], 0
    print("\n".join(HEAD), flush=True)
    for family in arguments.families:
        base = arguments.run / f"base_{family}"
        write_base(family, base, narrow=arguments.size == "tiny", whole=arguments.whole, device=arguments.device)
        for method in arguments.methods:
            try:
                row = check(family, method, base, arguments)
            except Failed as error:
                row, failures = f"| {family} | {method} | failed | | | | | |", failures + 1
                print(error, file=sys.stderr)
            lines.append(row)
            print(row, flush=True)
            shutil.rmtree(arguments.run / f"{family}_{method}", ignore_errors=True)  # a full one is up to 30 GB
        told = f"skipped, {torch.cuda.device_count()} GPU" if torch.cuda.device_count() < 2 else ""
        try:
            told = told or spread(base, "cuda:0", "auto")
        except Failed as error:
            told, failures = "failed", failures + 1
            print(error, file=sys.stderr)
        notes.append(f"- {family}, `device_map: auto`: {told}")
        shutil.rmtree(base)
    print("\n".join(["", *notes]), flush=True)
    if arguments.output:
        where = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
        layers = "all" if arguments.whole else "two"
        how = f"{arguments.steps} steps, {arguments.size} widths, {layers} layers, random weights, {where}"
        title = f"# Every family by every method\n\n`bash scripts/gpu_check.sh`: {how}, torch {torch.__version__}.\n\n"
        arguments.output.write_text(title + "\n".join([*lines, "", *notes]) + "\n", encoding="utf-8")
    sys.exit(min(failures, 1))


if __name__ == "__main__":
    main()
