"""Toy parts with the published files' names: a Vicuna folder, a CLIP folder and mm_projector.bin."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
)

from reflectune.core.config import find_problems, parse_config
from reflectune.core.errors import UserError
from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.models.loading import load
from reflectune.models.weights.projector import PROJECTOR
from reflectune.train.merge import merge
from reflectune.train.settings.merge import MergeConfig
from reflectune.train.weights.merging import assemble

SEEN, WIDTH, KNOWN = 32, 48, 300


@pytest.fixture
def parts(tmp_path: Path) -> Callable[..., MergeConfig]:
    """Writes the three parts and returns the config that joins them; the language model as `.bin` shards or not."""

    def build(*, as_bin: bool = False, **settings: Any) -> MergeConfig:
        torch.manual_seed(0)
        words = train_tokenizer(["USER: When was it founded? ASSISTANT: in 1872", "a gold tower"], KNOWN, "clip")
        words.pad_token = None
        shape = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        vicuna = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape, max_position_embeddings=2048))
        vicuna.save_pretrained(tmp_path / "vicuna")
        words.save_pretrained(tmp_path / "vicuna")
        if as_bin:  # as Vicuna is published
            torch.save(vicuna.state_dict(), tmp_path / "vicuna" / "pytorch_model.bin")
            (tmp_path / "vicuna" / "model.safetensors").unlink()
        tokenizer = train_tokenizer(["a gold tower"], 280, "clip")
        build_clip(tokenizer, size="test").save_pretrained(tmp_path / "clip")
        build_clip_processor(tokenizer).save_pretrained(tmp_path / "clip")
        build_clip_processor(tokenizer).image_processor.save_pretrained(tmp_path / "clip")
        first, second = nn.Linear(SEEN, WIDTH), nn.Linear(WIDTH, WIDTH)
        tensors = (first.weight, first.bias, second.weight, second.bias)
        held = {name: tensor.detach().half() for name, tensor in zip(PROJECTOR, tensors, strict=True)}
        torch.save(held, tmp_path / "mm_projector.bin")
        names = {"language": "vicuna", "vision": "clip", "projector": "mm_projector.bin", "output": "stage1"}
        paths = {name: str(tmp_path / file) for name, file in names.items()}
        return MergeConfig(**{**paths, "dtype": "float32", **settings})

    return build


def merged(config: MergeConfig) -> str:
    return assemble(config, config.output, config.dtype)


def draw_image(width: int = 64, height: int = 64) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize("as_bin", [False, True])
def test_what_transformers_loads_computes_what_the_three_parts_do(parts, as_bin: bool) -> None:
    """Language(text and projector(CLIP's last but one layer without its class token)), composed by hand."""
    config = parts(as_bin=as_bin)
    merged(config)
    model = LlavaForConditionalGeneration.from_pretrained(config.output).eval()
    processor = AutoProcessor.from_pretrained(config.output)
    vicuna = LlamaForCausalLM.from_pretrained(config.language).eval()
    clip = CLIPVisionModel.from_pretrained(config.vision).eval()
    weights = {name: value.float() for name, value in torch.load(config.projector, weights_only=True).items()}

    made = processor(text="USER: <image>\nWhen? ASSISTANT:", images=draw_image(), return_tensors="pt")
    with torch.no_grad():
        logits = model(**made).logits
        seen = clip(made["pixel_values"], output_hidden_states=True).hidden_states[-2][:, 1:]
        hidden = nn.functional.gelu(nn.functional.linear(seen, *list(weights.values())[:2]))
        features = nn.functional.linear(hidden, *list(weights.values())[2:])
        is_image = made["input_ids"] == model.config.image_token_id
        embedded = vicuna.get_input_embeddings()(made["input_ids"].masked_fill(is_image, 0))
        embedded[is_image] = features[0]
        expected = vicuna(inputs_embeds=embedded).logits

    assert int(is_image.sum()) == 16
    torch.testing.assert_close(logits[..., : expected.shape[-1]], expected, rtol=1e-4, atol=1e-5)


def test_the_table_has_rows_for_image_and_padding_in_a_multiple_of_64(parts) -> None:
    config = parts()
    printed = merged(config)
    model = LlavaForConditionalGeneration.from_pretrained(config.output)
    vicuna = LlamaForCausalLM.from_pretrained(config.language)
    tokenizer = AutoProcessor.from_pretrained(config.output).tokenizer
    known = vicuna.config.vocab_size

    for matrix, language_rows in (
        (model.get_input_embeddings().weight, vicuna.get_input_embeddings().weight),
        (model.get_output_embeddings().weight, vicuna.get_output_embeddings().weight),
    ):
        assert matrix.shape[0] % 64 == 0
        assert torch.equal(matrix[:known], language_rows)
        torch.testing.assert_close(matrix[known:], language_rows.mean(0).expand(matrix.shape[0] - known, -1))
    assert tokenizer.convert_tokens_to_ids("<image>") == model.config.image_token_id >= known
    assert tokenizer.pad_token == "<pad>"
    assert "written to" in printed


@pytest.mark.parametrize(("image_fit", "blue"), [("pad", True), ("crop", False)])
def test_a_wide_image_is_padded_or_its_middle_cut_out(parts, image_fit: str, blue: bool) -> None:
    """A blue stripe at the left edge of a red image three times as wide as high."""
    config = parts(image_fit=image_fit)
    merged(config)
    image = Image.new("RGB", (192, 64), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 40, 64))

    pixels = AutoProcessor.from_pretrained(config.output).image_processor(image, return_tensors="pt")["pixel_values"][0]

    assert pixels.shape == (3, 64, 64)
    assert bool((pixels[2] > pixels[0] + 1).any()) is blue


TEXTS_ALONE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)


