"""Gates trained by reward, with tiny random models and real pipelines: learned, held, resumed and refused."""

import dataclasses
import functools
import json
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from reflectune.core.config import Settings, parse_config
from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.odds import log_odds
from reflectune.core.types import Entry, Passage, Question, Section
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.config import ModelSettings
from reflectune.inference.running import loading, rollout
from reflectune.inference.running.rollout import GateRewardRollout
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded, load
from reflectune.models.records import read_info
from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.gate_outcomes import GateOutcome, PassageOutcome
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.train.gate_rewards.run import GateTraining, chosen_questions
from reflectune.train.gate_rewards.trees import Costs, rewards_of
from reflectune.train.grpo import GrpoConfig, grpo
from reflectune.train.runs.skeleton import run
from reflectune.train.weights.checkpoints import recorded_settings

COLOURS = {"e0": "red", "e1": "blue", "e2": "green"}
SECTIONS = (Section("Diet", "It eats mice."), Section("Home", "It lives in an oak."))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, encoder: str) -> Path:
    """Three entries of two sections, and nine training questions about them, a third of them visual."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "images").mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (64, 64), colour).save(folder / f"images/{name}.png")
    entries = [
        Entry(id=name, title=f"Title {name}", summary="A drawing.", images=(f"images/{name}.png",), sections=SECTIONS)
        for name in COLOURS
    ]
    texts = ("What does it eat?", "What does it live in?", "Which colour is it?")
    questions = [
        Question(
            f"q{i}",
            f"images/{name}.png",
            text,
            ("mice", "oak", colour)[texts.index(text) : texts.index(text) + 1],
            split="train",
            requires_retrieval=text != texts[2],
            entity_ids=(name,),
        )
        for i, (text, (name, colour)) in enumerate((text, item) for text in texts for item in COLOURS.items())
    ]
    write_knowledge_base(folder / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    write_questions(folder, "train", questions)
    (folder / "dataset.json").write_text(
        json.dumps({"name": "test", "metric": "infoseek", "seed": 0, "fingerprint": "f" * 16})
    )
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "index")
    return folder


@pytest.fixture
def tuned(tuned_checkpoint) -> Callable[..., str]:
    """Writes checkpoints of random models: full ones, or an adapter of one."""
    text = f"What does it eat? It lives in an oak. Title e1: Diet.\n{ANSWER_PROMPTS['read_short']}"
    return lambda scheme="mr2ag", **more: tuned_checkpoint(text, scheme, **more)


@pytest.fixture
def config(tmp_path: Path, world: Path, tuned) -> Callable[..., GrpoConfig]:
    def build(out: str = "out", scheme: str = "mr2ag", **changes: Any) -> GrpoConfig:
        values: dict[str, Any] = {
            "model": tuned(scheme),
            "scheme": scheme,
            "dataset": str(world),
            "index": str(world / "index"),
            "output_dir": str(tmp_path / out),
            "answer_model": "tuned",
            "top_n": 2,
            "max_new_tokens": 4,
            "max_reply_tokens": 6,
            "mct": "none",
            "device": "cpu",
            "learning_rate": 5e-3,
            "warmup": 0.0,
            "beta": 0.0,
            "per_device_train_batch_size": 3,
            "max_steps": 6,
            "save_steps": 100,
            "logging_steps": 1,
        }
        made = GrpoConfig(**{**values, **changes})
        assert made.problems() == []
        return made

    return build


def measured_with(config: GrpoConfig) -> tuple[Settings, ModelSettings, RetrieverConfig]:
    return config, config.models(), RetrieverConfig.of(config)


def read_gates(config: GrpoConfig, model: str, relevance: bool = False) -> list[GateOutcome]:
    """The gates of a model, and what follows from them, read as an evaluation would."""
    dataset = Dataset(Path(config.dataset))
    loaded = load(model, scheme=config.scheme)
    folder = Path(config.output_dir).with_name(f"read-{loaded.fingerprint}")
    return GateRewardRollout(
        *measured_with(config),
        loaded,
        dataset,
        dataset.questions("train"),
        folder=folder,
        correctness=find_metric("infoseek"),
        relevance=relevance,
    )(0)


def moved(config: GrpoConfig) -> list[float]:
    """By how much each question's retrieval gate has moved, in log-odds."""
    before, after = read_gates(config, config.model), read_gates(config, config.output_dir)
    return [later.log_odds - earlier.log_odds for earlier, later in zip(before, after, strict=True)]


