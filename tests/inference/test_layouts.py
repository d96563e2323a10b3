"""Encyclopedic-VQA followed from its published layout to the report: its metric, and its columns."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.formats.dataset import Dataset
from reflectune.inference.evaluate import summary
from reflectune.inference.running import experiment
from reflectune.inference.running.config import EvaluateConfig
from reflectune.metrics.judging.bem import RECORD
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from tests.inference.families import ONE_FAMILY

WIKI = "https://en.wikipedia.org/wiki/"
LANDMARKS = ("0a1b2c3d4e5f6071", "ffee2c3d4e5f6071")
COLUMNS = ["overall", "single_hop", "templated", "automatic", "multi_answer", "2_hop"]


def published(folder: Path) -> list[str]:
    """Write the published questions, and return the paths of their images."""
    header = (
        "question,answer,dataset_image_ids,dataset_name,dataset_category_id,question_type,wikipedia_url,"
        "wikipedia_title,evidence,evidence_section_id,evidence_section_title,encyclopedic_vqa_split,"
        "question_original,wikipedia_url_used_in_train"
    ).split(",")
    answers = {"templated": "oak", "automatic": "1880", "multi_answer": "red&&blue|red&&navy", "2_hop": "Rome"}
    with (folder / "test.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for number, (kind, answer) in enumerate(answers.items()):
            url, section = (f"{WIKI}A|{WIKI}B", "0|0") if kind == "2_hop" else (WIKI + "A", "0")
            writer.writerow(
                [f"What is it {number}?", answer, LANDMARKS[number % 2], "landmarks", "7", kind, url, "A", "",
                 section, "S", "test", "What?", "False"]
            )  # fmt: skip
    return [f"landmarks/{'/'.join(name[:3])}/{name}.jpg" for name in LANDMARKS]


def converted(folder: Path, encoder: str) -> Dataset:
    """The data set folder that `convert` makes of the published files, with an index over two articles."""
    images = published(folder)
    for number, image in enumerate(images):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), ("red", "blue")[number % 2]).save(path)
    articles = [
        {"id": key, "title": f"T{n}", "text": "It is made of oak.", "image": f"images/{images[n]}"}
        for n, key in enumerate((WIKI + "A", WIKI + "B"))
    ]
    (folder / "kb.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))
    source = {"questions": "evqa", "splits": {"test": "test.csv"}, "images": "images"}
    knowledge = {"knowledge": "own", "knowledge_source": "kb.jsonl", "workers": 1}
    config = ConvertConfig(output=str(folder / "data"), root=str(folder), **source, **knowledge)
    assert config.problems() == []
    convert(config)
    dataset = Dataset(folder / "data")
    build_index(dataset.knowledge, load_encoder(encoder), folder / "index")
    return dataset


@pytest.fixture(scope="module")
def bem(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BEM that says of everything what its random weights say."""
    folder = tmp_path_factory.mktemp("bem")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=8, type_vocab_size=3, **small)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] the oak is".split()) + "\n")
    (folder / RECORD).write_text('{"mask_padding": true, "checked_on": 1}')
    return str(folder)


@ONE_FAMILY
def test_evqa_is_scored_by_its_own_metric_from_its_files_to_the_report(
    tmp_path: Path, encoder: str, checkpoints: Any, bem: str
) -> None:
    dataset = converted(tmp_path, encoder)
    assert dataset.metric == dataset.manifest["metric"] == "evqa"
    where = {"dataset": tmp_path / "data", "index": tmp_path / "index", "output": tmp_path / "out", "device": "cpu"}
    settings = {**where, "encoder": encoder, "base_model": checkpoints.base, "max_new_tokens": 3, "top_n": 1}
    argv = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    argv += ["--pipelines", "closed_book", "naive_rag", "--splits", "test"]
    with pytest.raises(UserError, match="the metric `evqa` needs `bem`"):
        parse_config(EvaluateConfig, argv=argv)
    config = parse_config(EvaluateConfig, argv=[*argv, "--bem", bem])
    assert "scored by evqa" in experiment.describe(config)
    metrics = experiment.run(config)
    assert metrics["metric"]["name"] == "evqa"
    assert list(metrics["metric"]["columns"]) == COLUMNS
    for pipeline in ("closed_book", "naive_rag_article", "naive_rag_passages"):
        assert metrics["pipelines"][pipeline]["overall"]["n"] == 4
    page = " ".join((tmp_path / "out/report.html").read_text().split())
    for head in metrics["metric"]["columns"].values():
        assert f">{head}</th>" in page
    assert escape(metrics["metric"]["caption"]) in page
    assert summary(metrics).startswith(metrics["metric"]["caption"])
    assert "unseen question" not in page
    again = experiment.run(parse_config(EvaluateConfig, argv=[*argv, "--metric", "evqa_exact"]))
    assert again["metric"]["name"] == "evqa_exact"  # of the same traces
    assert "lower bound" in (tmp_path / "out/report.html").read_text()
