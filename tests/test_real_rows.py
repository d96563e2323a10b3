"""Issue 4's chain on real rows, by the commands as a user types them: InfoSeek's gallery and a slice of Wiki6M.

No entity of the gallery is in the slice, so the questions to train on are written here, of articles that are. The slice
comes without its images; the gallery's photographs stand in for them.
"""

import html
import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import check
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.run import run as build_mr2ag
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import read_examples
from reflectune.models.schemes.examples import Branch, ReflectionExample

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SHARED.is_dir(), reason="the real photographs and Wikipedia rows are not there"),
]

TRAINING = [
    ("Q4873072", "sport", "When did this battle take place?", "13 March 1758", None),
    ("Q7158585", "food", "What is this bun made of?", "wheat flour", None),
    ("Q290576", "piano", "Where was this person born?", "Camden, New Jersey", None),
    ("Q2711032", "building3", "When was this station opened?", "25 April 1985", None),
    ("Q1878509", "lake", "How many people live in this village?", "1306", (1300, 1310)),
    ("Q3374369", "aircraft", "Which city hosted this event?", "Prague", None),
]
"""Entity, image, question, answer, range."""

BASELINES = ("closed_book", "naive_rag_article", "naive_rag_passages")

EVIDENCE = {
    "Q4873072": "on March 13, 1758, during",
    "Q7158585": "made of wheat flour",
    "Q290576": "born in Camden, New Jersey",
    "Q2711032": "opened on 25 April 1985",
    "Q1878509": "population was 1,306 at",
    "Q3374369": "held in Prague",
}
"""What the article says, word for word."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the commands of the README write, from the published files to the report."""
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_sources(folder)
        knowledge, index = ("--knowledge", "real/knowledge"), ("--index", "real_index")
        command(patch, "data_builders.convert", "--config", "real.yaml")
        command(patch, "retrieval.build_index", *knowledge, "--output", "real_index")
        data = (*miniature("mr2ag_data"), "--dataset", "real", *index, "--output", "reflection")
        command(patch, "data_builders.build_mr2ag", *data)
        tuning = ("--train_data", "reflection", "--output_dir", "checkpoint", "--max_steps", "1")
        command(patch, "train.sft", *miniature("sft"), *tuning)
        arguments = ("--dataset", "real", *index, "--model", "checkpoint", "--splits", "val_unseen_entity")
        arguments = (*arguments, "--pipelines", *BASELINES, "mr2ag", "--top_n", "2", "--limit", "4")
        command(patch, "inference.evaluate", *miniature("evaluate"), *arguments, "--output", "evaluation")
    return folder


def write_sources(folder: Path) -> None:
    """InfoSeek's files for the questions to train on, the slice's images under their names, and the config."""
    gallery, slices = SHARED / "infoseek_gallery", SHARED / "kb_slices"
    with (folder / "train.jsonl").open("w") as annotations, (folder / "withkb.jsonl").open("w") as entities:
        for number, (entity, image, question, answer, limits) in enumerate(TRAINING):
            accepted = [{"wikidata": float(answer), "range": limits}] if limits else [answer]
            row = {"data_id": f"real_{number}", "image_id": image, "question": question, "answer": [answer]}
            annotations.write(json.dumps({**row, "answer_eval": accepted, "data_split": "train"}) + "\n")
            entities.write(json.dumps({"data_id": f"real_{number}", "entity_id": entity}) + "\n")
    rows = map(json.loads, (slices / "wiki6m_10rows.jsonl").read_text().splitlines())
    for row, photograph in zip(rows, sorted((gallery / "images").iterdir()), strict=False):
        image = folder / row["image_path"]
        image.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photograph, image)
    config = {
        "output": "real",
        "questions": "infoseek",
        "splits": {
            "train": {"annotations": "train.jsonl", "withkb": "withkb.jsonl"},
            "val": str(gallery / "questions.jsonl"),
        },
        "images": str(gallery / "images"),
        "knowledge": "wiki6m",
        "knowledge_source": str(slices / "wiki6m_10rows.jsonl"),
        "knowledge_images": "wikipedia_images_full",
        "workers": 1,
    }
    (folder / "real.yaml").write_text(yaml.safe_dump(config))


def command(patch: pytest.MonkeyPatch, module: str, *arguments: str) -> None:
    """`python -m reflectune.MODULE ARGUMENTS`, in this process."""
    patch.setattr("sys.argv", [module, *arguments])
    getattr(importlib.import_module(f"reflectune.{module}"), module.rpartition(".")[2]).main()


