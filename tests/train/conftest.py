import functools
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jinja2
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import TrainerCallback

from reflectune.core.types import Passage
from reflectune.examples.miniature.models.architecture import (
    Family,
    Size,
    build_model,
    build_processor,
    train_tokenizer,
)
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.registry import all_schemes
from reflectune.models.weights.tokens import add_reflection_tokens
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import add_adapters
from tests.json_server import JsonServer

COLOURS = {"red": (200, 30, 30), "green": (20, 160, 40), "blue": (30, 60, 200)}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cards_compiled_once() -> Iterator[None]:
    """PEFT writes a card next to each adapter: compile its template once, and not for each checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2, "Template", functools.cache(jinja2.Template))
        yield


def passage(entry: int, text: str) -> Passage:
    return Passage(f"e{entry}", 0, 0, f"Gold Tower {entry}", "A gold tower.", "History", text)


def knowledge(number: int, rng: random.Random, branches: int) -> ReflectionExample:
    year = rng.randint(1500, 1999)
    others = [
        Branch(passage(100 * number + i, f"It is {'very ' * rng.randint(0, 9)}tall."), False, "", "random")
        for i in range(branches - 1)
    ]
    gold = Branch(passage(number, f"It was founded in {year}."), True, str(year), "gold")
    return ReflectionExample(
        f"k{number}", f"{rng.choice(list(COLOURS))}.png", "When was it founded?", True, branches=(gold, *others)
    )


def visual(number: int, rng: random.Random) -> ReflectionExample:
    colour = rng.choice(list(COLOURS))
    return ReflectionExample(f"v{number}", f"{colour}.png", "Which colour is it?", False, answer=colour)


@pytest.fixture
def examples() -> list[ReflectionExample]:
    """Eighteen knowledge-based questions with one to four passages each, and six visual ones."""
    rng = random.Random(0)
    return [knowledge(i, rng, 1 + i % 4) for i in range(18)] + [visual(i, rng) for i in range(6)]


def prompted(example: ReflectionExample) -> PromptedExample:
    """The question as MMKB-RAG asks it: RET, an SRT per passage, and MCT where there are several."""
    documents = tuple(branch.passage for branch in example.branches)
    keep = 1 + next((i for i, branch in enumerate(example.branches) if branch.relevant), 0)
    branches = [PromptedBranch("ret", role="retrieve" if example.retrieve else "no_retrieve")]
    branches += [
        PromptedBranch("srt", (branch.passage,), role="relevant" if branch.relevant else "irrelevant")
        for branch in example.branches
    ]
    if len(documents) > 1:
        branches.append(PromptedBranch("mct", documents, reply=f"{keep}. {documents[keep - 1].text}"))
    return PromptedExample(example.id, example.image, example.question, tuple(branches))


@pytest.fixture
def prompted_folder(data_folder: Path, examples: list[ReflectionExample], tmp_path: Path) -> Path:
    """A folder of MMKB-RAG's three tasks, with the images of `data_folder`."""
    folder = tmp_path / "prompted"
    write_examples(folder / "train.parquet", [prompted(example) for example in examples])
    write_manifest(folder, Manifest("mmkb_rag", data_folder / "images", {"train": "0"}))
    return folder


@pytest.fixture
def plain_folder(data_folder: Path, examples: list[ReflectionExample], tmp_path: Path) -> Path:
    """A folder of the baselines' data: each question with its passages, or without any, and its answer."""
    folder = tmp_path / "plain"
    write_examples(folder / "train.parquet", [plain(example) for example in examples])
    write_manifest(folder, Manifest("plain", data_folder / "images", {"train": "0"}))
    return folder


def plain(example: ReflectionExample) -> PromptedExample:
    """The question as a reader of its passages is asked it."""
    answer = example.answer or next((branch.answer for branch in example.branches if branch.relevant), "nobody")
    branch = PromptedBranch("vqa", tuple(branch.passage for branch in example.branches), reply=answer)
    return PromptedExample(example.id, example.image, example.question, (branch,))


@pytest.fixture
def data_folder(tmp_path: Path, examples: list[ReflectionExample]) -> Path:
    """A folder of reflection data with its images."""
    folder = tmp_path / "data"
    write_examples(folder / "train.parquet", examples)
    write_manifest(folder, Manifest("mr2ag", folder / "images", {"train": "0"}))
    (folder / "images").mkdir()
    for colour, value in COLOURS.items():
        Image.new("RGB", (70, 64), value).save(folder / "images" / f"{colour}.png")
    return folder


