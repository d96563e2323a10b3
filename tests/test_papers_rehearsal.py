"""The stages of MI-RAG, PMSR and mRAG on generated files of the public layouts, with tiny models and a stub server."""

import csv
import gzip
import importlib
import json
import re
import shlex
import zipfile
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
BUILD = "retrieval/build_index.py"
ENCODER = "pair:miniature/clip+miniature/text"
SMALL = {
    BUILD: ["--encoder", ENCODER, "--store", "exact", "--device", "cpu", "--dtype", "float32"],
    "inference/recall.py": ["--device", "cpu"],
    "evaluate": ["--iterations", "1", "--text_passages", "4", "--device", "cpu"],
}
SMALL_MRAG = {
    **SMALL,
    BUILD: [*SMALL[BUILD], "--encoder", "miniature/clip"],
    "evaluate": ["--device", "cpu"],
}
FLOORS = ("retrieval", "data_builders", "train", "inference", "metrics")
NAMES = {"Q1": "Kirk Bridge", "Q2": "Moss Tower", "Q3": "Oak Mill"}


def options(values: dict[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in values.items())


def commands(paper: str, names: list[str]) -> list[list[str]]:
    """Return the words of stages' commands, without their launch and their options of `vars`."""
    read = yaml.safe_load((ROOT / f"configs/papers/{paper}/dvc.yaml").read_text())
    stages = read["stages"]
    variables = {name: value for each in read["vars"] for name, value in each.items() if isinstance(value, dict)}
    made = []
    for asked in names:
        stage, _, key = asked.partition("@")
        body = stages[stage]
        words = body.get("do", body)["cmd"]
        if key:
            words = words.replace("${key}", key)
            words = words.replace("${item}", options(body["foreach"][key]))
            for name, value in body["foreach"][key].items():
                words = words.replace(f"${{item.{name}}}", str(value))
        for name, value in variables.items():
            words = words.replace(f"${{{name}}}", options(value))
        words = re.sub(r"accelerate launch --config_file \S+ ", "", words).split("${skipped}")[0]
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
def downloads(tmp_path_factory: pytest.TempPathFactory, write_original_llava: Callable[..., None]) -> Path:
    """Write M2KR's InfoSeek, Wiki6M, wiki18 and ReflectiVA: three entities, three questions a split."""
    folder = tmp_path_factory.mktemp("papers")
    write_original_llava(folder / "models/reflectiva", folder / "clip")
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
    "mi_rag": [
        "evaluate",
        "llava_more",
        "evaluate_llava_more",
        "table_7",
        "table_8",
        "table_a1",
        "table_a3@generation",
    ],
    "pmsr": ["infoseek_index", "evaluate", "evaluate_llava_more", "judge", "table_a1"],
}


