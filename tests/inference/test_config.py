from __future__ import annotations

from pathlib import Path

import pytest

from reflectune.inference.config import AnswerConfig, EvaluateConfig


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "dataset.json").write_text("{}")
    (tmp_path / "manifest.json").write_text("{}")
    return {"dataset": str(tmp_path), "index": str(tmp_path)}


def test_a_whole_config_has_no_problems(folders) -> None:
    assert EvaluateConfig(**folders, model="m", base_model="b", output="o").problems() == []


def test_names_stand_for_forms() -> None:
    assert EvaluateConfig(pipelines=["naive_rag", "mr2ag", "naive_rag_article"]).forms() == [
        "naive_rag_article",
        "naive_rag_passages",
        "mr2ag",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipelines": ["mr3ag"]}, "unknown pipeline `mr3ag`"),
        ({"pipelines": []}, "`pipelines` is empty"),
        ({"splits": []}, "`splits` is empty"),
        ({"model": ""}, "`model` is needed"),
        ({"base_model": ""}, "`base_model` is needed"),
        ({"index": ""}, "`index` is needed"),
        ({"output": ""}, "`output` is needed"),
        ({"dataset": ""}, "`dataset` is needed"),
        ({"dataset": "/nowhere"}, "no dataset.json"),
        ({"index": "/nowhere"}, "no manifest.json"),
        ({"gamma": 1.5}, "`gamma` is a probability"),
        ({"top_n": 0}, "`top_n` must be at least 1"),
        ({"batch_questions": 0}, "`batch_questions` must be at least 1"),
        ({"limit": 0}, "`limit` must be at least 1"),
        ({"dtype": "float8"}, "`dtype` is one of"),
        ({"report_questions": -1}, "`report_questions` must be at least 0"),
    ],
)
def test_each_problem_is_named(folders, change: dict, words: str) -> None:
    config = EvaluateConfig(**{**folders, "model": "m", "base_model": "b", "output": "o", **change})
    assert [problem for problem in config.problems() if words in problem]


def test_all_problems_come_at_once(folders) -> None:
    config = EvaluateConfig(**folders, output="o", gamma=2, top_n=0)
    assert len(config.problems()) == 4  # gamma, top_n, model, base_model


def test_closed_book_needs_neither_index_nor_checkpoint(folders) -> None:
    config = EvaluateConfig(dataset=folders["dataset"], base_model="b", output="o", pipelines=["closed_book"])
    assert config.problems() == []


def test_an_answer_needs_an_image_and_a_question(folders) -> None:
    problems = AnswerConfig(**folders, model="m", question=" ").problems()
    assert problems == ["`image` is needed", "`question` is needed"]
