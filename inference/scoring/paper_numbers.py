"""What the papers print of their own models: the only place where their numbers stand.

A miniature's table shows the papers' order, as ranks, and never their numbers. `docs/paper_numbers.md` is printed by
`python -m reflectune.inference.scoring.paper_numbers`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

INFOSEEK = ("unseen question", "unseen entity", "overall")
MR2AG, MMKB_RAG = "arXiv 2411.15041", "arXiv 2504.10074"


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper, or the part of it that a table of ours has the like of.

    Attributes:
        title: What it compares.
        source: arXiv id and number of the table.
        columns: Heads of its columns.
        rows: By name, one number a column, in per cent; None where the paper has none.
        ranked_by: The column whose order our tables show.
        digits: After the point, as the paper prints them.
        note: What a reader must know.
    """

    title: str
    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    ranked_by: str = "overall"
    digits: int = 1
    note: str = ""

    def column(self, head: str = "") -> dict[str, float]:
        """The numbers of a column by row, of `ranked_by` if none is named; rows that have none are left out."""
        place = self.columns.index(head or self.ranked_by)
        return {name: value for name, numbers in self.rows.items() if (value := numbers[place]) is not None}

    def ranks(self, head: str = "") -> dict[str, int]:
        """The rank of each row in a column, 1 for the highest number."""
        return ranks(self.column(head))


MR2AG_1 = PaperTable(
    "mR²AG: models with external knowledge on InfoSeek, LLaVA-v1.5-7B",
    f"{MR2AG}, Table 1; the rows without knowledge are of §4.3.1, on validation of Table 10",
    (
        *("Wikidata: unseen question", "Wikidata: unseen entity", "Wikidata: overall", "Human: overall"),
        *("Validation: unseen question", "Validation: unseen entity", "Validation: overall"),
    ),
    {
        "LLaVA, without knowledge": (None, None, 9.1, 9.5, None, None, None),
        "LLaVA-FT, without knowledge": (None, None, 20.5, 12.0, 24.0, 20.2, 21.9),
        "LLaVA-mRAG": (30.3, 29.2, 29.8, 16.7, None, None, None),
        "LLaVA-SFR": (20.8, 19.1, 19.9, 17.9, None, None, None),
        "LLaVA-mR²AG": (39.1, 38.0, 38.6, 28.8, 40.6, 39.8, 40.2),
        "LLaVA-mRAG, oracle": (55.3, 56.1, 55.7, 30.3, None, None, None),
        "LLaVA-SFR, oracle": (56.6, 55.6, 56.1, 45.0, None, None, None),
        "LLaVA-mR²AG, oracle": (58.3, 57.9, 58.1, 48.7, 60.8, 59.3, 60.0),
    },
    ranked_by="Wikidata: overall",
    note="On the validation split, which the other tables are of, the paper ran neither LLaVA-mRAG nor LLaVA-SFR. Its "
    "Table 11 has 9.8 where §4.3.1 has 20.5, and its Table 10 has 40.2, 39.8 and 40.1 for LLaVA-mR²AG on validation.",
)
MR2AG_2 = PaperTable(
    "mR²AG: Encyclopedic-VQA's test split, entities by Google Lens",
    f"{MR2AG}, Table 2",
    ("single-hop", "multi-answer", "oracle: single-hop"),
    {"LLaVA-mR²AG": (55.9, 51.8, 88.2)},
    ranked_by="single-hop",
)
MR2AG_5 = PaperTable(
    "mR²AG: rankings of candidate answers, InfoSeek's validation split",
    f"{MR2AG}, Table 5",
    INFOSEEK,
    {
        "random": (32.7, 32.7, 32.7),
        "ans": (36.4, 37.0, 36.7),
        "ret": (37.6, 37.4, 37.5),
        "rel": (39.7, 38.7, 39.2),
        "ret*ans": (38.3, 38.7, 38.5),
        "rel*ans": (39.5, 39.0, 39.2),
        "ret*rel": (40.5, 39.3, 39.9),
        "full": (40.6, 39.8, 40.2),
    },
    note="`full` is the product of all three scores.",
)
MR2AG_6 = PaperTable(
    "mR²AG: number of retrieved entries, InfoSeek's validation split",
    f"{MR2AG}, Table 6",
    ("overall",),
    {"1": (29.7,), "3": (37.6,), "5": (40.2,), "10": (42.8,)},
)
MR2AG_7 = PaperTable(
    "mR²AG: with and without Natural Questions, InfoSeek's validation split",
    f"{MR2AG}, Table 7",
    INFOSEEK,
    {"without NQ": (39.1, 39.7, 39.4), "with NQ": (40.6, 39.8, 40.2)},
)
MR2AG_8 = PaperTable(
    "mR²AG: recall of the gold entry by image and title, InfoSeek's validation split",
    f"{MR2AG}, Table 8",
    ("R@1", "R@10", "R@20"),
    {"image to title": (31.0, 58.0, 65.0), "image to image": (29.0, 55.0, 62.0), "both": (38.0, 65.0, 71.0)},
    ranked_by="R@1",
    digits=0,
)
MMKB_1 = PaperTable(
    "MMKB-RAG: Encyclopedic-VQA's test split and InfoSeek's validation split, Qwen2-VL-7B",
    f"{MMKB_RAG}, Table 1",
    (*(f"InfoSeek: {name}" for name in INFOSEEK), "E-VQA: single-hop", "E-VQA: all"),
    {
        "Qwen2-VL, without knowledge": (17.9, 17.8, 17.9, 16.4, 16.4),
        "Qwen2-VL (SFT), without knowledge": (22.7, 20.6, 21.6, 25.0, 23.8),
        "Qwen2-VL": (21.6, 21.3, 21.4, 25.9, 23.6),
        "Qwen2-VL (SFT)": (23.3, 23.8, 23.6, 32.6, 29.9),
        "MMKB-RAG": (36.4, 36.3, 36.4, 39.7, 35.9),
    },
    ranked_by="InfoSeek: overall",
)
MMKB_2 = PaperTable(
    "MMKB-RAG: the three tokens, InfoSeek's validation split, Qwen2-VL-7B",
    f"{MMKB_RAG}, Table 2",
    INFOSEEK,
    {
        "none": (23.33, 23.82, 23.57),
        "RET": (24.55, 24.59, 24.57),
        "SRT": (34.07, 33.55, 33.81),
        "RET + SRT": (34.07, 33.56, 33.81),
        "SRT + MCT": (36.43, 36.32, 36.37),
        "RET + SRT + MCT": (36.44, 36.34, 36.37),
    },
    digits=2,
)
MMKB_3 = PaperTable(
    "MMKB-RAG: number of documents after SRT, InfoSeek's validation split",
    f"{MMKB_RAG}, Table 3",
    INFOSEEK,
    {
        "auto": (34.07, 33.55, 33.81),
        "1": (33.39, 30.77, 32.03),
        "5": (35.05, 34.91, 34.98),
        "10": (33.68, 33.18, 33.43),
        "15": (30.16, 29.82, 29.99),
        "20": (25.32, 25.09, 25.09),
    },
    digits=2,
)
MMKB_4 = PaperTable(
    "MMKB-RAG: kind of MCT and number of documents, InfoSeek's validation split",
    f"{MMKB_RAG}, Table 4",
    INFOSEEK,
    {
        "merge, auto": (36.43, 36.32, 36.37),
        "rerank, auto": (34.53, 34.96, 34.74),
        "filter, auto": (35.82, 35.04, 35.43),
        "merge, 5": (36.10, 35.80, 36.00),
        "rerank, 5": (35.17, 34.98, 35.07),
        "filter, 5": (34.81, 34.08, 34.44),
        "merge, 10": (34.38, 34.48, 34.43),
        "rerank, 10": (32.83, 32.96, 32.89),
        "filter, 10": (33.52, 32.76, 33.14),
        "merge, 15": (35.91, 35.65, 35.78),
        "rerank, 15": (30.09, 29.90, 29.99),
        "filter, 15": (35.11, 33.99, 34.54),
        "merge, 20": (35.61, 35.04, 35.32),
        "rerank, 20": (25.20, 25.17, 25.18),
        "filter, 20": (34.72, 33.33, 34.01),
    },
    digits=2,
)
MMKB_5 = PaperTable(
    "MMKB-RAG: who labels SRT's documents, and how many labels there are, InfoSeek's validation split",
    f"{MMKB_RAG}, Table 5",
    INFOSEEK,
    {
        "GPT-4o, 2,000 labels": (33.03, 33.22, 33.12),
        "own, 2 %": (35.22, 36.65, 35.92),
        "own, 5 %": (34.78, 34.72, 34.75),
        "own, 10 %": (33.73, 33.93, 33.83),
        "own, 50 %": (34.85, 34.14, 34.49),
        "own, 100 %": (34.07, 33.55, 33.81),
    },
    digits=2,
    note="Of 100,000 own labels.",
)
TABLES = (MR2AG_1, MR2AG_2, MR2AG_5, MR2AG_6, MR2AG_7, MR2AG_8, MMKB_1, MMKB_2, MMKB_3, MMKB_4, MMKB_5)