@pytest.mark.slow
def test_a_papers_list_runs_from_downloads_to_tables(
    downloads: Path,
    stub_server: Callable[..., Any],
    write_base: Callable[[str, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(downloads)
    server = stub_server(say)
    served = ["--llm_url", server.url]
    more = {**SMALL, "evaluate": [*SMALL["evaluate"], *served, "--batch_questions", "4"], "metrics/score.py": served}
    more["train/merge.py"] = ["--vision", "clip"]
    for paper, prepared in (("mi_rag", PREPARED), ("pmsr", [])):
        for words in commands(paper, [*prepared, *TABLES[paper]]):
            run(words, more)
    write_base("qwen3_vl", folder := downloads / "models/qwen3_vl")
    own = {**more, BUILD: [*more[BUILD], "--encoder", f"qwen3_vl:{folder}"]}
    for words in commands("pmsr", ["table_a14_index@infoseek", "table_a14@infoseek"]):
        run(words, own)
    contents = [body["messages"][-1]["content"] for _, body in server.requests]
    with_images = [content for content in contents if isinstance(content, list)]  # a judge's is a text
    assert max(sum(part["type"] == "image_url" for part in content) for content in with_images) > 1
    for paper, names in TABLES.items():
        folders = {path.parent.name for path in (downloads / "runs" / paper).glob("*/metrics.json")}
        assert len(folders) == len(set(names) - {"infoseek_index", "llava_more", "table_a1"}) + (paper == "pmsr")
        recall = json.loads((downloads / f"runs/{paper}/table_a1/recall.json").read_text())
        assert all(set(split["section_weights"]) == {"0", "0.5"} for split in recall.values())
        metrics = json.loads((downloads / f"runs/{paper}/infoseek/metrics.json").read_text())
        trajectory = metrics["trajectories"][paper]
        assert trajectory["by_iteration"][0]["article_recall"]["value"] == 1.0  # gold ids are the entries'
        assert metrics["replies"][paper]["replies_refused"] == 0


@pytest.fixture(scope="module")
def mrag_downloads(downloads: Path) -> Path:
    """Add InfoSeek's own annotations, and Encyclopedic-VQA with images of landmarks and articles."""
    infoseek, evqa = downloads / "data/infoseek", downloads / "data/evqa"
    splits = ("val_unseen_question", "val_unseen_entity", "val_unseen_entity")
    asked = [
        {"data_id": f"infoseek_val_{n}", "image_id": f"oven_{n}", "question": "Who built it?", "answer": ["Ann"]}
        | {"answer_eval": ["Ann"], "data_split": split}
        for n, split in enumerate(splits)
    ]
    of_entities = [{"data_id": row["data_id"], "entity_id": entity} for row, entity in zip(asked, NAMES, strict=True)]
    for name, rows in (("infoseek_val", asked), ("infoseek_val_withkb", of_entities)):
        (infoseek / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    articles, questions = {}, []
    for number, title in enumerate(NAMES.values()):
        url, image = f"https://en.wikipedia.org/wiki/{title.replace(' ', '_')}", f"{number}123456789abcdef"
        place = evqa / f"images/landmarks/{number}/1/2/{image}.jpg"
        for path in (place, evqa / f"kb_images/{title}.jpg"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (60, 40), (80 * number, 90, 20)).save(path)
        articles[url] = {
            "title": title,
            "section_titles": [title, "Builder"],
            "section_texts": [f"{title} is old.", f"Ann built {title}."],
            "image_urls": [f"https://e.org/{title}.jpg"],
        }
        row = {"question": "Who built it?", "answer": "Ann", "dataset_image_ids": image, "dataset_name": "landmarks"}
        row |= {
            "dataset_category_id": "1",
            "question_type": "templated",
            "wikipedia_url": url,
            "wikipedia_title": title,
        }
        row |= {
            "evidence": "",
            "evidence_section_id": "1",
            "evidence_section_title": "Builder",
            "encyclopedic_vqa_split": "test",
        }
        questions.append({**row, "question_original": "", "wikipedia_url_used_in_train": "False"})
    (evqa / "inaturalist").mkdir()
    (evqa / "inaturalist/val.json").write_text('{"images": []}')
    with (evqa / "test.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, questions[0])
        writer.writeheader()
        writer.writerows(questions)
    with zipfile.ZipFile(evqa / "encyclopedic_kb_wiki.zip", "w") as archive:
        archive.writestr("encyclopedic_kb_wiki.json", json.dumps(articles))
    return downloads


@pytest.mark.slow
def test_ok_vqa_searches_the_index_of_encyclopedic_vqas_articles(
    mrag_downloads: Path, stub_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mrag_downloads)
    monkeypatch.setenv("OPENAI_API_KEY", "key")  # a judge's
    okvqa, asked = Path("data/okvqa"), {"image_id": 7, "question": "Who built it?", "question_id": 75}
    (okvqa / "coco/val2014").mkdir(parents=True)
    Image.new("RGB", (40, 40), "red").save(okvqa / "coco/val2014/COCO_val2014_000000000007.jpg")
    answered = {**asked, "answers": [{"answer": "ann", "raw_answer": "Ann"}] * 10, "question_type": "four"}
    questions, annotations = {"questions": [asked], "data_subtype": "val2014"}, {"annotations": [answered]}
    (okvqa / "OpenEnded_mscoco_val2014_questions.json").write_text(json.dumps(questions))
    (okvqa / "mscoco_val2014_annotations.json").write_text(json.dumps(annotations))
    more = {**SMALL, "evaluate": [*SMALL["evaluate"], "--llm_url", stub_server(say).url, "--batch_questions", "4"]}
    more["data_builders/convert.py"] = ["--split", "test"]
    for words in commands("mmkb_rag", ["evqa"]):
        run(words, more)
    del more["data_builders/convert.py"]
    more["metrics/score.py"] = more["evaluate"][-4:-2]
    listed = ["evqa_index", "texts", "text_index", "okvqa", "evaluate_okvqa"]
    of_pmsr = ["evqa_index", "evaluate_okvqa", "judge_okvqa"]
    for words in (*commands("mi_rag", listed), *commands("pmsr", of_pmsr)):
        run(words, more)
    for paper in ("mi_rag", "pmsr"):
        metrics = json.loads(Path(f"runs/{paper}/okvqa/metrics.json").read_text())
        assert metrics["pipelines"][paper]["overall"]["value"] == 1.0
        assert metrics["trajectories"][paper]["by_iteration"][0]["prr"]
    assert Path("runs/pmsr/judge_okvqa/metrics.json").is_file()
    mixture = {**more, BUILD: [*more[BUILD], "--encoder", ENCODER.replace("pair:", "mixture:")]}
    unjudged = {"evqa": "rouge_l"}  # BEM is converted by hand
    run(*commands("mi_rag", ["large_index"]), mixture)
    for paper, name in (("pmsr", "table_a8@10"), ("mi_rag", "evaluate_large")):
        (given,) = commands(paper, [name])
        words = [unjudged.get(word, word) for word in given if word not in ("--bem", "runs/bem")]
        run([*words, "--extract_split", ""], more)  # only the test split was converted
    metrics = json.loads(Path("runs/pmsr/table_a8_10/metrics.json").read_text())
    assert metrics["pipelines"]["oracle_pairs"]["overall"]["n"] == 3


@pytest.mark.slow
def test_mrags_list_runs_from_downloads_to_tables(
    mrag_downloads: Path, stub_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mrag_downloads)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    served = ["--llm_url", stub_server(lambda text: "[1]" if "[1]" in text else "Yes, Ann.").url]
    more = {**SMALL_MRAG, "evaluate": [*SMALL_MRAG["evaluate"], *served], "metrics/score.py": served}
    more["inference/caption.py"] = served
    tables = ("recall", "evaluate", "judge@mrag", "table_3@IC_IT", "table_4@pairwise", "figure_2@listwise_2")
    tables = ("captions", "caption_index", *tables, "table_3_captions@IC_C", "bounds@lower", "bounds@upper")
    of_evqa = ("evaluate_evqa", "judge_evqa@mrag", "bounds_evqa@lower", "bounds_evqa@upper")
    for words in commands("mrag", ["infoseek", "index", *tables, "evqa", "evqa_index", *of_evqa]):
        run(words, more)
    in_place_of_gme = [*more["evaluate"], "--reranker_model", "miniature/clip"]
    for words in commands("mrag", ["table_4@gme"]):
        run(words, {**more, "evaluate": in_place_of_gme})
    results = Path("runs/mrag")
    assert len([*results.glob("*/metrics.json")]) == 13
    assert len([*results.glob("*evqa*/metrics.json")]) == 4
    for name in ("infoseek", "evqa"):
        metrics = json.loads((results / name / "metrics.json").read_text())
        assert {"mrag", "mrag_agent"} <= set(metrics["pipelines"])
        assert metrics["pipelines"]["mrag"]["overall"]["n"] == 3
        assert metrics["replies"]["mrag"]["replies_refused"] == 0
        bounds = (results / f"bounds{'_evqa' * (name == 'evqa')}_{bound}" for bound in ("lower", "upper"))
        traces = [json.loads(line) for it in bounds for line in (it / "traces/mrag.jsonl").read_text().splitlines()[1:]]
        assert [len(trace["passages"]) for trace in traces] == [0] * 3 + [1] * 3


@pytest.mark.slow
def test_mrags_multimodal_retriever_is_rehearsed_by_a_small_model(
    mrag_downloads: Path, stub_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mrag_downloads)
    more = {BUILD: [*SMALL[BUILD], "--encoder", "gme:miniature/qwen2_vl"]}
    more["evaluate"] = ["--device", "cpu", "--llm_url", stub_server(lambda text: "Ann.").url]
    for words in commands("mrag", ["infoseek", "table_2_index@gme", "table_2@gme_IQ_IT"]):
        run(words, more)
    folder = Path("runs/mrag/table_2_gme_IQ_IT")
    assert json.loads((folder / "metrics.json").read_text())["pipelines"]["mrag"]["overall"]["n"] == 3
    traces = [json.loads(line) for line in (folder / "traces/mrag.jsonl").read_text().splitlines()[1:]]
    assert [len(trace["hits"]) for trace in traces] == [3] * 3
