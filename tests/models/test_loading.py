import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoProcessor
from transformers.models.auto import image_processing_auto
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.models.attention.shared import attention_of
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.records import INFO_FILE, SAVED, SAVED_PROCESSOR, read_info
from reflectune.models.schemes.base import SCHEME_FILE
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.weights.pretrained import ImageOnlyQwen2VLProcessor, load_processor

FAMILIES = ["llava", "qwen2_vl", "qwen3_5"]


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, make, tmp_path_factory):
    """A folder with a base model, as the hub would hold it."""
    folder = tmp_path_factory.mktemp("base") / request.param
    make.saved(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def tuned(base):
    """A full checkpoint whose weights have moved."""
    loaded = load(str(base), scheme="mr2ag", seed=3)
    disturb(loaded.model)
    folder = base.parent / "tuned"
    save_checkpoint(folder, loaded.model, loaded.processor, MR2AG, {"base_model": str(base), "seed": 3})
    return folder, loaded


def disturb(model: torch.nn.Module, only: str = "") -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name and parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def test_a_base_model_loads_plainly(base):
    loaded = load(str(base))
    assert loaded.scheme is None
    assert not loaded.is_tuned
    assert attention_of(loaded.model.config) == "sdpa"
    assert not loaded.model.training
    assert "[Relevant]" not in loaded.processor.tokenizer.get_vocab()


def test_a_base_model_gets_tokens_by_seed(base):
    first, again, other = (load(str(base), scheme="mr2ag", seed=seed) for seed in (0, 0, 1))
    rows = list(first.renderer.token_ids.values())
    weights = [loaded.model.get_output_embeddings().weight[rows] for loaded in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert not first.is_tuned


def test_a_full_checkpoint_loads_as_it_was(tuned, make):
    folder, before = tuned
    loaded = load(str(folder))
    assert loaded.scheme == MR2AG
    assert loaded.is_tuned
    assert loaded.renderer.token_ids == before.renderer.token_ids
    assert torch.equal(make.logits(loaded), make.logits(before))
    assert load(str(folder), scheme="mr2ag").fingerprint == loaded.fingerprint != before.fingerprint
    assert read_info(folder)["seed"] == 3


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_loads_merged(family, tie, make, tmp_path):
    base = make.saved(tmp_path / "base", family, tie_word_embeddings=tie)
    loaded = load(base, scheme="mr2ag", seed=5)
    ids = list(loaded.renderer.token_ids.values())
    rows = [(name, loaded.model.get_submodule(name)) for name in ("model.language_model.embed_tokens", "lm_head")]
    frozen = [module.weight.detach().clone() for _, module in rows]
    adapted = make.adapted(loaded).eval()
    disturb(adapted, only="token")
    expected = make.logits(loaded, adapted)
    save_checkpoint(tmp_path / "adapter", adapted, loaded.processor, MR2AG, {"base_model": base, "seed": 5})

    again = load(str(tmp_path / "adapter"), scheme="mr2ag")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    torch.testing.assert_close(make.logits(again), expected, rtol=1e-4, atol=1e-4)
    for (name, _), old in zip(rows, frozen, strict=True):
        new = again.model.get_submodule(name).weight
        others = [row for row in range(len(old)) if row not in ids]
        assert torch.equal(new[others], old[others])
        assert (new[ids] != old[ids]).any(1).all()
    assert (again.model.lm_head.weight is again.model.get_input_embeddings().weight) == tie


def save_adapter(folder, base, scheme, **info):
    loaded = load(str(base), scheme=scheme.name)
    adapted = get_peft_model(loaded.model, LoraConfig(target_modules=r".*language_model.*q_proj"))
    save_checkpoint(folder, adapted, loaded.processor, scheme, info)


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_an_adapter_without_its_base_is_not_saved(base, tmp_path):
    with pytest.raises(UserError, match="needs base_model, seed"):
        save_adapter(tmp_path, base, MR2AG)


def copy_without(folder, tmp_path, *names):
    shutil.copytree(folder, tmp_path / "copy")
    for name in names:
        (tmp_path / "copy" / name).unlink()
    return str(tmp_path / "copy")


def flip_lowest_bit(weights: Path) -> None:  # the number stays finite
    content = bytearray(weights.read_bytes())
    content[-4] ^= 1
    weights.write_bytes(content)


def replace_json(path: Path, **changes: object) -> None:
    """Set the values of a JSON file, or of objects in it."""
    values = json.loads(path.read_text())
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("model.safetensors", None, "weights or the config"),
        ("config.json", {"text_config": {"rms_norm_eps": 1e-3}}, "weights or the config"),
        ("processor_config.json", {"image_processor": {"do_normalize": None}}, "tokenizer or the image processor"),
        ("tokenizer.json", {"decoder": None}, "tokenizer or the image processor"),
    ],
    ids=["weights", "config", "images", "tokenizer"],
)
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_checkpoint_that_changed_since_it_was_saved_is_refused(tuned, tmp_path, name, change, what):
    copy = copy_without(tuned[0], tmp_path)
    replace_json(Path(copy, name), **change) if change else flip_lowest_bit(Path(copy, name))
    with pytest.raises(UserError, match=f"the {what} in .* changed after it was saved"):
        load(copy)
    info = {key: value for key, value in read_info(copy).items() if key not in (SAVED, SAVED_PROCESSOR)}
    Path(copy, INFO_FILE).write_text(json.dumps(info))  # as one who meant it does, and as it was in earlier versions
    changed = load(copy)
    assert name == "tokenizer.json" or changed.fingerprint != tuned[1].fingerprint


