import functools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoTokenizer

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.examples.miniature.models.architecture import Family
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.loading import load
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.runs import skeleton, supervised
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.weights.checkpoints import RECORD, checkpoint_folders
from reflectune.train.weights.loading import load_base
from reflectune.train.weights.merging import merge_adapter, plan_merge

METHODS = ("full", "lora")
ROOT = Path(__file__).parents[3]


def test_a_step_in_which_no_example_fits_changes_nothing(config, examples, losses) -> None:
    run = config(per_device_train_batch_size=1, gradient_accumulation_steps=1, max_tokens=600, max_steps=3)
    long = replace(examples[1], id="long", question="which " * 400)
    write_examples(run.sources()[0].file, [examples[0], long, examples[2]])
    fine_tune(run)
    assert sorted(loss > 0 for loss in losses(run.output_dir)) == [False, True, True]


def test_a_run_whose_last_checkpoint_was_cut_resumes_from_the_one_before(
    config, straight, assert_equal_weights, losses, interrupted, capsys
) -> None:
    name = "adapter_model.safetensors"
    expected, resumed = straight("lora").output_dir, config("resumed", method="lora", save_total_limit=2)
    interrupted(resumed, 7)
    last = Path(resumed.output_dir, "checkpoint-6", name)
    last.write_bytes(last.read_bytes()[:-50])
    capsys.readouterr()

    fine_tune(resumed)

    printed = capsys.readouterr()
    assert f"checkpoint-6: {name} has" in printed.out + printed.err
    assert "resuming from the previous checkpoint" in printed.out + printed.err
    assert_equal_weights(expected, resumed.output_dir)
    assert losses(expected) == losses(resumed.output_dir)


def test_a_run_resumes_exactly_with_recomputed_activations(config, straight, assert_equal_weights, interrupted) -> None:
    """An error of memory advises it. Nothing that determines the weights is changed, dropout included."""
    interrupted(config("resumed", method="lora"), 4)
    fine_tune(config("resumed", method="lora", gradient_checkpointing=True))

    assert_equal_weights(straight("lora").output_dir, config("resumed").output_dir)


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_is_loaded_by_us_and_by_plain_transformers_or_peft(straight, method: str) -> None:
    run = straight(method)

    ours = load(run.output_dir)
    if method == "full":
        plain = AutoModelForImageTextToText.from_pretrained(run.output_dir, dtype=torch.float32)
    else:
        base = load(run.model, scheme="mr2ag", seed=run.seed).model
        plain = PeftModel.from_pretrained(base, run.output_dir).merge_and_unload()

    assert ours.is_tuned
    assert ours.scheme is not None
    assert ours.scheme.name == "mr2ag"
    expected = plain.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in ours.model.state_dict().items())


@pytest.mark.parametrize(("family", "method"), [("llava", "full"), ("qwen2_vl", "lora"), ("llava", "qlora")])
def test_a_scheme_without_tokens_is_trained_and_loaded(
    config, plain_folder, tmp_path, family: Family, method: str
) -> None:
    """The papers' baselines: no row of a matrix is new."""
    run = config(family=family, method=method, scheme="plain", train_data=str(plain_folder), max_steps=2)
    fine_tune(run)

    loaded, base = load(run.output_dir), load(run.model).model.state_dict()
    assert loaded.scheme is not None
    assert loaded.scheme.name == "plain"
    moved = [name for name, weight in loaded.model.state_dict().items() if not torch.equal(weight, base[name])]
    assert moved
    assert method == "full" or all("_proj" in name for name in moved)
    if method != "full":
        merge_adapter(run.output_dir, tmp_path / "merged", plan_merge(run.output_dir))
        merged = load(str(tmp_path / "merged")).model.state_dict()
        assert all(torch.equal(weight, merged[name]) for name, weight in loaded.model.state_dict().items())


