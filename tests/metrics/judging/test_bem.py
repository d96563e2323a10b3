"""BEM's loader and converter, on a small random BERT written out under TensorFlow's names."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from reflectune.core.errors import UserError
from reflectune.examples.bem import conversion as bem_conversion
from reflectune.examples.bem.conversion import LoggedTriple, convert, published_right
from reflectune.metrics.judging.bem import LONGEST, RECORD, Bem, TooLongError, load_bem, load_tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] sep [ ] the menger family william and mary where ? ##s cafe , y".split()
TRIPLES = [
    ("William and Mary", "the Menger families", "Where?"),
    ("y", "the family", "Where Where Where?"),
    ("café [SEP]", "mary, mary", "the?"),
]
HEADS, SIZE = 2, 64


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bem") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def model(activation: str = "gelu", segments: int = 3) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=HEADS * SIZE,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=96,
        max_position_embeddings=LONGEST,
        type_vocab_size=segments,
        hidden_act=activation,
        initializer_range=0.2,
    )
    return BertForSequenceClassification(config).eval()


def by_hand(network: BertForSequenceClassification, vocabulary: Path, triple: tuple[str, str, str]) -> list[float]:
    """The logits of one triple padded to 512 and masked, as the module's docstring describes them."""
    words = [re.sub("é", "e", text.lower()) for text in triple]
    pieces = [re.findall(r"\w+|[^\w\s]", text) for text in words]
    ids, segments = [PIECES.index("[CLS]")], [0]
    for segment, text_pieces in enumerate(pieces):
        known = [PIECES.index(p) if p in PIECES else PIECES.index("[UNK]") for p in text_pieces]
        ids += [*known, PIECES.index("[SEP]")]
        segments += [segment] * (len(known) + 1)
    padding = [0] * (LONGEST - len(ids))
    with torch.no_grad():
        output = network(
            input_ids=torch.tensor([ids + padding]),
            token_type_ids=torch.tensor([segments + padding]),
            attention_mask=torch.tensor([[1] * len(ids) + padding]),
        )
    return [float(value) for value in output.logits[0]]


def test_a_triple_is_read_in_order_with_three_segments(vocabulary: Path) -> None:
    network = model()
    bem = Bem(network, load_tokenizer(vocabulary), mask_padding=True)
    for triple in (TRIPLES[0], TRIPLES[2]):
        assert bem(*triple) == pytest.approx(by_hand(network, vocabulary, triple), abs=1e-4)
    assert bem("y", "the family", "Where?") != pytest.approx(bem("the family", "y", "Where?"), abs=1e-3)


def test_beyond_512_word_pieces_it_stops(vocabulary: Path) -> None:
    bem = Bem(model(), load_tokenizer(vocabulary), mask_padding=True)
    fits = ("y " * (LONGEST - 6), "y", "y")
    assert bem.length(fits) == LONGEST
    assert len(bem(*fits)) == 2
    with pytest.raises(TooLongError, match="513 word pieces"):
        bem("y " * (LONGEST - 5), "y", "y")


def first_bert(network: BertForSequenceClassification) -> dict[str, np.ndarray]:
    """Weights under the names and shapes of TensorFlow's first BERT."""
    variables = {}
    for name, tensor in network.state_dict().items():
        array = tensor.numpy()
        if name.startswith("classifier"):
            variables[f"output_{'weights' if name.endswith('weight') else 'bias'}"] = array
            continue
        path = re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/")
        if "embeddings/weight" in path:
            variables[path.removesuffix("/weight")] = array
        elif "LayerNorm" in path:
            variables[path.replace("/weight", "/gamma").replace("LayerNorm/bias", "LayerNorm/beta")] = array
        else:
            variables[path.replace("/weight", "/kernel")] = array.T if array.ndim == 2 else array
    return {**variables, "global_step": np.zeros(1)}


def model_garden(network: BertForSequenceClassification) -> dict[str, np.ndarray]:
    """Weights under the names and shapes of TensorFlow's Model Garden: heads are a dimension of their own."""
    variables = {"adam/iter": np.zeros(1)}
    fixed = {
        "bert/embeddings/word_embeddings": "word_embeddings/embeddings",
        "bert/embeddings/position_embeddings": "position_embedding/embeddings",
        "bert/embeddings/token_type_embeddings": "type_embeddings/embeddings",
    }
    for name, array in first_bert(network).items():
        path = fixed.get(name, name).replace("bert/embeddings/LayerNorm", "embeddings/layer_norm")
        path = path.replace("bert/encoder/", "transformer/").replace("bert/pooler/dense", "pooler_transform")
        path = path.replace("attention/output/dense", "self_attention/attention_output")
        path = path.replace("attention/output/LayerNorm", "self_attention_layer_norm").replace(
            "attention/self/", "self_attention/"
        )
        path = path.replace("output/LayerNorm", "output_layer_norm").replace("/dense/", "/")
        path = {"output_weights": "classifier/kernel", "output_bias": "classifier/bias"}.get(path, path)
        if re.search("query|key|value", path):
            array = array.reshape(*array.shape[:-1], HEADS, SIZE)
        elif path.endswith("attention_output/kernel"):
            array = array.reshape(HEADS, SIZE, HEADS * SIZE)
        variables[path] = array.T if path == "classifier/kernel" else array
    return variables


def examples(network: BertForSequenceClassification, vocabulary: Path, mask_padding: bool) -> list[LoggedTriple]:
    """Return the original's output."""
    bem = Bem(network, load_tokenizer(vocabulary), mask_padding=mask_padding)
    return [
        LoggedTriple(*triple, logits=tuple(bem(*triple)), input_ids=(*bem.encode(triple)[0], 0)) for triple in TRIPLES
    ]


