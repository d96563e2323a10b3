"""Every page of figures names the command that makes it; the command exists, and takes the options it is told with."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from reflectune.inference.report.curves import Line, line_chart

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "benchmarks").glob("*.md"))
DOCUMENTS = [*PAGES, *sorted((ROOT / "docs").glob("*.md"))]
_COMMAND = re.compile(r"(?:python (?:-m reflectune\.[\w.]+|[\w/]+\.py)|bash [\w/]+\.sh)[^`\n]*")


def commands(page: Path) -> list[list[str]]:
    """The commands that a page names, as words; one may be broken over two lines between backticks."""
    text = page.read_text(encoding="utf-8")
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    fenced = [line for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(match.group()) for place in (*spans, *fenced) if (match := _COMMAND.match(place.strip()))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_its_command_first(page: Path) -> None:
    """`tests/test_docs.py` sees to it that the commands are there and take what they are given."""
    assert commands(page), f"{page.name} names no command"
    head = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert _COMMAND.search(head), f"{page.name} begins without its command"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_written_by_its_script(page: Path) -> None:
    """Its title stands in the script, or among the tables' titles."""
    words = commands(page)[0]
    folder = ROOT / "examples/miniature/tables"
    scripts = [ROOT / words[1]] if words[1] != "-m" else sorted(folder.glob("*.py"))
    title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")

    assert any(title in script.read_text(encoding="utf-8") for script in scripts)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", document.read_text(encoding="utf-8"))

    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.fixture
def mmkb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/mmkb.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("mmkb")