@pytest.mark.parametrize(
    ("family", "scheme", "method", "rate"),
    [
        ("llava", "mr2ag", "full", 1e-2),
        ("qwen2_vl", "mmkb_rag", "full", 1e-2),
        pytest.param("qwen3_5", "mr2ag", "lora", 3e-2, marks=pytest.mark.slow),
        pytest.param("gemma3", "mr2ag", "lora", 3e-2, marks=pytest.mark.slow),
    ],
)
def test_a_model_learns_its_examples(
    config, data_folder, prompted_folder, write_base, tmp_path, family, scheme: str, method: str, rate: float, losses
) -> None:
    """MMKB-RAG's three tasks together. Gemma-3 scales embeddings, and its image tokens see all of their image."""
    data = str({"mr2ag": data_folder, "mmkb_rag": prompted_folder}[scheme])
    same: dict[str, Any] = {"scheme": scheme, "train_data": data, "method": method, "learning_rate": rate}
    if family == "gemma3":
        write_base(family, tmp_path / "base")
    model = {"model": str(tmp_path / "base")} if family == "gemma3" else {"family": family}
    run = config(max_steps=16, save_steps=100, **same, **model)
    fine_tune(run)

    run_losses, share = losses(run.output_dir), 0.6 if (scheme, method) == ("mr2ag", "full") else 0.85
    assert sum(run_losses[-4:]) / 4 < share * run_losses[0]
    assert load(run.output_dir, scheme=scheme).is_tuned


def test_trees_and_separate_rows_train_the_same_weights(config, weights) -> None:
    trees, rows = (config(str(tree), max_steps=2, tree=tree) for tree in (True, False))
    fine_tune(trees)
    fine_tune(rows)

    torch.testing.assert_close(weights(rows.output_dir), weights(trees.output_dir), rtol=1e-3, atol=1e-4)


def test_new_adapters_on_an_adapter_are_refused(config, straight) -> None:
    """Its checkpoint would name an adapter as its base model, and could not be loaded."""
    first = straight("lora")
    with pytest.raises(UserError, match="is an adapter; merge it"):
        fine_tune(config("second", method="lora", max_steps=1, model=first.output_dir))
    full = config("full", max_steps=1, model=first.output_dir, train_towers=["language_model"])
    fine_tune(full)
    assert load(full.output_dir).is_tuned


def test_packed_rows_train_the_same_weights(config, weights, differentiable_flex, monkeypatch) -> None:
    same: dict[str, Any] = {"family": "qwen2_vl", "method": "lora", "lora_dropout": 0.0, "gradient_checkpointing": True}
    plain, packed = (config(name, max_steps=2, **same) for name in ("a", "b"))
    fine_tune(plain)
    monkeypatch.setattr("reflectune.train.runs.supervised.packs_trees", lambda *of: True)
    fine_tune(packed)

    torch.testing.assert_close(weights(packed.output_dir), weights(plain.output_dir), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("full", {}),
        ("lora", {}),
        pytest.param("qlora", {"size": "base", "gradient_checkpointing": True}, marks=pytest.mark.slow),
    ],
)
def test_in_half_precision_small_updates_still_reach_the_weights(config, method: str, changes, weights) -> None:
    """In bf16 an update of 1e-5 to a weight of 0.05 would be rounded away. Four bits need widths of 64."""
    half: dict[str, Any] = {"dtype": "bfloat16", "learning_rate": 1e-5, "warmup": 0.0}
    run = config(method=method, per_device_train_batch_size=1, max_steps=2, **half, **changes)
    fine_tune(run)
    after = weights(run.output_dir)

    assert {weight.dtype for weight in after.values()} == {torch.float32}
    if method == "full":
        before = load(run.model, scheme="mr2ag").model.state_dict()
        name = "model.language_model.layers.0.mlp.up_proj.weight"
        trained = load(run.output_dir).model.state_dict()[name]
        assert (trained != before[name]).float().mean() > 0.9
    else:
        lora_b = torch.cat([weight.flatten() for name, weight in after.items() if "lora_B" in name])
        assert (lora_b != 0).float().mean() > 0.9
        assert sum("token_adapter" in name for name in after) == 2  # both matrices' new rows
        assert load(run.output_dir).is_tuned