@pytest.mark.parametrize(
    "change", [{"base_model": 3}, {"seed": None}, {"seed": "x"}, {"quantization": 3}, "base_model"]
)
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_damaged_record_of_an_adapter_is_one_error(base, tmp_path, change):
    save_adapter(tmp_path, base, MR2AG, base_model=str(base), seed=0)
    info = read_info(tmp_path)
    info = info | change if isinstance(change, dict) else {key: info[key] for key in info if key != change}
    (tmp_path / INFO_FILE).write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"reflectune\.json"):
        load(str(tmp_path))


@pytest.mark.parametrize("record", ["3", '"adapter"', "[]", "null"])
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_record_that_is_no_object_is_one_error(tuned, tmp_path, record):
    copy = copy_without(tuned[0], tmp_path)
    Path(copy, INFO_FILE).write_text(record)
    with pytest.raises(UserError, match=r"reflectune\.json"):
        load(copy)


@pytest.mark.parametrize(
    ("scheme", "lost", "says"),
    [
        (None, [SCHEME_FILE], r"without its scheme\.json"),
        ("mr2ag", [SCHEME_FILE], r"without its scheme\.json"),
        ("mr2ag", [SCHEME_FILE, INFO_FILE], "already has reflection tokens"),
    ],
)
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_checkpoint_without_its_scheme_is_refused(tuned, tmp_path, scheme, lost, says):
    with pytest.raises(UserError, match=says):
        load(copy_without(tuned[0], tmp_path, *lost), scheme=scheme)


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_checkpoint_of_another_scheme_is_refused(tuned):
    with pytest.raises(UserError, match="trained with scheme mr2ag, and mmkb_rag is needed"):
        load(str(tuned[0]), scheme="mmkb_rag")


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_a_checkpoint_without_tokens_is_a_base_model_to_a_scheme_with_them(base, tmp_path):
    before = load(str(base), scheme="plain")
    disturb(before.model)
    save_checkpoint(tmp_path, before.model, before.processor, PLAIN, {"base_model": str(base), "seed": 0})
    loaded = load(str(tmp_path), scheme="mr2ag")
    assert loaded.scheme is not None
    assert (loaded.scheme.name, loaded.is_tuned) == ("mr2ag", False)
    known = before.model.get_input_embeddings().weight
    assert torch.equal(loaded.model.get_input_embeddings().weight[: len(known) - 8], known[:-8])


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_an_adapter_without_tokens_is_to_be_merged_first(base, tmp_path):
    save_adapter(tmp_path, base, PLAIN, base_model=str(base), seed=0)
    with pytest.raises(UserError, match=r"is an adapter of scheme plain, and mr2ag is needed: merge it"):
        load(str(tmp_path), scheme="mr2ag")


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_another_schemes_file_beside_the_weights_is_refused(tuned, tmp_path):
    folder = copy_without(tuned[0], tmp_path)
    MMKB_RAG.save(folder)
    with pytest.raises(UserError, match="doesn't read \\[Ret\\] as one token"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("miniature/none", "no model miniature/none; this installation has"),
        ("./nowhere/at/all", "the folder does not exist"),
        ("/nowhere", "the folder does not exist"),
    ],
)
def test_a_model_that_is_not_there_is_refused(name, says):
    with pytest.raises(UserError, match=says):
        load(name)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no model"):
        load(str(tmp_path))


