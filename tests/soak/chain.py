"""The commands that the soaks run: a chain on a tiny world, each on the outputs of earlier ones."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from reflectune.examples.staging import CONFIGS, launch, program

BEFORE_INPUTS = "tuned"
"""Command after which `write_inputs` has everything that it needs."""
QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of every command: one thread, no progress bars."""
ACCEPTED = (0, 3)
"""Exit statuses of a command that ended; 3 means that rows were left out."""
WORLD, INDEX, DATA, INPUTS = "world", "index", "reflection", "inputs"


@dataclass(frozen=True)
class Job:
    """A command and its output.

    Attributes:
        module: Module below `reflectune`.
        settings: Its arguments; `{out}` is the output, `{configs}` the folder of the miniature's recipes.
        launched: Recipe of the miniature for a launch in two processes; "" runs one process.
        launcher_alone: True if a kill hits the launcher alone, and not its processes.
        fetches: True if it fetches packages, which needs a registry. Without `{out}` it writes into the user's cache.
    """

    module: str
    settings: str
    launched: str = ""
    launcher_alone: bool = False
    fetches: bool = False

    def command(self, out: Path) -> list[str]:
        """Return the command line."""
        if self.launched:
            return [*launch(self.module, f"examples/miniature/{self.launched}", 2), *self.arguments(out)]
        return [*self.program, *self.arguments(out)]

    @property
    def program(self) -> list[str]:
        """The words that start the command."""
        return program(self.module)

    def arguments(self, out: Path) -> list[str]:
        """Return the arguments behind the command."""
        return self.settings.format(out=out, configs=CONFIGS / "examples/miniature").split()

    def environment(self, out: Path) -> dict[str, str]:
        """Return the environment of the command."""
        if not self.fetches:
            return os.environ | QUIET | {"HF_HUB_OFFLINE": "1"}
        return os.environ | QUIET | ({} if "{out}" in self.settings else {"REFLECTUNE_CACHE": str(out)})