def test_the_command_line_on_a_page_is_the_one_that_was_given_but_for_folders(
    mmkb: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = importlib.import_module("page").command_line
    monkeypatch.setattr("sys.argv", ["mmkb.py", "--seed", "1", "--output", "x/y.md", "--work=z", "--limit", "5"])

    assert line("mmkb.py") == "`python benchmarks/mmkb.py --seed 1 --limit 5`"
    assert line("marks.py", ["--collect"]) == "`python benchmarks/marks.py`"


@pytest.mark.parametrize("script", ["pocket", "pocket_seeds"])
def test_a_page_is_written_where_the_command_was_typed(
    script: str, mmkb: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """These two go to the folder of the run, which the recipes' folders are relative to."""
    typed, run = tmp_path / "typed", tmp_path / "run"
    typed.mkdir()
    run.mkdir()
    monkeypatch.chdir(typed)
    page_file = importlib.import_module("page").page_file("page.md")
    monkeypatch.chdir(run)

    assert page_file == typed / "page.md"
    assert '"--output", type=page_file' in (ROOT / f"benchmarks/{script}.py").read_text(encoding="utf-8")


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 7}


def test_the_rules_table_is_read_from_the_sweeps(mmkb: ModuleType) -> None:
    start = {"k": "auto", "threshold": 0.5, "srt": True}
    changed = [{}, {"threshold": 0.9}, {"k": 1}, {"k": 5}, {"srt": False}]
    points = [{"settings": {**start, **c}, "accuracy": score(0.5 + i / 100)} for i, c in enumerate(changed)]

    lines = mmkb.rule_lines({"paper": {"start": start, "points": points}})

    assert lines[0] == "| labels | k `auto` | threshold 0.9 | k = 1 | k = 5 | without SRT |"
    assert lines[2].startswith("| `paper` | 50.0 (40.0 to 60.0) | 51.0 (41.0 to 61.0) | 52.0")
    assert lines[2].endswith("| 54.0 (44.0 to 64.0) |")


def test_the_tuned_models_table_has_every_comparison(mmkb: ModuleType) -> None:
    reflection = {
        "ret": {"unseen_entity": {"auroc": score(0.9)}},
        "ret_knowledge": {"unseen_entity": {"auroc": None}},
        "srt": {"overall": {"stating_first": score(0.8), "stating_first_retriever": score(0.4)}},
        "mct": {"replies": 25, "malformed": 19},
    }
    metrics = {
        "reflection": reflection,
        "pipelines": {
            name: {"overall": score(value)}
            for name, value in {"closed_book": 0.2, "naive_rag_passages_tuned": 0.8, "mmkb_rag": 0.7}.items()
        },
        "comparisons": {
            "mmkb_rag - closed_book": score(0.5),
            "mmkb_rag - naive_rag_passages_tuned": score(-0.1),
            "mr2ag - closed_book": score(0.1),
        },
    }

    text = "\n".join(mmkb.tuned_lines({"llava": metrics, "qwen2_vl": metrics}))

    assert "| | LLaVA | Qwen2-VL |" in text
    assert "| `mmkb_rag` less `closed_book`, paired | 50.0 (40.0 to 60.0, n = 7) | 50.0" in text
    assert "| `naive_rag_passages_tuned` | 80.0 (70.0 to 90.0, n = 7) | 80.0" in text
    assert "| `mmkb_rag` less `naive_rag_passages_tuned`, paired | -10.0 (-20.0 to 0.0, n = 7) | -10.0" in text
    assert "knowledge-based questions alone | – | – |" in text
    assert "malformed | 19 of 25 | 19 of 25 |" in text
    assert "mr2ag" not in text


def test_the_labels_tables_are_read_from_the_statistics(mmkb: ModuleType) -> None:
    truth = {"precision": 0.715, "recall": None, "recall_of_probed": 0.752}
    numbers = {
        "truth": truth,
        "derived": {"ret": {"[Ret]": 562, "[NoRet]": 1277}},
        "probes": {"changes": {"wrong_right": 550, "right_wrong": 12526}, "with_several_relevant": 81},
    }
    counts = {"alone_visual": 1153, "alone_knowledge": 124, "alone_famous": 98, "worse": 12526, "worse_visual": 11528}

    text = "\n".join(mmkb.label_lines("llava", {"`rule: paper`": numbers}, numbers, counts))

    assert "| `rule: paper` | 71.5 | – | 75.2 |" in text
    assert "550 turn a wrong answer right, 12,526 a right one wrong |" in text
    assert "1,153 are visual; of the other 124, 98 are about famous entities" in text


def test_every_stage_of_the_mmkb_page_has_its_configuration(mmkb: ModuleType, tmp_path: Path) -> None:
    stages = {**mmkb.stages(tmp_path, "llava", 0), **mmkb.rule_stages(tmp_path, "llava", 0, 100, 3.0)}

    assert len(stages) == 7 + len(mmkb.LABELS) + 2 + 3 * len(mmkb.RULES)
    for words in stages.values():
        assert Path(words[words.index("--config") + 1]).is_file()
    assert list(stages).index("plain_train") < list(stages).index("evaluate")
    evaluate, trained = stages["evaluate"], stages["plain_train"]
    assert evaluate[evaluate.index("--plain_model") + 1] == trained[trained.index("--output_dir") + 1]
    assert "tuned_baselines" in evaluate[evaluate.index("--pipelines") :]
    assert "--limit" not in evaluate
    trial = mmkb.stages(tmp_path, "llava", 0, questions=8)
    assert all(trial[name][trial[name].index("--limit") + 1] == "8" for name in ("probe", "evaluate"))
    grid = stages["rule paper: sweep"]
    assert json.loads(grid[grid.index("--grid") + 1]) == mmkb.GRID


def test_the_page_of_refined_gates_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions that everybody knows, two that nobody does; the refined gate looks up the latter alone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr("sys.argv", ["grpo.py", "--seeds", "0", "--output", "page.md"])
    grpo = importlib.import_module("grpo")
    known = np.array([True, True, False, False] * 2)
    knowledge = np.array([True, True, True, False] * 2)
    everything = {"retrieved": np.ones(8), "read": np.ones(8), "known": known, "knowledge": knowledge}
    split = np.array(["traffic_val"] * 4 + ["val_unseen_entity"] * 4)
    sft = grpo.Answered(direct=known * 1.0, log_odds=np.linspace(2.0, 1.0, 8), split=split, **everything)
    refined = grpo.Answered(direct=known * 1.0, log_odds=np.where(known, -1.0, 1.0), split=split, **everything)
    seeds = [grpo.Seed(sft, {0.3: refined}, {"refine, λ = 0.3": 3.7}, {"without `hold`": refined})]

    text = grpo.page(seeds, [0.3], "page.svg")

    assert text.startswith("# Gates refined by reward\n\n`python benchmarks/grpo.py --seeds 0`, MMKB-RAG")
    assert "![Accuracy against the cost of retrieval](page.svg)" in text
    assert "| without `hold` | 100.0 | 0.50 | 0.0 | +0.0 | +0.0 | 0.850 |" in text
    assert "its reward, 0.850, is higher than that of SFT's best γ, 0.7" in text
    assert text.count("At λ = 0.3 and γ = 0.5 the refined gate is") == 2
    assert grpo.stages(0, Path("w"), [0.3], 4000, [], ["without `hold`"])["refine, without `hold`"][-2:] == [
        "--hold",
        "0",
    ]


def test_a_drawing_of_its_own_is_well_formed_and_names_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    alone = importlib.import_module("running").alone
    name = "<b> & co"
    drawing = ElementTree.fromstring(alone(line_chart(name, "x", "y", [Line(name, [(0.0, 0.0)])]), [name]))
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    (label,) = (text for text in drawing.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "name-0")
    assert label.text == name