def ranks(values: Mapping[Name, float]) -> dict[Name, int]:
    """The rank of each value, 1 for the highest; equal ones share a rank, and the next rank is left out.

    Example:
        >>> ranks({"a": 39.2, "b": 40.2, "c": 39.2, "d": 36.7})
        {'a': 2, 'b': 1, 'c': 2, 'd': 4}
    """
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def page() -> str:
    """`docs/paper_numbers.md`: every table here, as printed in the papers."""
    parts = [
        "# The papers' numbers",
        "",
        "What the papers print of their own models, in per cent. Models, questions and knowledge bases are others",
        "than the miniature's, so no table of the miniature shows these numbers: its column *paper's rank* is their",
        "order by the column in italics, 1 for the highest of the rows that both tables have.",
        "",
        "`python -m reflectune.inference.scoring.paper_numbers` prints this page.",
    ]
    for table in TABLES:
        parts += ["", f"## {table.title}", "", f"{table.source}. {table.note}".strip(), "", *_rows(table)]
    return "\n".join([*parts, ""])


def _rows(table: PaperTable) -> list[str]:
    heads = [f"*{head}*" if head == table.ranked_by else head for head in table.columns]
    order = table.ranks()
    lines = [_line(["", *heads, "rank"]), _line(["---", *["--:"] * (len(heads) + 1)])]
    for name, numbers in table.rows.items():
        cells = ["" if value is None else f"{value:.{table.digits}f}" for value in numbers]
        lines.append(_line([name, *cells, str(order.get(name, ""))]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