def refined(config: GrpoConfig, change: Callable[[GateOutcome], GateOutcome]) -> None:
    """A run whose outcomes are measured and then changed: a random model's answers are all wrong."""

    def measuring(loaded: Loaded, dataset: Dataset, questions: list[Question]) -> Callable[..., list[GateOutcome]]:
        both = GateRewardRollout(
            *measured_with(config),
            loaded,
            dataset,
            questions,
            folder=config.rewards_folder(),
            correctness=find_metric("infoseek"),
            relevance="relevance" in config.gates,
            run=str(config.hashed()),
        )
        return lambda number, *, kept=False: [change(outcome) for outcome in both(number, kept=kept)]

    run(config, GateTraining(config, Dataset(Path(config.dataset)), {}, measuring))


def test_the_base_model_is_not_in_memory_between_rounds(config, tuned, monkeypatch) -> None:
    settings = config(scheme="mmkb_rag", **answered_by_base(tuned))
    opened: list[weakref.ref[Any]] = []

    def open_plain(*args: Any) -> Loaded:
        loaded = loading.open_plain(*args)
        opened.append(weakref.ref(loaded.model))
        return loaded

    monkeypatch.setattr(rollout, "open_plain", open_plain)
    read_gates(settings, settings.model)
    assert [model() for model in opened] == [None]


def worth(direct: float, retrieved: float) -> Callable[[GateOutcome], GateOutcome]:
    return functools.partial(dataclasses.replace, direct=direct, retrieved=retrieved)  # type: ignore[arg-type]


def test_all_rounds_are_measured_in_the_precision_of_training(config: Callable[..., GrpoConfig]) -> None:
    seen: list[bool] = []
    refined(
        config(dtype="bfloat16", refresh_steps=1, max_steps=2),
        lambda outcome: (seen.append(torch.is_autocast_enabled("cpu")), outcome)[1],
    )
    assert seen == [True] * 18


def logged(folder: str | Path, name: str) -> list[float]:
    rows = json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]
    return [row[name] for row in rows if name in row]


@pytest.mark.parametrize(
    ("scheme", "method"), [("mr2ag", "full"), pytest.param("mmkb_rag", "lora", marks=pytest.mark.slow)]
)
def test_where_retrieving_costs_more_than_it_gains_the_gate_learns_not_to(config, scheme: str, method: str) -> None:
    """Rewards as measured: the random model is wrong either way, so that retrieving only costs."""
    settings = config(scheme=scheme, method=method, retrieval_cost=0.5, learning_rate=1e-2)
    grpo(settings)

    assert max(moved(settings)) < -1.0
    assert logged(settings.output_dir, "reward")[-1] > logged(settings.output_dir, "reward")[0]
    assert logged(settings.output_dir, "retrieving")[-1] < logged(settings.output_dir, "retrieving")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "changes", "start"),
    [
        ("mr2ag", {"family": "qwen2_vl"}, 1e-7),
        ("mr2ag", {"method": "qlora", "size": "base"}, 1e-6),
        ("mmkb_rag", {"dtype": "bfloat16"}, 1e-3),  # rounding: the engine's batches are not the trainer's
    ],
    ids=["qwen2_vl", "qlora", "bfloat16"],
)
def test_other_families_four_bits_and_half_precision_learn_from_where_they_were_measured(
    config, tuned, scheme: str, changes: dict[str, Any], start: float
) -> None:
    if changes.get("method") == "qlora":
        pytest.importorskip("bitsandbytes")
    of_model = {name: changes[name] for name in ("family", "size") if name in changes}
    others = {name: value for name, value in changes.items() if name not in of_model}
    settings = config(scheme=scheme, model=tuned(scheme, **of_model), retrieval_cost=0.5, max_steps=12, **others)
    grpo(settings)

    assert logged(settings.output_dir, "kl")[0] == pytest.approx(0.0, abs=start)
    assert logged(settings.output_dir, "retrieving")[-1] < 0.5 * logged(settings.output_dir, "retrieving")[0]