@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_lost_weights_are_refused(base, tmp_path):
    with pytest.raises(UserError, match="cannot load the model"):
        load(copy_without(base, tmp_path, "model.safetensors"))


@pytest.mark.parametrize("value", ["<script>", [[]], 1e308, -1])
@pytest.mark.parametrize("key", ["vision_feature_layer", "text_config", "image_token_index", "model_type"])
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_an_odd_config_is_one_error_or_a_model_all_the_same(base, tmp_path, key, value):
    """transformers checks some values, and computes with the others: anything may be raised, but nothing else."""
    folder = Path(copy_without(base, tmp_path))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with contextlib.suppress(UserError):
        load(str(folder))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"dtype": "int3"}, "unknown dtype `int3`; choose one of float32"),
        ({"device": "toaster"}, "`toaster` cannot be used"),
        ({"scheme": "mr3ag"}, "unknown scheme"),
    ],
)
@pytest.mark.parametrize("base", ["llava"], indirect=True)
def test_an_unknown_setting_is_refused(base, option, says):
    with pytest.raises(UserError, match=says):
        load(str(base), **option)


def test_dtype_decides_the_weights(base):
    loaded = load(str(base), dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.fingerprint != load(str(base)).fingerprint


def test_an_old_llava_processor_learns_its_image_tokens(make, tmp_path):
    make.saved(tmp_path, "llava")
    path = tmp_path / "processor_config.json"
    newer = ("patch_size", "num_additional_image_tokens", "vision_feature_select_strategy")
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in newer}))
    rendered = load(str(tmp_path)).renderer.prefix("Why?", make.image())
    assert rendered.ids.count(make.processor("llava").image_token_id) == 16


def test_qwens_hub_processor_loads_without_torchvision(make, tmp_path):
    make.processor("qwen2_vl").tokenizer.save_pretrained(tmp_path)
    hub = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    kind = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**hub, **kind}))
    processor = load_processor(tmp_path, "qwen2_vl")
    made = processor(text=["<|image_pad|>"], images=[make.image()], return_tensors="pt")
    assert made["input_ids"].shape[1] == made["image_grid_thw"].prod() // 4


def test_a_processor_saved_without_torchvision_loads_where_it_is_installed(make, tmp_path, monkeypatch):
    make.processor("qwen2_vl").save_pretrained(tmp_path)
    monkeypatch.setattr("reflectune.models.weights.pretrained.find_spec", lambda name: object())

    assert type(load_processor(tmp_path, "qwen2_vl")) is ImageOnlyQwen2VLProcessor


def test_images_are_resized_by_pillow_where_torchvision_is_installed(make, tmp_path, monkeypatch):
    class CLIPImageProcessor(CLIPImageProcessorPil):
        """Stands for torchvision's, which has this name."""

    backends = {"torchvision": CLIPImageProcessor, "pil": CLIPImageProcessorPil}
    monkeypatch.setattr(image_processing_auto, "is_torchvision_available", lambda: True)
    monkeypatch.setattr(image_processing_auto, "IMAGE_PROCESSOR_MAPPING_NAMES", {"clip": backends})
    make.processor("llava").save_pretrained(tmp_path)

    assert type(AutoProcessor.from_pretrained(tmp_path).image_processor) is CLIPImageProcessor
    assert type(load_processor(tmp_path, "llava").image_processor) is CLIPImageProcessorPil
