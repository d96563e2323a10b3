"""MMKB-RAG's ablations (arXiv 2504.10074, §4.4) in miniature: Tables 2 to 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.examples.miniature.tables.claims import Claim, MeasuredCell, PaperTable, TableRow, ahead, paper_column
from reflectune.examples.miniature.tables.config import DOCUMENTS, SIZES, TablesConfig
from reflectune.examples.miniature.tables.mmkb_stages import MODEL, STRING, labels, own_labels, preparation, training
from reflectune.examples.miniature.tables.stages import Answering, TablesPlan
from reflectune.inference.sweeps.points import Point

TOKENS = {
    "none": (False, False, False),
    "RET": (True, False, False),
    "SRT": (False, True, False),
    "RET + SRT": (True, True, False),
    "SRT + MCT": (False, True, True),
    "RET + SRT + MCT": (True, True, True),
}
"""RET, SRT and MCT of each row of Table 2."""

MCT = ("merge", "rerank", "filter")
"""Kinds of MCT in Table 4. Table 2 has the first, the paper's best on InfoSeek."""
KS = ("auto", "1", "5", "10", "15", str(DOCUMENTS))
"""Numbers of documents in Table 3. Table 4 has no 1, which leaves nothing for MCT to do."""
SEVERAL = tuple(k for k in KS if k != "1")

SRT_ALONE = Point("SRT", {"ret": False, "srt": True, "k": "auto", "mct": "none"})


def plan(config: TablesConfig) -> TablesPlan:
    """Return one set of probes, its labels in several sizes, and a training of each per seed."""
    stages = preparation(config)
    answering: list[Answering] = []
    names = [MODEL, *map(own_labels, SIZES), STRING]
    stages += [labels(config, name) for name in names]
    world, index = Path(config.output, "world"), Path(config.output, "index")
    for seed in config.seeds:
        for name in names:
            stage = training(config, name, seed)
            stages.append(stage)
            points = _points() if name == MODEL else [SRT_ALONE]
            answering.append(Answering(name, seed, world, index, stage.folder, points))
    return TablesPlan("MMKB-RAG's ablations in miniature", stages, answering, tables(config))


def tables(config: TablesConfig) -> list[PaperTable]:
    """Return the tables, and the paper's claims about them."""
    return [_tokens(), _by_k(), _by_mct(), _by_labels(config)]


def _points() -> list[Point]:
    """Return every setting of Tables 2 to 4 once."""
    points = [Point("closed book", {"pipeline": "closed_book"})]
    for name, (ret, srt, mct) in TOKENS.items():
        settings: dict[str, Any] = {"ret": ret, "srt": srt, "k": "auto", "mct": MCT[0] if mct else "none"}
        points.append(Point(name, settings))
    for k in KS:
        points += [_at(how, k) for how in ("none", *MCT)]
    return points


def _at(mct: str, k: str) -> Point:
    return Point(f"{mct} k={k}", {"ret": False, "srt": True, "k": k, "mct": mct})


def _tokens() -> PaperTable:
    cells: dict[str, MeasuredCell] = {name: (MODEL, name) for name in TOKENS}
    every = "RET + SRT + MCT"
    return PaperTable(
        "Table 2: the three tokens",
        [
            TableRow("closed book", (MODEL, "closed book")),
            *(TableRow(name, cell, paper_column("mmkb_rag", "2")[name]) for name, cell in cells.items()),
        ],
        [
            Claim("RET improves the answers", ahead(cells["RET"], cells["none"])),
            Claim(
                "RET's effect is smaller with the other tokens",
                [{cells["RET"]: 1.0, cells["none"]: -1.0, cells[every]: -1.0, cells["SRT + MCT"]: 1.0}],
            ),
            Claim(
                "SRT improves them much",
                [*ahead(cells["SRT"], cells["none"]), *ahead(cells["RET + SRT"], cells["RET"])],
            ),
            Claim(
                "MCT improves them beyond SRT",
                [*ahead(cells["SRT + MCT"], cells["SRT"]), *ahead(cells[every], cells["RET + SRT"])],
            ),
            Claim("All three together are the best", ahead(cells[every], *cells.values())),
        ],
        f"MCT is `{MCT[0]}`. Without SRT the first 5 documents are read, with it `k: auto`.",
        visual=True,
    )


def _by_k() -> PaperTable:
    cells: dict[str, MeasuredCell] = {k: (MODEL, f"none k={k}") for k in KS}
    return PaperTable(
        "Table 3: number of documents after SRT",
        [TableRow(f"k = {k}", cell, paper_column("mmkb_rag", "3").get(k)) for k, cell in cells.items()],
        [
            Claim("k = 5 is the best", ahead(cells["5"], *cells.values())),
            Claim("k = 20 is far behind", ahead(cells["5"], cells["20"])),
            Claim("One document is not enough: auto is ahead of k = 1", ahead(cells["auto"], cells["1"])),
        ],
        "RET and MCT off.",
    )


def _by_mct() -> PaperTable:
    cells: dict[tuple[str, str], MeasuredCell] = {(how, k): (MODEL, f"{how} k={k}") for k in SEVERAL for how in MCT}
    most = SEVERAL[-1]
    return PaperTable(
        "Table 4: kind of MCT and number of documents",
        [
            TableRow(f"{how}, k = {k}", cells[how, k], paper_column("mmkb_rag", "4").get(f"{how}, {k}"))
            for k in SEVERAL
            for how in MCT
        ],
        [
            Claim(
                "merge is the best at every k (InfoSeek)",
                [s for k in SEVERAL for s in ahead(cells["merge", k], cells["rerank", k], cells["filter", k])],
            ),
            Claim(
                f"With many documents (k = {most}) rerank falls behind filter",
                ahead(cells["filter", most], cells["rerank", most]),
            ),
            Claim("rerank is the best on E-VQA under BEM: no BEM in the miniature"),
        ],
        "RET off, SRT on. At k = 1 there is nothing for MCT to do.",
    )


def _by_labels(config: TablesConfig) -> PaperTable:
    cells: dict[float, MeasuredCell] = {size: (own_labels(size), SRT_ALONE.name) for size in SIZES}
    smallest, paper = min(SIZES), paper_column("mmkb_rag", "5")
    string: MeasuredCell = (STRING, SRT_ALONE.name)
    return PaperTable(
        "Table 5: who labels SRT's documents, and how many labels there are",
        [
            TableRow(f"string search, as many as {own_labels(config.equal_at)}", string, paper["GPT-4o, 2,000 labels"]),
            *(TableRow(own_labels(size), cells[size], paper.get(f"own, {100 * size:g} %")) for size in SIZES),
        ],
        [
            Claim(
                "The model's own labels are better than an external labeller's at equal size",
                ahead(cells[config.equal_at], string),
            ),
            Claim(f"{smallest:.0%} of the labels is better than all of them", ahead(cells[smallest], cells[1.0])),
        ],
        "Trained on SRT alone; RET and MCT off, `k: auto`. The paper's external labeller is GPT-4o with 2,000 labels; "
        f"here it is a search for an accepted answer. A training takes at least {config.min_steps} steps.",
    )
