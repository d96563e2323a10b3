"""Modules, prompts, similarity and length of a sentence-transformers repository are applied, or refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import MPNetConfig, MPNetModel, RobertaConfig, RobertaForSequenceClassification, XLMRobertaConfig
from transformers import XLMRobertaModel as XlmRoberta

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.examples.miniature import models as miniature
from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.rerankers.loading import load_reranker

MINIATURE = Path(next(iter(miniature.__path__))) / "text"
ST = "sentence_transformers.models."
TEXTS = ["how tall is the tower", "An owl."]
DENSE = {"in_features": 0, "out_features": 8, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


@pytest.fixture
def repository(tmp_path: Path):
    """Make a repository with modules after pooling, and further files."""

    def make(*modules: tuple[str, str], **files: object) -> str:
        folder = tmp_path / "model"
        shutil.copytree(MINIATURE, folder)
        every = [("Transformer", ""), ("Pooling", "1_Pooling"), *modules]
        listed = [{"type": kind if "." in kind else ST + kind, "path": path} for kind, path in every]
        (folder / "modules.json").write_text(json.dumps(listed))
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        for kind, path in modules:
            if kind == "Dense":
                (folder / path).mkdir()
                (folder / path / "config.json").write_text(json.dumps(files.get("dense", DENSE)))
                width = json.loads((folder / "config.json").read_text())["hidden_size"] if path == "2_Dense" else 8
                torch.manual_seed(len(path))
                weights = {"linear.weight": torch.randn(8, width), "linear.bias": torch.randn(8)}
                save_file(weights, folder / path / "model.safetensors")
        return str(folder)

    return make


def encoder_of(folder: str, **keys) -> TextEncoder:
    return TextEncoder(find_checkpoint(folder), text_settings(folder, **keys), torch.device("cpu"), "")


def test_linear_layers_are_applied_in_their_order(repository) -> None:
    folder = repository(("Dense", "2_Dense"), ("Dense", "3__Dense"), ("Normalize", "4_Normalize"))
    encoder, plain = encoder_of(folder, similarity="dot"), encoder_of("miniature/text", similarity="dot")
    expected = torch.from_numpy(plain.encode_passages(TEXTS))
    for path in ("2_Dense", "3__Dense"):
        torch.manual_seed(len(path))
        expected = torch.tanh(expected @ torch.randn(8, expected.shape[1]).T + torch.randn(8))
    expected = expected / expected.norm(dim=-1, keepdim=True)
    assert (encoder.dimensions, encoder.encode_passages([]).shape) == (8, (0, 8))
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)
    before = encoder.fingerprint
    torch.save({"linear.weight": torch.ones(8, 8)}, Path(folder) / "3__Dense/pytorch_model.bin")
    (Path(folder) / "3__Dense/model.safetensors").unlink()
    assert encoder_of(folder, similarity="dot").fingerprint != before
    save_file({"linear.weight": torch.full((8, 8), torch.nan)}, Path(folder) / "3__Dense/model.safetensors")
    with pytest.raises(UserError, match=r"3__Dense of .* not finite"):
        encoder_of(folder)
    save_file({"linear.weight": torch.ones(8, 9)}, Path(folder) / "3__Dense/model.safetensors")
    with pytest.raises(UserError, match=r"3__Dense of .* can't be loaded: .*size mismatch"):
        encoder_of(folder)


def test_prompts_similarity_and_length_are_applied_unless_set(repository) -> None:
    folder = repository(
        config_sentence_transformers={"prompts": {"query": "q: ", "passage": "p: "}, "similarity_fn_name": "dot"},
        sentence_bert_config={"max_seq_length": 7, "do_lower_case": True},
    )
    encoder, plain = encoder_of(folder), encoder_of("miniature/text", similarity="dot", max_length=7)
    settings = encoder.settings
    assert (settings.query_prefix, settings.passage_prefix, settings.similarity) == ("q: ", "p: ", "dot")
    assert (settings.pooling, settings.max_length, encoder.longest) == ("mean", 7, 7)
    lower = [text.lower() for text in TEXTS]
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), plain.encode_queries([f"q: {text}" for text in lower]))
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), plain.encode_passages([f"p: {text}" for text in lower]))
    own = encoder_of(folder, query_prefix="", passage_prefix="x", similarity="cosine", max_length=9).settings
    assert (own.query_prefix, own.passage_prefix, own.similarity, own.max_length) == ("", "x", "cosine", 9)


def test_a_default_prompt_stands_before_every_text_without_one_of_its_own(repository) -> None:
    prompts = {"prompts": {"query": "q: ", "all": "a: "}, "default_prompt_name": "all"}
    settings = encoder_of(repository(config_sentence_transformers=prompts)).settings
    assert (settings.query_prefix, settings.passage_prefix) == ("q: ", "a: ")


@pytest.mark.parametrize(
    ("modules", "files", "named"),
    [
        ([("LayerNorm", "2_LayerNorm")], {}, r"LayerNorm` \(`2_LayerNorm`"),
        ([("sentence_transformers.sparse_encoder.models.SpladePooling", "2")], {}, "SpladePooling"),
        ([("pylate.models.Dense.Dense", "2_Dense")], {}, r"pylate\.models\.Dense\.Dense"),
        ([("Normalize", "2"), ("Dense", "2_Dense")], {}, "Dense` .*in this order"),
        ([("Dense", "2_Dense")], {"dense": {**DENSE, "activation_function": "torch.nn.SiLU"}}, "activation SiLU"),
        ([("Dense", "2_Dense")], {"dense": {**DENSE, "module_input_name": "token_embeddings"}}, "token_embeddings"),
        ([], {"config_sentence_transformers": {"similarity_fn_name": "manhattan"}}, "by `manhattan`"),
        ([], {"config_sentence_transformers": {"prompts": {"s2p_query": "x: "}}}, "prompts s2p_query, and none"),
        ([], {"sentence_bert_config": {"max_seq_length": "many"}}, "`max_seq_length` is 'many'"),
        (
            [],
            {
                "config_sentence_transformers": {"prompts": {"query": "x: "}},
                "1_Pooling/config": {"pooling_mode_mean_tokens": True, "include_prompt": False},
            },
            "`include_prompt: false`",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_declaration_that_is_not_applied_is_refused_by_name(repository, modules, files, named) -> None:
    folder = repository(*modules, **files)
    with pytest.raises(UserError, match=named):
        encoder_of(folder)


def test_a_linear_layer_of_another_kind_of_model_is_refused(repository) -> None:
    folder = repository(("Dense", "2_Dense"))
    with pytest.raises(UserError, match="text encoders only"):
        load_encoder(folder)
    with pytest.raises(UserError, match="text encoders only"):
        load_reranker("cross_encoder", folder)


@pytest.mark.parametrize("padding", [0, 1, 5])
@pytest.mark.parametrize(("kind", "config"), [(XlmRoberta, XLMRobertaConfig), (MPNetModel, MPNetConfig)])
def test_positions_that_begin_behind_the_padding_are_counted(tmp_path: Path, kind, config, padding: int) -> None:
    tokenizer = train_tokenizer(TEXTS * 4, 300, "text")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = config(vocab_size=len(tokenizer), pad_token_id=padding, max_position_embeddings=40, **sizes)
    model = kind(made, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    tokenizer.model_max_length = int(1e30)
    tokenizer.save_pretrained(tmp_path)
    encoder = encoder_of(str(tmp_path), pooling="mean")
    assert encoder.longest == 40 - model.embeddings.position_embeddings.padding_idx - 1
    assert np.isfinite(encoder.encode_passages(["how tall " * 200])).all()
    assert encoder.cut == 1


def test_a_cross_encoder_counts_positions_too(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS * 4, 300, "text")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=40, type_vocab_size=2, num_labels=1, **sizes
    )
    RobertaForSequenceClassification(made).save_pretrained(tmp_path)
    tokenizer.model_max_length = int(1e30)
    tokenizer.save_pretrained(tmp_path)
    long = Passage("e", 0, 0, "", "", "", "how tall " * 200)
    assert len(load_reranker("cross_encoder", str(tmp_path)).rank(["an owl"], [[long]])[0]) == 1