def test_where_retrieving_is_always_better_and_free_the_gate_learns_to(config) -> None:
    settings = config(policy_loss="grpo", retrieval_cost=0.0, learning_rate=1e-2)
    refined(settings, worth(direct=0.0, retrieved=1.0))

    assert min(moved(settings)) > 1.0


@pytest.mark.parametrize(("scheme", "divergence"), [("mr2ag", "kl"), ("mmkb_rag", "kl"), ("mmkb_rag", "held")])
def test_the_divergence_from_the_reference_is_0_at_the_first_step(config, tuned, scheme: str, divergence: str) -> None:
    """The engine reads the gates that the trainer computes. Answers of the base model leave relevance gates to hold."""
    every_gate = {"gates": ["retrieve", "relevance"]}
    settings = config(scheme=scheme, max_steps=1, **(every_gate if divergence == "kl" else answered_by_base(tuned)))
    grpo(settings)

    assert logged(settings.output_dir, divergence) == [pytest.approx(0.0, abs=1e-7)]


def answered_by_base(tuned: Callable[..., str]) -> dict[str, str]:
    return {"answer_model": "base", "base_model": str(read_info(tuned("mmkb_rag"))["base_model"])}


@pytest.mark.slow
def test_relevance_gates_that_are_held_stay_while_the_retrieval_gate_moves(config, tuned) -> None:
    shared: dict[str, Any] = {"scheme": "mmkb_rag", **answered_by_base(tuned), "retrieval_cost": 0.5}
    hard = {"learning_rate": 2e-2, "max_steps": 20}  # so that what is free drifts
    free, held = (config(f"hold-{weight}", hold=weight, **hard, **shared) for weight in (0.0, 10.0))
    grpo(free)
    grpo(held)

    before, *after = (
        read_gates(free, model, relevance=True) for model in (free.model, free.output_dir, held.output_dir)
    )

    def drift(later: list[GateOutcome]) -> float:
        start, end = ([p.log_odds for outcome in gates for p in outcome.passages] for gates in (before, later))
        return sum(abs(a - b) for a, b in zip(start, end, strict=True))

    assert max(later.log_odds - earlier.log_odds for earlier, later in zip(before, after[1], strict=True)) < -1.0
    assert drift(after[1]) < 0.5 * drift(after[0])


@pytest.mark.slow
def test_answers_that_are_held_stay_while_the_retrieval_gate_moves(config) -> None:
    free, held = (
        config(f"hold-{weight}", hold=weight, retrieval_cost=0.5, learning_rate=1e-2, max_steps=100)
        for weight in (0.0, 10.0)
    )
    grpo(free)
    grpo(held)

    def kept(settings: GrpoConfig) -> list[bool]:
        """Compare each question. A random model's last token may be half a character, which no text can hold."""
        pairs = zip(read_gates(settings, settings.model), read_gates(settings, settings.output_dir), strict=True)
        return [before.anchor.direct.startswith(after.anchor.direct or "nothing") for before, after in pairs]

    assert max(moved(held)) < -1.0
    assert all(kept(held))
    assert not any(kept(free))


@pytest.mark.slow
def test_relevance_gates_learn_to_keep_passages_with_right_answers(config) -> None:
    """Passages about a diet are worth keeping, those about a home are not; the retrieval gate earns nothing."""
    settings = config(
        gates=["retrieve", "relevance"],
        keeping_cost=0.5,
        retrieval_cost=0.0,
        max_steps=40,
        learning_rate=1e-2,
    )

    def change(outcome: GateOutcome) -> GateOutcome:
        passages = [dataclasses.replace(p, right=float("mice" in p.passage.text)) for p in outcome.passages]
        return dataclasses.replace(outcome, passages=tuple(passages))

    refined(settings, change)

    read = [p for gate in read_gates(settings, settings.output_dir, relevance=True) for p in gate.passages]
    assert min(p.log_odds for p in read if "mice" in p.passage.text) > 0
    assert max(p.log_odds for p in read if "mice" not in p.passage.text) < 0


