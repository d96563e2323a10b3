import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import parse_config
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.agreement.config import CompareConfig
from reflectune.data_builders.agreement.measures import correctness
from reflectune.data_builders.agreement.run import all_cases, run
from reflectune.data_builders.annotators.string import by_gold, by_string
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base


def entry(number: int) -> Entry:
    sections = (
        Section("History", f"It was founded in {1500 + number}."),
        Section("Works", f"A film of {1500 + number} shows it."),  # the answer, but no evidence
        Section("Size", "It is tall."),
    )
    return Entry(f"e{number}", f"Tower {number}", summary="A tower.", sections=sections)


def question(number: int) -> Question:
    evidence = (Evidence(f"e{number}", 0),)
    return Question(
        f"k{number}", "i.png", "When?", (str(1500 + number),), entity_ids=(f"e{number}",), evidence=evidence
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "towers"
    write_json(root / "dataset.json", {"name": "towers", "fingerprint": "f1"})
    write_knowledge_base(root / "knowledge", [entry(i) for i in range(8)], name="towers")
    seen = Question("v", "i.png", "Which colour?", ("red",), requires_retrieval=False)
    write_questions(root, "train", [*(question(i) for i in range(8)), seen])
    return root


def test_each_annotator_is_measured_against_the_truth(
    folder: Path, tmp_path: Path, stub_server: Callable[..., Any]
) -> None:
    def judge(text: str) -> str:
        paragraph = text.split("Retrieved document:")[1]
        return "[Relevant]" if "founded" in paragraph else "Who knows?" if "film" in paragraph else "[Irrelevant]"

    run(
        CompareConfig(
            dataset=str(folder),
            output=str(tmp_path / "out"),
            annotators=["string", "gold", "llm"],
            llm_url=stub_server(judge).url,
            llm_model="stub",
        )
    )

    page = (tmp_path / "out" / "agreement.md").read_text()
    assert "24 paragraphs of 8 questions" in page
    assert "| string | 24 | 16 | 0 | 50.0% | 100.0% | 66.7% |" in page  # the films
    assert "| gold | 24 | 8 | 0 | 100.0% | 100.0% | 100.0% |" in page
    assert "| llm | 24 | 8 | 8 | 100.0% | 100.0% | 100.0% |" in page
    assert "| string, llm | 16 | 100.0% | 1.000 | 0 | 0 |" in page
    rows = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert rows[1]["passage"] == "e0#1.0"
    assert [rows[1][name]["label"] for name in ("string", "gold", "llm")] == ["relevant", "irrelevant", "unclear"]
    assert "Who knows?" in rows[1]["llm"]["note"]


def test_secrets_in_the_server_s_address_stand_in_no_file(
    folder: Path, tmp_path: Path, stub_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = stub_server(
        lambda text: "[Irrelevant]",
        lambda text, number: {"status": 400, "body": "no /v1?key=hidden"} if "film" in text else {},
    )
    output = tmp_path / "out"
    url = server.url.replace("//", "//me:hidden@") + "?key=hidden"
    run(CompareConfig(dataset=str(folder), output=str(output), annotators=["llm"], llm_url=url, llm_model="stub"))

    written = [path.read_text() for path in output.rglob("*") if path.is_file()]
    assert len(written) == 3
    assert "no /v1?key=…" in "".join(written)
    assert "hidden" not in "".join([*written, *capsys.readouterr()])


def test_a_limit_draws_questions_by_seed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(CompareConfig(dataset=str(folder), output=str(tmp_path / "out"), limit=3, dry_run=True))

    assert "9 paragraphs of 3 questions" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_questions_whose_entity_has_no_article_are_left_out(folder: Path) -> None:
    write_questions(folder, "few", [question(9), question(3), question(8)])

    cases = all_cases(Dataset(folder), "few", limit=3, seed=0)
    assert {asked.id for asked, _ in cases} == {"k3"}


def test_a_split_without_articles_is_an_error(folder: Path, tmp_path: Path) -> None:
    write_questions(folder, "train", [Question("v", "i.png", "Which?", ("red",), requires_retrieval=False)])

    with pytest.raises(UserError, match="no knowledge-based question whose entity has an article"):
        run(CompareConfig(dataset=str(folder), output=str(tmp_path / "out")))


def test_every_problem_is_reported_at_once() -> None:
    argv = ["--annotators", "oracle", "llm", "llm", "--limit", "0"]

    with pytest.raises(UserError) as caught:
        parse_config(CompareConfig, argv=argv)

    for part in ("`dataset` is needed", "found oracle", "names one twice", "`limit` must be", "`llm_url` is needed"):
        assert part in str(caught.value)


def test_in_the_world_the_string_annotator_finds_the_evidence(tmp_path: Path) -> None:
    """The world says which sections hold an answer; others hold it by chance, if at all."""
    build_world(tmp_path / "world", size="tiny", seed=0, quiet=True)
    cases = all_cases(Dataset(tmp_path / "world"), "train", limit=100, seed=0)

    scores = correctness([one.label for one in by_string(cases)], [one.label for one in by_gold(cases)])

    assert scores.recall == 1.0
    assert scores.precision > 0.95