def test_a_frozen_vision_tower_stays_as_it_is_and_the_rest_moves(config, weights) -> None:
    run = config(train_towers=["projector", "language_model"], max_steps=2)
    fine_tune(run)
    before, after = weights(run.model), weights(run.output_dir)

    still = {name for name, weight in before.items() if torch.equal(weight, after[name])}

    assert still == {name for name in before if "vision" in name}


def test_a_finished_run_is_left_alone(straight, capsys, monkeypatch) -> None:
    """The model is loaded only if its files may have changed."""
    run, loaded = straight(), []
    written = Path(run.output_dir, "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(skeleton, "load_base", lambda *args: loaded.append(args) or load_base(*args))

    for times in (0, 1):
        fine_tune(run)

        assert "nothing to do" in capsys.readouterr().out
        assert Path(run.output_dir, "model.safetensors").stat().st_mtime_ns == written
        assert len(loaded) == times
        Path(run.model, "config.json").touch()


def test_the_first_process_hashes_the_data_for_all(straight, capsys, monkeypatch) -> None:
    run, sent = straight(), []

    def receive(items: list[Any]) -> None:
        items[:] = sent

    for processes in (Processes(0, 2, broadcast=sent.extend), Processes(1, 2, broadcast=receive)):
        monkeypatch.setattr(skeleton, "launch_processes", lambda *_, processes=processes: processes)
        fine_tune(run)
        assert "nothing to do" in capsys.readouterr().out
        monkeypatch.setattr(supervised, "file_fingerprint", None)


def test_a_run_that_was_cut_off_after_its_last_checkpoint_takes_no_step_more(config, weights, losses) -> None:
    run = config(max_steps=2, lr_scheduler="constant_with_warmup")  # within an epoch, at the full learning rate
    fine_tune(run)
    before, losses_before = weights(run.output_dir), losses(run.output_dir)
    Path(run.output_dir, RECORD).unlink()  # as if it had been killed while it wrote the final checkpoint

    fine_tune(run)

    assert losses(run.output_dir) == losses_before
    assert [folder.name for folder in checkpoint_folders(run.output_dir)] == ["checkpoint-2"]
    assert all(torch.equal(weight, before[name]) for name, weight in weights(run.output_dir).items())


def test_a_run_whose_first_checkpoint_was_cut_off_says_that_it_starts_again(
    config, losses, interrupted, capsys
) -> None:
    run = config(max_steps=3, save_steps=1)
    interrupted(run, 2)
    Path(run.output_dir, "checkpoint-1", RECORD).unlink()  # as if it had been killed while it wrote the checkpoint
    assert "no complete checkpoint" not in capsys.readouterr().out

    fine_tune(run)

    assert "has no complete checkpoint yet: training starts at step 0" in capsys.readouterr().out
    assert len(losses(run.output_dir)) == 3


def test_a_run_that_resumes_is_saved_and_logged_as_often_as_is_asked_for_now(config, losses, interrupted) -> None:
    interrupted(config(save_steps=2, logging_steps=1, max_steps=6), 3)
    run = config(save_steps=3, logging_steps=2, save_total_limit=9, max_steps=6)

    fine_tune(run)

    saved = [folder.name for folder in checkpoint_folders(run.output_dir)]
    assert saved == [f"checkpoint-{step}" for step in (2, 3, 6)]
    assert len(losses(run.output_dir)) == 2 + 2  # of steps 1 and 2, and then of 4 and 6


def test_a_run_with_other_settings_or_data_is_not_continued(
    config, data_folder, prompted_folder, base_model, interrupted
) -> None:
    run = config(save_steps=1)
    interrupted(run, 2)
    write_examples(data_folder / "other.parquet", read_examples(data_folder / "train.parquet", ReflectionExample)[1:])
    for changes, message in (
        ({"learning_rate": 0.1}, r"`learning_rate` is 0\.1, was 0\.005"),
        ({"image_fit": "pad"}, "other settings: `image_fit` is 'pad', was 'processor'"),
        ({"scheme": "mmkb_rag", "train_data": str(prompted_folder)}, "checkpoint-1 belongs .*`scheme` is 'mmkb_rag'"),
        ({"train_data": str(data_folder / "other.parquet")}, "`data_fingerprint` is"),
        ({"train_data": {str(data_folder): 0.5}}, "`data_fingerprint` is"),
        ({"model": str(base_model(seed=1))}, "other settings: `model_fingerprint` is"),
    ):
        with pytest.raises(UserError, match=message):
            fine_tune(config(**changes))
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    tokenizer.add_tokens(["tower"])
    tokenizer.save_pretrained(run.model)

    with pytest.raises(UserError, match="other settings: `model_fingerprint` is"):
        fine_tune(run)


def test_a_full_disk_is_noticed_before_anything_is_written(config, monkeypatch, interrupted) -> None:
    run = config(save_steps=1)
    interrupted(run, 2)
    usage = shutil.disk_usage(run.output_dir)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type(usage)(usage.total, usage.used, 1000))

    with pytest.raises(UserError, match="a checkpoint needs about"):
        fine_tune(run)

    assert [folder.name for folder in checkpoint_folders(run.output_dir)] == ["checkpoint-1"]