def test_an_interrupted_run_ends_with_the_straight_runs_weights(config, assert_equal_weights, interrupted) -> None:
    """Rounds begin after steps 3 and 6, and read later weights; a checkpoint is written at step 4."""
    changes: dict[str, Any] = {"retrieval_cost": 0.5, "max_steps": 7, "refresh_steps": 3, "save_steps": 4}
    changes |= {"limit": 4, "per_device_train_batch_size": 2}
    straight, resumed = config("straight", **changes), config("resumed", **changes)
    grpo(straight)

    interrupted(resumed, 5, grpo)
    grpo(resumed)

    assert_equal_weights(straight.output_dir, resumed.output_dir)
    for name in ("loss", "reward", "kl"):
        assert logged(straight.output_dir, name) == logged(resumed.output_dir, name)
    rounds = sorted(straight.rewards_folder().iterdir())
    assert [folder.name for folder in rounds] == ["round-000", "round-001", "round-002"]
    first, second = (list(read_rows(folder / "retrieved.jsonl")) for folder in rounds[:2])
    assert [row["question_id"] for row in first] == [row["question_id"] for row in second]
    assert all(later["gate"] < before["gate"] for before, later in zip(first, second, strict=True))


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_weights(config, tmp_path, assert_equal_weights, start_program) -> None:
    """`kill -9` while answers of a later round are measured, and when a checkpoint's folder appears."""
    changes: dict[str, Any] = {"retrieval_cost": 0.3, "max_steps": 7, "refresh_steps": 3, "save_steps": 2}
    straight, killed = config("straight", **changes), config("killed", **changes)
    grpo(straight)

    for sign in ("rewards/round-001/parts", "checkpoint-4"):
        program = start_program(["-m", "reflectune", "grpo", *options(killed, tmp_path)])
        while not Path(killed.output_dir, sign).exists():
            assert program.poll() is None, program.stderr
            time.sleep(0.001)
        program.kill()
    program = start_program(["-m", "reflectune", "grpo", *options(killed, tmp_path)])
    assert program.wait() == 0, program.stderr

    assert_equal_weights(straight.output_dir, killed.output_dir)


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(config, tmp_path, weights, start_launch) -> None:
    """DDP over gloo with the same global batch: answers are measured by turns, and fillers count for nothing."""
    changes: dict[str, Any] = {"scheme": "mmkb_rag", "retrieval_cost": 0.3, "max_steps": 5, "refresh_steps": 3}
    one = config("one", per_device_train_batch_size=4, **changes)
    two = config("two", per_device_train_batch_size=2, **changes)
    grpo(one)
    program = start_launch("train/grpo.py", options(two, tmp_path))
    assert program.wait() == 0, program.stderr[-3000:]

    for name in ("loss", "reward", "kl"):
        assert logged(two.output_dir, name) == pytest.approx(logged(one.output_dir, name), rel=1e-3, abs=1e-6)
    torch.testing.assert_close(weights(two.output_dir), weights(one.output_dir), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_simulated_gpu_trains_gates_as_the_cpu_does(config, tmp_path, train_on_gpu) -> None:
    settings: dict[str, Any] = {"gates": ["retrieve", "relevance"], "max_steps": 2, "refresh_steps": 1}
    here, there = config("here", **settings), config("there", **settings, device="cuda", dtype="float32")
    grpo(here)
    train_on_gpu("train/grpo.py", options(there, tmp_path))

    for name in ("loss", "reward", "grad_norm"):
        assert logged(there.output_dir, name) == pytest.approx(logged(here.output_dir, name), rel=1e-3, abs=1e-5)


def test_packed_rows_train_the_same_gates(config, weights, differentiable_flex, monkeypatch) -> None:
    shared: dict[str, Any] = {"retrieval_cost": 0.5, "max_steps": 2, "refresh_steps": 1, "limit": 4}
    plain, packed = (config(name, "mmkb_rag", **shared) for name in ("a", "b"))
    grpo(plain)
    monkeypatch.setattr("reflectune.train.gate_rewards.run.packs_trees", lambda *of: True)
    grpo(packed)

    torch.testing.assert_close(weights(packed.output_dir), weights(plain.output_dir), rtol=1e-3, atol=1e-4)


def options(config: GrpoConfig, folder: Path) -> list[str]:
    """A config as it is typed, by way of a YAML file."""
    path = folder / f"{Path(config.output_dir).name}.yaml"
    keys = list(type(config).model_fields)
    plain = {key: value for key in keys if (value := getattr(config, key)) is not None and key not in ("gamma", "ret")}
    path.write_text(yaml.safe_dump({**plain, "k": str(config.k)}))
    return ["--config", str(path)]


def test_a_round_that_is_lost_is_not_measured_with_later_weights(config, interrupted) -> None:
    settings = config(refresh_steps=3, save_steps=4)
    interrupted(settings, 5, grpo)
    Path(settings.rewards_folder(), "round-001", "direct.jsonl").unlink()

    with pytest.raises(UserError, match=r"round-001 lacks direct\.jsonl"):
        grpo(settings)


def test_a_run_whose_questions_were_edited_is_not_continued(config, interrupted, world, tmp_path) -> None:
    own = shutil.copytree(world, tmp_path / "world")
    settings = config(dataset=str(own), save_steps=1)
    interrupted(settings, 2, grpo)
    questions = list(Dataset(own).questions("train"))
    write_questions(own, "train", [dataclasses.replace(questions[0], text="Where does it sleep?"), *questions[1:]])

    with pytest.raises(UserError, match="`questions_fingerprint` is"):
        grpo(settings)


def test_answers_are_kept_and_serve_runs_of_other_costs(config, tmp_path, monkeypatch) -> None:
    shared = str(tmp_path / "answers")
    grpo(config("one", retrieval_cost=0.1, rewards=shared, max_steps=1))
    monkeypatch.setattr("reflectune.inference.running.rollout.build_pipeline", None)  # nothing is left to answer

    grpo(config("other", retrieval_cost=0.2, rewards=shared, max_steps=1))

    with pytest.raises(UserError, match="written with other settings"):
        grpo(config("longer", max_new_tokens=5, rewards=shared, max_steps=1))


def test_an_adapter_is_continued(config, tuned, weights) -> None:
    settings = config(model=tuned(kind="adapter"), method="lora", retrieval_cost=0.5, learning_rate=1e-2)
    grpo(settings)

    assert read_info(settings.output_dir)["base_model"] == read_info(settings.model)["base_model"]
    assert weights(settings.output_dir).keys() == weights(settings.model).keys()
    assert logged(settings.output_dir, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert max(moved(settings)) < -1.0
    rank = json.loads(Path(settings.output_dir, "adapter_config.json").read_text())["r"]
    assert recorded_settings(Path(settings.output_dir))["lora_r"] == rank
    with pytest.raises(UserError, match="whose settings can't change: `lora_r` is 64, the adapter's"):
        grpo(config("other", model=settings.model, method="lora", lora_r=64))


@pytest.mark.slow
def test_full_training_starts_from_an_adapters_merged_weights(config, tuned) -> None:
    settings = config(model=tuned(kind="adapter"), max_steps=1)
    grpo(settings)

    assert read_info(settings.output_dir)["kind"] == "full"
    assert logged(settings.output_dir, "kl") == [pytest.approx(0.0, abs=1e-7)]


def test_a_dry_run_says_what_would_happen_and_writes_nothing(config, capsys) -> None:
    settings = config(dry_run=True, max_steps=None, epochs=4, refresh_steps=5)
    grpo(settings)
    printed = capsys.readouterr().out

    assert "9 questions of train (" in printed
    assert "6 knowledge-based" in printed
    assert "3 time(s)" in printed  # before step 1, after steps 5 and 10
    assert "steps: 12" in printed
    assert not Path(settings.output_dir).exists()


def test_visual_questions_are_as_many_as_asked_for(config, world: Path) -> None:
    questions = chosen_questions(config(visual_limit=1), Dataset(world))

    assert sum(question.requires_retrieval is True for question in questions) == 6
    assert sum(question.requires_retrieval is False for question in questions) == 1


def test_a_base_model_is_refused(config, tuned) -> None:
    base = read_info(tuned(kind="adapter"))["base_model"]

    with pytest.raises(UserError, match="is not fine-tuned"):
        grpo(config(model=base))


def test_an_adapter_of_four_bits_is_not_continued_in_full_precision(config, tuned, tmp_path) -> None:
    folder = tmp_path / "four_bits"
    folder.mkdir()
    for path in Path(tuned(kind="adapter")).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    info = {**read_info(folder), "quantization": {"dtype": "float32"}}
    (folder / "reflectune.json").write_text(json.dumps(info))

    with pytest.raises(UserError, match="`method: qlora`; use that"):
        grpo(config(model=str(folder), method="lora"))


def test_all_problems_of_a_config_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "scheme: mmkb_rag\ngates: [relevance]\nmetric: bleu\nbeta: -1\nretrieval_cost: -0.1\nbatch_questions: 0\n"
        "learning_rate: -1\ntop_n: 0\nrewards: a\nrefresh_steps: 2\n"
    )
    with pytest.raises(UserError) as raised:
        parse_config(GrpoConfig, argv=["--config", str(path)])
    message = str(raised.value)

    for name in ("gates", "metric", "beta", "retrieval_cost", "batch_questions", "learning_rate", "top_n", "rewards"):
        assert f"`{name}`" in message, name
    for name in ("model", "output_dir", "dataset", "index", "base_model"):
        assert f"`{name}` is needed" in message, name


GATE_KEYS = "`gamma` and `ret` have no effect: rewards are measured for both outcomes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scheme: reflectiva\ngates: [retrieve, relevance]",
            "`gates`: reflectiva can't answer from each passage alone",
        ),
        *((f"{key}: 1", f"unknown key `{key}`") for key in ("train_data", "best_metric", "tree", "device_map")),
        ("gamma: 0.4", GATE_KEYS),
        ("ret: false", GATE_KEYS),
    ],
)
def test_settings_that_have_no_meaning_here_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(UserError, match=message):
        parse_config(GrpoConfig, argv=["--config", str(path)])