@pytest.fixture(scope="session")
def built_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family, bool | None, int, Size], Path]:
    """Writes a random base model once, for tests to copy."""

    @functools.cache
    def build(family: Family, tie: bool | None, seed: int, size: Size) -> Path:
        folder = tmp_path_factory.mktemp("base")
        texts = ["USER: When was it founded? ASSISTANT: It was founded in 1872.", "Which colour is it? a gold tower"]
        tokenizer = train_tokenizer(texts, 320, family)
        build_model(family, tokenizer, size=size, tie_word_embeddings=tie, seed=seed).save_pretrained(folder)
        build_processor(family, tokenizer).save_pretrained(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def tuned_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Writes a checkpoint of a random model once: a full one, or an adapter that has been trained."""

    @functools.cache
    def build(text: str, scheme: str, family: Family = "llava", kind: str = "full", size: Size = "test") -> str:
        base, folder = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("tuned")
        tokenizer = train_tokenizer(text.splitlines() * 3, 400, family)
        processor, model = build_processor(family, tokenizer), build_model(family, tokenizer, size=size, seed=1)
        model.save_pretrained(base)
        processor.save_pretrained(base)
        trained: Any = model
        ids = add_reflection_tokens(model, processor, all_schemes()[scheme], seed=0)
        if kind != "full":
            targets = r".*language_model.*\.(q|v)_proj"
            trained = add_adapters(model, ids.values(), rank=4, alpha=8, dropout=0.0, targets=targets)
            for name, parameter in trained.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.05)
        save_checkpoint(folder, trained, processor, all_schemes()[scheme], {"base_model": str(base), "seed": 0})
        return str(folder)

    return build


@pytest.fixture
def base_model(tmp_path: Path, built_base) -> Callable[..., Path]:
    """Writes a random base model of a family, without reflection tokens, into a folder, and returns the folder."""

    def build(family: Family = "llava", *, tie: bool | None = None, seed: int = 0, size: Size = "test") -> Path:
        folder = tmp_path / f"base_{family}_{tie}_{seed}_{size}"
        return shutil.copytree(built_base(family, tie, seed, size), folder, dirs_exist_ok=True)

    return build


@pytest.fixture
def config(tmp_path: Path, data_folder: Path, base_model) -> Callable[..., SftConfig]:
    """Makes the settings of a short run into the folder `out`."""

    def build(out: str = "out", family: Family = "llava", size: Size = "test", **changes: Any) -> SftConfig:
        values: dict[str, Any] = {
            "model": str(base_model(family, size=size)),
            "train_data": str(data_folder),
            "output_dir": str(tmp_path / out),
            "device": "cpu",
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 4,
            "max_steps": 8,
            "save_steps": 3,
            "logging_steps": 1,
            "lora_dropout": 0.1,
        }
        return SftConfig(**{**values, **changes})

    return build


@pytest.fixture(scope="session")
def straight_runs() -> dict[str, SftConfig]:
    """The uninterrupted run of each method that a test has asked for."""
    return {}


@pytest.fixture
def straight(config, straight_runs, tmp_path_factory) -> Callable[..., SftConfig]:
    """Trains by `config`'s own settings, once a method; tests only read the output."""

    def finished(method: str = "full") -> SftConfig:
        if method not in straight_runs:
            run = config(str(tmp_path_factory.mktemp("straight")), method=method)
            fine_tune(run)
            straight_runs[method] = run
        return straight_runs[method]

    return finished


@pytest.fixture
def weights() -> Callable[[str | Path], dict[str, torch.Tensor]]:
    """Reads the weights, or the adapter, in a folder.

    A base that transformers wrote lacks the `vision_model.` of published names.
    """

    def read(folder: str | Path) -> dict[str, torch.Tensor]:
        tensors = load_file(next(Path(folder).glob("*model.safetensors")))
        return {name.replace("tower.vision_model.", "tower."): tensor for name, tensor in tensors.items()}

    return read


@pytest.fixture
def assert_equal_weights(weights) -> Callable[[str | Path, str | Path], None]:
    """Compares the weights in two folders, bit by bit."""

    def compare(one: str | Path, other: str | Path) -> None:
        first, second = weights(one), weights(other)
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []

    return compare


@pytest.fixture
def history() -> Callable[[str | Path], list[dict[str, Any]]]:
    """Reads the rows that a run logged."""

    def read(folder: str | Path) -> list[dict[str, Any]]:
        return json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]

    return read