def test_a_loss_that_is_not_finite_names_step_and_examples(config) -> None:
    with pytest.raises(UserError, match=r"the loss became (nan|inf) at step \d+, on the examples [kv]\d+"):
        fine_tune(config(learning_rate=1e15, max_grad_norm=0.0, warmup=0.0))


def test_a_dry_run_says_what_would_happen_and_writes_nothing(config, capsys) -> None:
    run = config(dry_run=True, max_steps=None, epochs=2, method="lora")
    fine_tune(run)
    said = capsys.readouterr().out

    assert "24 questions (18 with retrieval, 6 without retrieval), 43 branches" in said
    assert "tokens of an image: 16 at least, 16 on average, 16 at most" in said
    assert "images: `image_fit: crop`" in said
    assert "batch: 4 questions a step, 8 rows on average" in said  # 43 branches and 6 questions without, of 24
    assert "in 12 steps a new token's row can move by 0.03 " in said  # half of 12 steps at 5e-3
    assert "vision tower: 0 of" in said
    assert re.search(r"moments +[\d.]+ MiB  AdamW's two, in float32", said)
    assert re.search(r"sum +[\d.]+ MiB  no accelerator here", said)
    assert re.search(r"time: about (under )?\d+ s, from one batch forward and backward here in [\d.]+ s", said)
    assert "steps: 12 (2 epochs)" in said
    assert "⟦[Relevant]" in said
    assert "⟦[No Retrieval]" in said
    assert "will refuse the trained model" not in said
    assert not Path(run.output_dir).exists()


def test_a_model_that_scales_its_logits_is_warned_of_before_training(config, monkeypatch, capsys) -> None:
    def load_scaled(*arguments: Any) -> Any:
        loaded = load_base(*arguments)
        forward = loaded.model.forward

        @functools.wraps(forward)
        def scaled(**inputs: Any) -> Any:
            outputs = forward(**inputs)
            outputs.logits = outputs.logits / 8
            return outputs

        monkeypatch.setattr(loaded.model, "forward", scaled)
        return loaded

    monkeypatch.setattr(skeleton, "load_base", load_scaled)
    fine_tune(config(dry_run=True))
    refused = (
        "warning: `evaluate` and `answer` will refuse the trained model: LlavaForConditionalGeneration changes the"
    )
    assert refused in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_weights(config, straight, finish, killed, assert_equal_weights) -> None:
    """`kill -9` as soon as a checkpoint's folder appears (it is cut off), and again a moment later."""
    cut_off = config("killed")
    killed(cut_off, "checkpoint-3")
    killed(cut_off, "checkpoint-6", 0.11)

    finish(cut_off)

    assert_equal_weights(straight().output_dir, cut_off.output_dir)


@pytest.mark.slow
def test_the_script_starts_from_any_folder_and_a_mistake_is_one_line(config, tmp_path) -> None:
    run = config()
    typed = ["--train_data", str(run.train_data), "--output_dir", run.output_dir, "--model", "no/such/x"]
    command = [sys.executable, str(ROOT / "train/sft.py"), *typed]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("  `model` no/such/x is not a folder")
    assert "Traceback" not in done.stderr