_WORLD = f"--dataset {WORLD} --index {INDEX} --device cpu"
_PROBE = (
    f"--dataset {WORLD} --index {INDEX} --model miniature/llava --device cpu --summary sentences "
    "--documents 5 --max_new_tokens 8 --window 8 --batch_questions 4 --limit 48 --output {out}"
)
_TUNE = "--device cpu --max_steps 12 --save_steps 3 --logging_steps 1 --output_dir {out}"
JOBS: dict[str, Job] = {
    WORLD: Job("examples.miniature.build_world", "--size tiny --output {out}"),
    INDEX: Job("retrieval.build_index", f"--knowledge {WORLD}/knowledge --encoder miniature/clip --output {{out}}"),
    "faiss_index": Job(
        "retrieval.build_index",
        f"--knowledge {WORLD}/knowledge --encoder miniature/clip --store faiss --output {{out}}",
    ),
    "text_index": Job(
        "retrieval.build_index",
        f"--rows passages --knowledge {WORLD}/knowledge --encoder miniature/text --shard_entries 16 --device cpu "
        "--output {out}",
    ),
    "recall": Job(
        "inference.recall", f"--dataset {WORLD} --index faiss_index --limit 8 --device cpu --output {{out}}/recall.json"
    ),
    "index_without": Job(
        "retrieval.build_index",
        f"--knowledge {WORLD}/knowledge --encoder miniature/clip --test_images {WORLD} --distance 8 "
        "--shard_entries 16 --output {out}",
    ),
    DATA: Job(
        "data_builders.build_mr2ag",
        f"--config {{configs}}/mr2ag_data.yaml --dataset {WORLD} --index {INDEX} --output {{out}}",
    ),
    "plain": Job(
        "data_builders.build_plain",
        f"--config {{configs}}/plain_data.yaml --dataset {WORLD} --reflection {DATA} --index {INDEX} --output {{out}}",
    ),
    "export": Job("train.export", f"--data {DATA} --to trl --output {{out}}"),
    "tuned": Job("train.sft", f"--config {{configs}}/sft.yaml --model miniature/llava --train_data {DATA} {_TUNE}"),
    "launched": Job(
        "train.sft",
        f"--model miniature/llava --train_data {DATA} --per_device_train_batch_size 4 {_TUNE}",
        launched="sft.yaml",
        launcher_alone=True,
    ),
    "adapter": Job(
        "train.sft",
        f"--config {{configs}}/sft.yaml --method lora --learning_rate 2e-3 --model miniature/llava --train_data {DATA} "
        + _TUNE,
    ),
    "merged": Job("train.merge", "--checkpoint adapter --output {out}"),
    "served": Job("train.export", "--checkpoint adapter --to vllm --adapter true --output {out}"),
    "refined": Job(
        "train.grpo",
        f"--config {{configs}}/grpo.yaml --model tuned {_WORLD} --limit 16 --visual_limit 4 --max_steps 9 --epochs 9 "
        "--per_device_train_batch_size 4 --save_steps 2 --logging_steps 1 --output_dir {out}",
    ),
    "probes": Job("data_builders.probe", _PROBE),
    "probes_of_two": Job("data_builders.probe", _PROBE, launched="probe.yaml"),
    "labels": Job("data_builders.derive_labels", f"--probes probes --dataset {WORLD} --output {{out}}"),
    "evaluation": Job(
        "inference.evaluate",
        f"{_WORLD} --model tuned --base_model miniature/llava --limit 12 --pipelines closed_book naive_rag mr2ag "
        "--output {out}",
    ),
    "text_rag": Job(
        "inference.evaluate",
        f"--dataset {WORLD} --text_index text_index --base_model miniature/llava --limit 4 --pipelines text_rag "
        "--device cpu --output {out}",
    ),
    "trajectories": Job(
        "inference.evaluate",
        f"--dataset {WORLD} --index {INDEX} --text_index text_index --limit 6 "
        "--base_model miniature/llava --pipelines mi_rag pmsr mrag_agent --iterations 2 --text_passages 4 "
        "--pair_passages 2 --max_record_tokens 8 --max_new_tokens 8 --batch_questions 4 --device cpu --output {out}",
    ),
    "comparison": Job("inference.compare", "--evaluations trajectories text_rag --output {out}"),
    "sweep": Job(
        "inference.sweep",
        f'--pipeline mr2ag --grid {{{{"gamma":[0.1,0.9],"top_n":[1,2]}}}} {_WORLD} --model tuned --limit 6 '
        "--output {out}",
    ),
    "scores": Job(
        "metrics.score", f"--predictions evaluation/traces/mr2ag.jsonl --dataset {WORLD} --output {{out}}/scores.json"
    ),
    "converted": Job("data_builders.convert", f"--config {INPUTS}/user/convert.yaml --output {{out}}"),
    "title_map": Job(
        "examples.pocket.fit_title_map",
        f"--images {INPUTS}/user/images.jsonl --knowledge {WORLD}/knowledge --vision {INPUTS}/tower "
        "--text miniature/text --output {out}/map.safetensors",
    ),
    "assembled": Job(
        "train.merge", f"--language {INPUTS}/language --vision {INPUTS}/vision --dtype float32 --output {{out}}"
    ),
    "packed": Job("examples.pocket.pack", "--checkpoint tuned --output {out}"),
    "pretrained": Job("examples.miniature.pretrain", "--family text --scale 0.02 --output {out}"),
    "gallery": Job("examples.pocket.build_gallery", "--limit 3 --output {out}", fetches=True),
    "fetched": Job("examples.pocket.fetch", "text", fetches=True),
}
"""Jobs by the name of their output."""


def undisturbed(job: Job, out: Path, log: Path) -> float:
    """Run a command undisturbed, and return its seconds."""
    start = time.monotonic()
    with log.open("wb") as file:
        command, environment = job.command(out), job.environment(out)
        status = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False).returncode
    if status not in ACCEPTED:
        sys.exit(f"{job.module} ended undisturbed with status {status}; see {log}")
    return time.monotonic() - start


def write_inputs(folder: Path) -> None:
    """Write the inputs of the chain that none of its commands writes, next to its finished world.

    A separate process does it: a process that forks later must not have computed with torch, since a fork loses its
    threads.
    """
    subprocess.run([sys.executable, str(Path(__file__).with_name("inputs.py")), str(folder)], check=True)
