"""Memory of a process before its first step: its own shard, and nothing of mapped files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.models.names import shipped_folder
from reflectune.models.weights.pretrained import load_processor

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("start_up_worker.py")
ROWS, WIDTH = 4000, 768
BESIDE = 48 * 2**20
"""Bytes of one whole layer at a time, and of modules that are imported on the way."""


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, int]:
    """A LLaVA that is stored in bfloat16, and its number of weights: 78 M."""
    processor: Any = load_processor(str(shipped_folder("miniature/llava")), "llava")
    side = {"height": 336, "width": 336}
    processor.image_processor = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size=side)
    processor.patch_size = 14
    tower = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6}
    vision = CLIPVisionConfig(**tower, image_size=336, patch_size=14)
    shape = {"hidden_size": WIDTH, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12}
    text = LlamaConfig(vocab_size=ROWS, **shape, max_position_embeddings=16_384)
    image_token = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    parts = {"vision_config": vision, "text_config": text}
    config = LlavaConfig(**parts, image_token_index=image_token, tie_word_embeddings=False)
    model: Any = LlavaForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    processor.save_pretrained(tmp_path / "base")
    return tmp_path / "base", model.num_parameters()


@pytest.fixture
def notes(tmp_path, data_folder, base, start_launch) -> Callable[..., list[dict[str, Any]]]:
    """Starts a training, on two processes if it is sharded, and returns their notes."""

    def start(name: str, *more: str) -> list[dict[str, Any]]:
        content = yaml.safe_load((ROOT / f"configs/accelerate/{name}.yaml").read_text())
        content["num_processes"] = min(content["num_processes"], 2)
        (tmp_path / "launch.yaml").write_text(yaml.safe_dump(content))
        options = {"model": base[0], "train_data": data_folder, "output_dir": tmp_path / "out", "max_steps": 1}
        argv = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        program = start_launch(WORKER, [str(tmp_path), *argv, *more], tmp_path / "launch.yaml")
        assert program.wait() == 0, program.stderr[-9000:]
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(content["num_processes"])]

    return start


def test_under_fsdp_a_process_never_holds_more_than_its_part(notes, base) -> None:
    """Half of the weights in float32, and the vocabulary's matrices, which new tokens get rows in."""
    whole, vocabulary = 4 * base[1], 4 * 2 * ROWS * WIDTH
    for note in notes("fsdp2"):
        assert note["dtypes"] == ["torch.float32"]
        assert 4 * note["held"] < 0.51 * whole
        assert note["peak"] - note["before"] < 0.5 * whole + vocabulary + BESIDE < 0.9 * whole


def test_a_frozen_base_in_the_dtype_of_its_file_is_mapped(notes, base) -> None:
    """By one process, since DDP writes over all weights as it begins, which only a CPU has in this memory."""
    (note,) = notes("cpu", "--method", "lora", "--dtype", "bfloat16", "--device", "cpu")
    assert "torch.bfloat16" in note["dtypes"]
    assert note["peak"] - note["before"] < BESIDE < 0.6 * 2 * base[1]
