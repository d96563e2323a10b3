import pytest

from reflectune.examples.miniature.tables.claims import Claim, PaperTable, TableRow, ahead, measure
from reflectune.examples.miniature.tables.layout import markdown
from reflectune.examples.miniature.tables.run import command_line
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.outcomes import GridOutcomes, PointOutcome, to_row


@pytest.fixture
def results(make):
    """Two seeds' answers to 20 questions: point `good` is right on all, `bad` on those of even number."""
    questions = [make.question(i, ("val_unseen_question", "val_unseen_entity")[i // 10]) for i in range(20)]
    questions += [make.question(20 + i, requires_retrieval=False) for i in range(4)]

    def outcomes(i: int) -> dict[str, PointOutcome]:
        by_point = {"good": PointOutcome(1.0, True, 4, "a"), "bad": PointOutcome(float(i % 2 == 0), False, 2, "b")}
        return by_point if i < 20 else {"good": PointOutcome(0.5, True, 4, "a")}

    rows = {q.id: to_row(outcomes(i), []) for i, q in enumerate(questions)}
    return {"m": [GridOutcomes(questions, rows, TraceScorer("infoseek")) for _ in range(2)]}


GOOD, BAD = ("m", "good"), ("m", "bad")


def test_a_table_has_its_rows_and_a_verdict_on_each_claim(results) -> None:
    table = PaperTable(
        "T",
        [TableRow("good", GOOD, 40.0), TableRow("bad", BAD)],
        [Claim("right", ahead(GOOD, BAD)), Claim("wrong", ahead(BAD, GOOD)), Claim("nobody knows")],
        visual=True,
    )
    measured = measure(table, results, seed=0)
    good, bad = measured["rows"]
    assert good["accuracy"] == {"mean": 1.0, "sd": 0.0, "seeds": [1.0, 1.0]}
    assert bad["accuracy"]["mean"] == 0.5
    assert (good["visual"]["mean"], bad["visual"]) == (0.5, None)
    assert (good["retrieval_rate"]["mean"], bad["retrieval_rate"]["mean"], bad["passages_read"]["mean"]) == (1, 0, 2)
    assert [claim["verdict"] for claim in measured["claims"]] == ["holds", "does not hold", "not measured"]


def test_markdown_has_a_line_per_row_and_claim(results) -> None:
    rows, claims = [TableRow("good", GOOD, 40.0), TableRow("bad", BAD)], [Claim("right", ahead(GOOD, BAD))]
    measured = measure(PaperTable("Table 9", rows, claims, "A note."), results, seed=0)
    text = markdown({"title": "Title", "command": "python -m x", "lead": "Lead.", "tables": [measured]})
    lines = text.splitlines()
    assert "|  | paper's rank | rank | accuracy | retrieved | passages | fell back |" in lines
    assert "| good | 1 | 1 | 100.0 ± 0.0 | 100.0 ± 0.0 | 4.0 | 0.0 ± 0.0 |" in lines
    assert "| bad |  |  | 50.0 ± 0.0 | 0.0 ± 0.0 | 2.0 | 0.0 ± 0.0 |" in lines
    assert "40.0" not in text
    assert any(line.startswith("| right | **holds** | +50.0 (") for line in lines)
    widths = {line.count("|") for line in lines[lines.index("## Table 9") + 4 : lines.index("## Table 9") + 8]}
    assert widths == {8}


def test_ranks_are_of_the_rows_that_the_paper_has(results) -> None:
    rows = [TableRow("good", GOOD, 30.0), TableRow("bad", BAD, 50.0), TableRow("again", GOOD, 30.0)]
    rows.append(TableRow("ours alone", GOOD))
    rows_measured = measure(PaperTable("T", rows), results, seed=0)["rows"]
    assert [row["paper_rank"] for row in rows_measured] == [2, 1, 2, None]
    assert [row["rank"] for row in rows_measured] == [1, 3, 1, None]
    assert not any("paper" in row for row in rows_measured)


def test_the_command_on_a_page_leaves_out_folders() -> None:
    command = command_line("--config c.yaml --runs a b c --limit 5 --output=o --epochs 2".split())
    assert command == "python -m reflectune.examples.miniature.papers_tables --config c.yaml --limit 5 --epochs 2"