@pytest.fixture
def losses(history) -> Callable[[str | Path], list[float]]:
    """Reads the losses that a run logged."""
    return lambda folder: [row["loss"] for row in history(folder) if "loss" in row]


@pytest.fixture
def typed() -> Callable[[SftConfig], list[str]]:
    """A config as it is typed."""
    return options


def options(config: SftConfig) -> list[str]:
    """A config as it is typed."""
    typed = []
    for name, value in config.model_dump().items():
        if value not in (None, [], {}, ""):
            texts = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            typed += [f"--{name}", *map(str, texts)]
    return typed


@pytest.fixture
def start(start_program, start_launch) -> Callable[..., Any]:
    """Starts a run in processes of its own: in one, or in two that meet over gloo."""

    def begin(config: SftConfig, processes: Literal[1, 2] = 1) -> Any:
        if processes == 1:
            return start_program(["-m", "reflectune", "sft", *options(config)])
        return start_launch("train/sft.py", options(config))

    return begin


@pytest.fixture
def train_on_gpu(start_program, simulated_gpu: str, tmp_path: Path) -> Callable[[str, list[str]], list[list[str]]]:
    """Runs a script on a simulated GPU, and returns what waited for it between the ends of two steps."""

    def train(script: str, arguments: list[str]) -> list[list[str]]:
        file = tmp_path / "waits.json"
        program = start_program([simulated_gpu, str(file), str(Path(__file__).parents[2] / script), *arguments])
        assert program.wait() == 0, program.stderr[-3000:]
        steps: list[list[str]] = json.loads(file.read_text())
        return steps

    return train


@pytest.fixture
def finish(start) -> Callable[..., None]:
    """Runs a config to its end in processes of its own."""

    def run(config: SftConfig, processes: Literal[1, 2] = 1) -> None:
        program = start(config, processes)
        assert program.wait() == 0, program.stderr[-3000:]

    return run


@pytest.fixture
def killed(start) -> Callable[..., None]:
    """Starts a run and kills it with all its processes, some seconds after a file of its folder appears."""

    def run(config: SftConfig, wait_for: str, delay: float = 0.0, processes: Literal[1, 2] = 1) -> None:
        program = start(config, processes)
        while not Path(config.output_dir, wait_for).exists():
            assert program.poll() is None, f"it ended before it was killed: {program.stderr[-3000:]}"
            time.sleep(0.001)
        time.sleep(delay)
        program.kill()

    return run


class _Stop(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trains up to a step and stops there, as Ctrl-C would; by `fine_tune`, or by another command's function."""
    original = ReflectionTrainer.train

    def run(config: SftConfig, step: int, command: Callable[[Any], None] = fine_tune) -> None:
        def train(self: Any, **kwargs: Any) -> Any:
            self.add_callback(_Stop(step))
            return original(self, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(ReflectionTrainer, "train", train)
            with pytest.raises(KeyboardInterrupt):
                command(config)

    return run


class VllmStub:
    """A server that writes replies in turn, and keeps the weights that it is given.

    Attributes:
        requests: Bodies of the requests for tokens.
        weights: The weights, by the order in which they came.
        exchanges: False to have no address for them.
    """

    def __init__(self, model: str, replies: Iterator[str]) -> None:
        self.model, self.renderer, self.replies = model, load(model).renderer, replies
        self.requests: list[dict[str, Any]] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.exchanges, self.lock = True, threading.Lock()
        self.server = JsonServer(self.answer)
        self.url = self.server.url

    def answer(self, path: str, body: Any) -> dict[str, Any]:
        if body is None:
            return {"data": [{"id": self.model, "max_model_len": 4096}]}
        with self.lock:
            if path == "/inference/v1/generate":
                return self.generate(body)
            if self.exchanges and path == "/collective_rpc" and body["method"] == "reload_weights":
                self.weights.append(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))
                return {"results": [None]}
        raise KeyError(path)

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(body)
        ids = self.renderer.reply_ids(next(self.replies))
        content = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in ids]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        image = self.renderer.image_token_id
        read = [token for sent in body["token_ids"] for token in [sent] * (16 if sent == image else 1)]
        return {"choices": [choice], "prompt_token_ids": read}


@pytest.fixture
def vllm_stub() -> Iterator[Callable[..., VllmStub]]:
    """Makes servers."""
    stubs: list[VllmStub] = []

    def make(model: str, replies: Iterator[str]) -> VllmStub:
        stubs.append(VllmStub(model, replies))
        return stubs[-1]

    yield make
    for stub in stubs:
        stub.server.close()
