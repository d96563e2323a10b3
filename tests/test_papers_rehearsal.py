"""The stages of MI-RAG and PMSR on generated files of the public layouts, with tiny models and a stub server."""

import gzip
import importlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from reflectune.core.config import parse_config

ROOT = Path(__file__).parents[1]
ENCODER = "pair:miniature/clip+miniature/text"
SMALL = {
    "retrieval/build_index.py": ["--encoder", ENCODER, "--store", "exact", "--device", "cpu", "--dtype", "float32"],
    "evaluate": ["--encoder", ENCODER, "--iterations", "1", "--text_passages", "4", "--device", "cpu"],
}
FLOORS = ("retrieval", "data_builders", "inference", "metrics")
NAMES = {"Q1": "Kirk Bridge", "Q2": "Moss Tower", "Q3": "Oak Mill"}


def commands(paper: str, names: list[str]) -> list[list[str]]:
    """Return the words of stages' commands, without their launch and their options of `vars`."""
    stages = yaml.safe_load((ROOT / f"configs/papers/{paper}/dvc.yaml").read_text())["stages"]
    made = []
    for name in names:
        stage, _, key = name.partition("@")
        body = stages[stage]
        words = body.get("do", body)["cmd"]
        if key:
            words = words.replace("${key}", key)
            words = words.replace("${item}", " ".join(f"--{k} {v}" for k, v in body["foreach"][key].items()))
        words = (
            re.sub(r"accelerate launch --config_file \S+ ", "", words).replace("${answer}", "").split("${skipped}")[0]
        )
        made.append(shlex.split(words))
    return made


def run(words: list[str], more: dict[str, list[str]]) -> None:
    """Run a command in this process."""
    if words[0] == "reflectune":
        (path,) = (path for floor in FLOORS for path in ROOT.glob(f"{floor}/{words[1]}.py"))
        words = [path.relative_to(ROOT).as_posix(), *words[2:]]
    script = words[0]
    command = getattr(importlib.import_module(f"reflectune.{script[:-3].replace('/', '.')}"), Path(script).stem)
    flags = [*words[1:], *more.get("evaluate" if "evaluate" in script else script, [])]
    if "passages" in words:
        flags = [*words[1:], "--store", "exact", "--device", "cpu", "--dtype", "float32", "--encoder", "miniature/text"]
    command(parse_config(command.kind, argv=flags))


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write M2KR's InfoSeek, Wiki6M and wiki18 in their layouts: three entities, three questions a split."""
    folder = tmp_path_factory.mktemp("papers")
    data = folder / "data"
    for place in ("m2kr/Infoseek_data", "infoseek/oven_images", "infoseek/wikipedia_images_full", "flashrag"):
        (data / place).mkdir(parents=True)
    (folder / "configs").symlink_to(ROOT / "configs")
    colours = dict(zip(NAMES, ("red", "green", "blue"), strict=True))
    articles, rows = [], []
    for number, (entity, title) in enumerate(NAMES.items()):
        Image.new("RGB", (60, 40), colours[entity]).save(data / f"infoseek/oven_images/oven_{number}.jpg")
        Image.new("RGB", (40, 60), colours[entity]).save(data / f"infoseek/wikipedia_images_full/{entity}.jpg")
        content = f"{title} is old.## Builder.Ann built {title} in 18{number}0.## Place.It stands in Norway."
        article = {"wikidata_id": entity, "wikipedia_title": title, "wikipedia_content": content}
        articles.append(
            {**article, "wikipedia_summary": f"{title} is old.", "wikipedia_url": f"https://e.org/{entity}"}
        )
        row = {"question_id": f"q{number}", "question": "Who built it?", "img_path": f"oven_{number}.jpg"}
        row |= {"answers": ["Ann"], "gold_answer": "Ann", "answer_eval": ["Ann"], "question_type": "String"}
        half = "infoseek_val_unseen_entity" if number else "infoseek_val_unseen_question"
        passages = {"pos_item_ids": [f"p{number}"], "pos_item_contents": ["Ann built it."]}
        rows.append({**row, **passages, "data_split": half, "entity_id": entity, "instruction": "Find it."})
    for split in ("train", "test"):
        renamed = {"data_split": "infoseek_train"} if split == "train" else {}
        table = pa.Table.from_pylist(
            [{**row, "question_id": f"{split}_{row['question_id']}", **renamed} for row in rows]
        )
        pq.write_table(table, data / f"m2kr/Infoseek_data/{split}-00000-of-00001.parquet")
    with gzip.open(data / "infoseek/Wiki6M_ver_1_0.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(article) + "\n" for article in articles)
    texts = [{"id": str(n), "contents": f'"{title}"\nAnn built {title}.'} for n, title in enumerate(NAMES.values())]
    (data / "flashrag/wiki18_100w.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    return folder


def say(text: str) -> str:
    """Reply to a prompt by what it asks for."""
    if "Queries" in text or "## Output" in text:
        return "## Analysis\nThe builder.\n## Queries\nQuestion 1: Who built Kirk Bridge?\nQuestion 2: Where is it?"
    return "Ann" if "short" in text or "answer" in text.lower() else "A bridge that Ann built."


PREPARED = ["infoseek", "texts", "text_index", "infoseek_index"]
TABLES = {
    "mi_rag": ["evaluate", "table_6@vanilla", "table_7", "table_a3@generation"],
    "pmsr": ["infoseek_index", "evaluate", "judge", "table_7"],
}


@pytest.mark.slow
def test_a_papers_list_runs_from_downloads_to_tables(
    downloads: Path, stub_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(downloads)
    server = stub_server(say)
    served = ["--llm_url", server.url]
    more = {**SMALL, "evaluate": [*SMALL["evaluate"], *served, "--batch_questions", "4"], "metrics/score.py": served}
    for paper, prepared in (("mi_rag", PREPARED), ("pmsr", [])):
        for words in commands(paper, [*prepared, *TABLES[paper]]):
            run(words, more)
    contents = [body["messages"][-1]["content"] for _, body in server.requests]
    pictured = [content for content in contents if isinstance(content, list)]  # a judge's is a text
    assert max(sum(part["type"] == "image_url" for part in content) for content in pictured) > 1
    for paper, names in TABLES.items():
        folders = {path.parent.name for path in (downloads / "runs" / paper).glob("*/metrics.json")}
        assert len(folders) == len([name for name in names if name != "infoseek_index"])
        metrics = json.loads((downloads / f"runs/{paper}/infoseek/metrics.json").read_text())
        trajectory = metrics["trajectories"][paper]
        assert trajectory["by_iteration"][0]["article_recall"]["value"] == 1.0  # gold ids are the entries'
        assert metrics["replies"][paper]["replies_refused"] == 0