def test_the_help_leaves_out_the_keys_of_other_schemes() -> None:
    hidden = {scheme: GrpoConfig.unread_keys({"scheme": scheme}) for scheme in ("mr2ag", "mmkb_rag")}
    for keys in hidden.values():
        assert {"gamma", "ret"} <= keys
        assert not {"scheme", "top_n", "index", "base_model", "gates"} & keys
    assert "srt" in hidden["mr2ag"] - hidden["mmkb_rag"]
    assert "exponents" in hidden["mmkb_rag"] - hidden["mr2ag"]


def test_rewards_count_every_passage_that_was_read() -> None:
    passage = Passage("e0", 0, 0, "", "", "", "")
    passages = (PassageOutcome(passage, 1.0, 2.0), PassageOutcome(passage, 0.0, -3.0))
    outcome = GateOutcome("q", direct=0.25, retrieved=1.0, passages_read=20, log_odds=0.5, passages=passages)

    rewards = rewards_of(outcome, Costs(retrieval=0.02, keeping=0.1))

    assert rewards.rewards == (pytest.approx((0.6, 0.25)), (0.9, 0.0), (-0.1, 0.0))
    assert rewards.log_odds == (0.5, 2.0, -3.0)


@pytest.mark.parametrize(
    ("yes", "no", "expected"), [(0.75, None, 1.0986), (0.2, 0.1, 0.6931), (1.0, None, 30.0), (0.0, 0.0, -30.0)]
)
def test_log_odds_of_probabilities(yes: float, no: float | None, expected: float) -> None:
    assert log_odds(yes, no) == pytest.approx(expected, abs=1e-4)