def test_without_a_projector_a_small_chat_model_of_tied_tables_becomes_a_llava_of_fewer_tokens(parts) -> None:
    """Pocket's language model has tied tables, a chat template for texts alone, and pads with the end of a turn."""
    config = parts(projector="", image_size=32)
    vicuna = LlamaForCausalLM.from_pretrained(config.language)
    vicuna.config.tie_word_embeddings = True
    vicuna.config.pad_token_id = 2
    vicuna.tie_weights()
    vicuna.save_pretrained(config.language)
    tokenizer = AutoTokenizer.from_pretrained(config.language)
    tokenizer.pad_token, tokenizer.chat_template = tokenizer.eos_token, TEXTS_ALONE
    tokenizer.save_pretrained(config.language)

    printed = merged(config)

    assert printed.endswith("4 tokens an image; its projector is untrained")
    loaded = load(config.output, scheme="mr2ag")
    prompt = loaded.renderer.prefix("When?", draw_image(96, 32))
    assert prompt.ids.count(loaded.renderer.image_token_id) == 4
    assert "user: <image>" in loaded.renderer.decode(prompt.ids)
    assert prompt.vision["pixel_values"].shape == (1, 3, 32, 32)
    model = loaded.model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.get_input_embeddings().padding_idx == loaded.processor.tokenizer.pad_token_id
    assert loaded.processor.tokenizer.pad_token_id != loaded.processor.tokenizer.eos_token_id
    assert config.language not in (Path(config.output) / "config.json").read_text()
    with torch.no_grad():
        tokens = model.get_image_features(pixel_values=prompt.vision["pixel_values"]).pooler_output[0]
    known = vicuna.get_input_embeddings().weight
    assert float(tokens.square().mean().sqrt()) == pytest.approx(float(known.detach().square().mean().sqrt()), rel=0.5)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_a_file_with_code_in_it_is_not_run(parts, tmp_path, monkeypatch) -> None:
    config = parts()
    monkeypatch.chdir(tmp_path)
    torch.save({name: Bomb() for name in PROJECTOR}, config.projector)

    with pytest.raises(UserError, match="nothing else is unpickled"):
        merged(config)

    assert not (tmp_path / "exploded").exists()
    assert not Path(config.output).exists()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (b"not a pickle", "is not a file of weights only"),
        (b"", "is not a file of weights only"),
        (pickle.dumps([1, 2], protocol=2), "is not a file of weights only|should hold"),
        ({"model.mm_projector.weight": torch.ones(2, 2)}, r"should hold model.mm_projector.0.weight.*found model.mm_p"),
        ([1, 2], "found list"),
        (dict.fromkeys(PROJECTOR, torch.tensor(float("nan"))), "finite numbers"),
        (
            {name: torch.ones(7, 9) if "weight" in name else torch.ones(7) for name in PROJECTOR},
            r"maps \(7, 9\) in linear_1.weight, .* need \(48, 32\)",
        ),
    ],
)
def test_another_file_is_refused_before_a_model_is_loaded(parts, held: Any, message: str) -> None:
    config = parts()
    Path(config.projector).write_bytes(held) if isinstance(held, bytes) else torch.save(held, config.projector)

    with pytest.raises(UserError, match=message):
        merged(config)

    assert not Path(config.output).exists()


def test_two_parts_of_the_wrong_kind_are_refused(parts) -> None:
    config = parts()

    with pytest.raises(UserError, match="`language` is a clip"):
        merged(MergeConfig(**{**config.model_dump(), "language": config.vision}))


def test_a_missing_part_is_named(parts) -> None:
    config = parts()
    (Path(config.language) / "model.safetensors").unlink()

    with pytest.raises(UserError, match="`language`: cannot load"):
        merged(config)


def test_an_odd_tokenizer_is_named(parts) -> None:
    config = parts()
    path = Path(config.language) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": [[]]}))

    with pytest.raises(UserError, match="cannot load"):
        merged(config)


def test_numbers_of_an_image_processor_that_compute_nothing_are_named(parts) -> None:
    config = parts()
    (Path(config.vision) / "processor_config.json").unlink()  # that of a whole CLIP, which would be read first
    path = Path(config.vision) / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_std": [0.5, "x", 0.5]}))

    with pytest.raises(UserError, match="cannot use the image processor of"):
        merged(config)


def test_every_problem_of_the_config_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    argv = ["--language", "./nowhere", "--projector", "gone.bin", "--output", str(tmp_path / "full")]

    with pytest.raises(UserError) as caught:
        parse_config(MergeConfig, argv=argv)

    for part in ("`language` ./nowhere", "gone.bin is not a file", "exists already"):
        assert part in str(caught.value)
    assert "both `language` and `vision`" in " ".join(find_problems(MergeConfig, {"language": "miniature/llava"}))
    both = {"language": "pocket/language", "checkpoint": "a"}
    assert "one or the other" in " ".join(find_problems(MergeConfig, both))


def test_the_same_command_finds_its_work_done_and_another_is_refused(parts, capsys) -> None:
    config = parts()
    names = ("language", "vision", "projector", "output", "dtype")
    merge.main([text for name in names for text in (f"--{name}", getattr(config, name))])
    assert "written to" in capsys.readouterr().out
    weights = Path(config.output, "model.safetensors")
    before = weights.stat().st_mtime_ns

    assert merged(config).startswith("nothing to do")
    assert not config.problems()
    assert weights.stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds a checkpoint of other parts"):
        merged(config.model_copy(update={"dtype": "bfloat16"}))
    Path(config.projector).write_bytes(b"another")
    with pytest.raises(UserError, match="holds a checkpoint of other parts"):
        merged(config)
