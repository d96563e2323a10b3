"""Public sets followed from their published layout to the report: which metric each is scored by, and its columns."""

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
INFOSEEK_SPLITS = ("val_unseen_question", "val_unseen_entity")
COLUMNS = {
    "infoseek": ["overall", "unseen_question", "unseen_entity"],
    "evqa": ["overall", "single_hop", "templated", "automatic", "multi_answer", "2_hop"],
    "okvqa": ["overall"],
}


def infoseek(folder: Path) -> tuple[Any, list[str]]:
    rows = [
        {"data_id": f"infoseek_val_{n:08d}", "image_id": f"oven_0000000{n}", "question": "What is it made of?",
         "answer": ["oak"], "answer_eval": ["oak", "oak wood"], "data_split": INFOSEEK_SPLITS[n % 2]}
        for n in range(4)
    ]  # fmt: skip
    links = [{"data_id": row["data_id"], "entity_id": f"e{n % 2}", "entity_text": "x"} for n, row in enumerate(rows)]
    for name, lines in (("val.jsonl", rows), ("withkb.jsonl", links)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"annotations": "val.jsonl", "withkb": "withkb.jsonl"}, [f"{row['image_id']}.jpg" for row in rows]


def evqa(folder: Path) -> tuple[Any, list[str]]:
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
    return "test.csv", [f"landmarks/{'/'.join(name[:3])}/{name}.jpg" for name in LANDMARKS]


def okvqa(folder: Path) -> tuple[Any, list[str]]:
    questions = [{"image_id": 7 + n, "question": "What sport is it?", "question_id": n} for n in range(2)]
    given = [{"answer_id": n, "raw_answer": "racing", "answer_confidence": "yes", "answer": "race"} for n in range(10)]
    noted = [
        {"image_id": 7 + n, "answer_type": "other", "question_type": kind, "question_id": n, "answers": given}
        for n, kind in enumerate(("one", "two"))
    ]
    common = {"info": {}, "license": {}, "data_subtype": "val2014"}
    kinds = {"one": "Vehicles and Transportation", "two": "Sports and Recreation"}
    (folder / "q.json").write_text(json.dumps({**common, "questions": questions}))
    (folder / "a.json").write_text(json.dumps({**common, "question_types": kinds, "annotations": noted}))
    return {"questions": "q.json", "annotations": "a.json"}, [f"COCO_val2014_{7 + n:012d}.jpg" for n in range(2)]


LAYOUTS = {"infoseek": infoseek, "evqa": evqa, "okvqa": okvqa}


def converted(name: str, folder: Path, encoder: str) -> Dataset:
    """The data set folder that `convert` makes of a set's published files, with an index over two articles."""
    files, images = LAYOUTS[name](folder)
    for number, image in enumerate(images):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), ("red", "blue")[number % 2]).save(path)
    articles = [
        {"id": key, "title": f"T{n}", "text": "It is made of oak.", "image": f"images/{images[n]}"}
        for n, key in enumerate((WIKI + "A", WIKI + "B") if name == "evqa" else ("e0", "e1"))
    ]
    (folder / "kb.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))
    source = {"questions": name, "splits": {"test" if name == "evqa" else "val": files}, "images": "images"}
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
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_is_scored_by_its_own_metric_from_its_files_to_the_report(
    name: str, tmp_path: Path, encoder: str, checkpoints: Any, bem: str
) -> None:
    dataset = converted(name, tmp_path, encoder)
    metric = {"infoseek": "infoseek", "evqa": "evqa", "okvqa": "vqa"}[name]
    assert dataset.metric == dataset.manifest["metric"] == metric
    where = {"dataset": tmp_path / "data", "index": tmp_path / "index", "output": tmp_path / "out", "device": "cpu"}
    settings = {**where, "encoder": encoder, "base_model": checkpoints.base, "max_new_tokens": 3, "top_n": 1}
    argv = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    argv += ["--pipelines", "closed_book", "naive_rag", "--splits"]
    argv += list(INFOSEEK_SPLITS) if name == "infoseek" else ["test" if name == "evqa" else "val"]
    if name == "evqa":
        with pytest.raises(UserError, match="the metric `evqa` needs `bem`"):
            parse_config(EvaluateConfig, argv=argv)
        argv += ["--bem", bem]
    config = parse_config(EvaluateConfig, argv=argv)
    assert f"scored by {metric}" in experiment.describe(config)
    metrics = experiment.run(config)
    assert metrics["metric"]["name"] == metric
    assert list(metrics["metric"]["columns"]) == COLUMNS[name]
    count = {"infoseek": 4, "evqa": 4, "okvqa": 2}[name]
    for pipeline in ("closed_book", "naive_rag_article", "naive_rag_passages"):
        assert metrics["pipelines"][pipeline]["overall"]["n"] == count
    page = " ".join((tmp_path / "out/report.html").read_text().split())
    for head in metrics["metric"]["columns"].values():
        assert f">{head}</th>" in page
    assert escape(metrics["metric"]["caption"]) in page
    assert summary(metrics).startswith(metrics["metric"]["caption"])
    assert ("unseen question" in page) is (name == "infoseek")
    if name == "okvqa":
        kinds = {"Vehicles and Transportation", "Sports and Recreation"}
        assert set(metrics["pipelines"]["closed_book"]["by_type"]) == kinds
    if name == "evqa":
        again = experiment.run(parse_config(EvaluateConfig, argv=[*argv[:-2], "--metric", "evqa_exact"]))
        assert again["metric"]["name"] == "evqa_exact"  # of the same traces
        assert "lower bound" in (tmp_path / "out/report.html").read_text()