@pytest.mark.parametrize("naming", [first_bert, model_garden])
@pytest.mark.parametrize(("activation", "mask_padding"), [("gelu", True), ("gelu_new", False)])
def test_a_conversion_finds_out_what_the_original_does(
    tmp_path: Path, vocabulary: Path, naming: Any, activation: str, mask_padding: bool
) -> None:
    network = model(activation)
    rows = examples(network, vocabulary, mask_padding)
    np.savez(tmp_path / "bem.npz", **{f"{k.replace('/', '|')}:0": v for k, v in naming(network).items()})
    variables = bem_conversion.read_variables(tmp_path / "bem.npz")
    check = bem_conversion.convert(variables, vocabulary, rows, tmp_path / "out", {})
    assert (check.activation, check.mask_padding) == (activation, mask_padding)
    bem = load_bem(str(tmp_path / "out"))
    assert bem.logits(TRIPLES, batch_size=2) == pytest.approx(np.array([row.logits for row in rows]), abs=1e-4)
    assert json.loads((tmp_path / "out" / RECORD).read_text())["checked_on"] == len(TRIPLES)


def test_a_wrong_conversion_is_not_written(tmp_path: Path, vocabulary: Path) -> None:
    network = model()
    rows = examples(network, vocabulary, True)
    variables = first_bert(network)
    swapped = "bert/encoder/layer_{}/attention/self/query/kernel"
    one, other = swapped.format(0), swapped.format(1)
    variables[one], variables[other] = variables[other], variables[one]
    with pytest.raises(UserError, match="differ from the original's by"):
        bem_conversion.convert(variables, vocabulary, rows, tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="nothing checks"):
        bem_conversion.convert(variables, vocabulary, [], tmp_path / "out", {})


def test_other_word_pieces_are_refused(tmp_path: Path, vocabulary: Path) -> None:
    network = model()
    rows = examples(network, vocabulary, True)
    rows[0] = dataclasses.replace(rows[0], input_ids=(2, 3, 3, 3))
    with pytest.raises(UserError, match="word pieces of 'William and Mary' differ"):
        bem_conversion.convert(first_bert(network), vocabulary, rows, tmp_path / "out", {})


def test_an_unknown_naming_is_named_and_can_be_given_by_hand(vocabulary: Path) -> None:
    variables = first_bert(model())
    variables["my/odd/name"] = variables.pop("output_bias")
    with pytest.raises(UserError, match=r"my/odd/name \(2,\)"):
        bem_conversion.torch_weights(variables, {})
    assert "classifier.bias" in bem_conversion.torch_weights(variables, {"my/odd/name": "classifier.bias"})
    with pytest.raises(UserError, match=r"two variables are classifier\.weight"):
        bem_conversion.torch_weights(variables, {"my/odd/name": "classifier.weight"})


def test_a_missing_variable_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    network = model()
    variables = first_bert(network)
    del variables["bert/pooler/dense/kernel"]
    with pytest.raises(UserError, match="pooler"):
        bem_conversion.convert(variables, vocabulary, examples(network, vocabulary, True), tmp_path / "out", {})


def test_what_was_not_checked_or_is_no_bem_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    with pytest.raises(UserError, match="BEM can't be loaded"):
        load_bem(str(tmp_path / "nothing"))
    model(segments=2).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    with pytest.raises(UserError, match=RECORD):
        load_bem(str(tmp_path))
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(UserError, match="was checked"):
        load_bem(str(tmp_path))
    (tmp_path / RECORD).write_text('{"mask_padding": true, "checked_on": 20}')
    with pytest.raises(UserError, match="2 segments"):
        load_bem(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}", "should be a JSON list"),
        ('[{"candidate": "a"}]', "triple 1: `reference`: field required"),
        ('[{"candidate": "a", "reference": "b", "question": "c", "logits": [1]}]', "should be two numbers"),
        ('[{"candidate": "a", "reference": "b", "question": "c", "logits": [1, NaN]}]', "should be two numbers"),
        ('[{"candidate": "a", "reference": "b", "question": "c", "logits": "no"}]', "triple 1: `logits`"),
    ],
)
def test_odd_example_triples_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "logits.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        bem_conversion.read_triples(path)


def test_odd_names_and_variables_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"a": 3}')
    with pytest.raises(UserError, match="`a` should be PyTorch's name of it"):
        bem_conversion.read_names(path)
    for content in (b"", b"PK\x03\x04", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="can't be read as the variables"):
            bem_conversion.read_variables(path)


def test_a_vocabulary_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xcb[UNK]")
    with pytest.raises(UserError, match="is not UTF-8"):
        load_tokenizer(tmp_path / "vocab.txt")


def test_the_published_examples_tell_bem_from_another_model(tmp_path: Path, vocabulary: Path) -> None:
    def like_the_readme(candidate: str, reference: str, question: str) -> list[float]:
        assert (reference, question) == ("the Menger family", "Where does this hotel derive its name from?")
        return [0.0, 1.0] if "Menger" in candidate else [1.0, 0.0]

    assert published_right(like_the_readme) == 2
    assert published_right(lambda *triple: [0.0, 1.0]) == 1
    assert published_right(lambda *triple: [0.0, 1.0] if "Baker" in triple[0] else [1.0, 0.0]) == 0
    network = model()
    check = convert(first_bert(network), vocabulary, examples(network, vocabulary, True), tmp_path / "out", {})
    written = load_bem(str(tmp_path / "out"))
    assert check.published == published_right(written)
    assert json.loads((tmp_path / "out" / "bem.json").read_text())["published_right"] == check.published