def miniature(name: str) -> tuple[str, str]:
    return "--config", str(REPOSITORY / "configs" / "examples" / "miniature" / f"{name}.yaml")


def test_the_data_set_has_every_row_with_its_image(folder: Path) -> None:
    manifest = json.loads((folder / "real/dataset.json").read_text())
    assert manifest["counts"] == {
        "train": {"numerical": 1, "string": 3, "time": 2},
        "val_unseen_entity": {"numerical": 1, "string": 8, "time": 3},
    }
    assert manifest["images"] == {"found": 18, "missing": 0, "unreadable": 0}
    assert manifest["dropped"] == {}
    assert manifest["knowledge"] == {
        "entries": 10, "images": 10, "entries_without_image": 0, "gold_entries": {"named": 6, "found": 6}
    }  # fmt: skip


def test_the_rows_say_what_the_published_files_say(folder: Path) -> None:
    dataset = Dataset(folder / "real")
    gallery = {question.id: question for question in dataset.questions("val_unseen_entity")}
    bird, judo = gallery["infoseek_gallery_00000002"], gallery["infoseek_gallery_00000001"]
    assert (bird.range, bird.answer_type) == ((120.0, 170.0), "numerical")
    assert judo.answers == ("Kanō Jigorō",)
    for row in map(json.loads, (SHARED / "kb_slices/wiki6m_10rows.jsonl").read_text().splitlines()):
        entry = dataset.knowledge.get(row["wikidata_id"])
        kept = "".join(section.title + section.text for section in entry.sections)
        assert letters(kept) == letters(row["wikipedia_content"])
        assert [Path(image).name for image in entry.images] == [Path(row["image_path"]).name]


def letters(text: str) -> str:
    """The text without what section marks and line breaks are made of."""
    return re.sub(r"[\s#.]", "", text)


def test_the_passages_that_state_the_answer_and_no_others_are_evidence(folder: Path) -> None:
    examples = read_examples(folder / "reflection/train.parquet", ReflectionExample)
    assert len(examples) == len(TRAINING)
    for example in examples:
        entity = TRAINING[int(example.id.removeprefix("real_"))][0]
        (relevant,) = (branch for branch in example.branches if branch.relevant)
        assert relevant.passage.entry_id == entity
        assert says(relevant, entity)
        others = [branch for branch in example.branches if not branch.relevant]
        assert others
        assert not any(says(branch, entity) for branch in others)


def says(branch: Branch, entity: str) -> bool:
    return EVIDENCE[entity] in branch.passage.text


def test_the_page_for_proof_reading_has_every_question_and_image(folder: Path) -> None:
    page = (folder / "reflection/proofread_train.html").read_text()
    shown = html.unescape(re.sub(r"<[^>]+>", "", page))
    for entity, _, question, answer, _ in TRAINING:
        assert question in shown
        assert answer in shown
        assert EVIDENCE[entity] in shown
    assert len(re.findall(r"data:image/\w+;base64,", page)) == len(TRAINING)


def test_questions_of_unknown_entities_make_no_training_data(folder: Path, tmp_path: Path) -> None:
    wanted = BuildConfig(
        dataset=str(folder / "real"), output=str(tmp_path), split="val_unseen_entity", negatives_retrieved=0
    )
    with pytest.raises(UserError, match=r"infoseek_gallery_00000000 .*names no entity"):
        build_mr2ag(wanted)


def test_the_evaluation_ends_in_metrics_and_a_report_that_says_what_they_are_worth(folder: Path) -> None:
    metrics = json.loads((folder / "evaluation/metrics.json").read_text())
    for name in (*BASELINES, "mr2ag"):
        assert metrics["pipelines"][name]["unseen_entity"]["n"] == 4
        assert metrics["pipelines"][name]["overall"] is None
        assert len(list(read_rows(folder / f"evaluation/traces/{name}.jsonl"))) == 4
    report = html.unescape(" ".join((folder / "evaluation/report.html").read_text().split()))
    assert "A miniature model was run on data that it wasn't made for." in report
    assert "Its answers are not expected to be right" in report
    assert "not to be set beside a paper's" not in report  # that is what it says of the drawn world


def test_without_the_image_folder_a_check_counts_entries_without_image(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    config = yaml.safe_load((folder / "real.yaml").read_text())
    numbers, bad = check(ConvertConfig(**{**config, "output": "unwritten", "knowledge_images": ""}))
    assert numbers["knowledge"]["entries_without_image"] == 10
    assert bad == []
    assert not (folder / "unwritten").exists()
