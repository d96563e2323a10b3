"""mR²AG's ablations (arXiv 2411.15041) in miniature: Tables 1, 5 and 6, the oracle, and each reflection left out."""

from __future__ import annotations

from pathlib import Path

from reflectune.inference.analysis.claims import Claim, Row, Table, ahead
from reflectune.inference.analysis.plan import Answering, Plan
from reflectune.inference.analysis.points import START, Point
from reflectune.inference.analysis.stages import Stage
from reflectune.inference.analysis.tables_config import TablesConfig
from reflectune.inference.ranking import FULL, PAPER_TABLE_5, RANKINGS

MODEL = "mr2ag"
ENTRIES = {1: 29.7, 3: 37.6, 5: 40.2, 10: 42.8}
"""Table 6: entries, and the paper's score on InfoSeek's validation split."""

MINUTES = {"world": 0.1, "index": 0.1, "data": 0.1, "train": 4.0, "answer": 2.0}
"""On two idle cores."""

POINTS = (
    Point(START),
    *(Point(f"ranking={name}", {"ranking": name}) for name in RANKINGS),
    *(Point(f"top_n={count}", {"top_n": count}) for count in ENTRIES),
    Point("gate=off", {"gamma": 0.0}),
    Point("relevance=off", {"relevance": False}),
    Point("both=off", {"gamma": 0.0, "relevance": False}),
    Point("oracle", {"entries": "gold"}),
    *(
        Point(name, {"pipeline": name})
        for name in ("closed_book", "naive_rag_article", "naive_rag_passages", "oracle_article")
    ),
)


def plan(config: TablesConfig) -> Plan:
    """What the tables need: a world, an index, data and a fine-tuned model per seed, unless a run has them."""
    stages: list[Stage] = []
    answering = []
    for number, seed in enumerate(config.seeds):
        given = config.runs[number] if number < len(config.runs) else ""
        run = Path(given or Path(config.output, f"seed-{seed}"))
        if not given:
            stages += _stages(config, run, seed)
        answering.append(
            Answering(MODEL, seed, run / "world", run / "index", run / "checkpoint", POINTS, estimate=MINUTES["answer"])
        )
    return Plan("mR²AG's ablations in miniature", stages, answering, tables())


def tables() -> list[Table]:
    """The tables, and what the paper says of them."""
    mr2ag, naive = (MODEL, START), (MODEL, "naive_rag_article")
    by_rank = {name: (MODEL, f"ranking={name}") for name in RANKINGS}
    by_count = {count: (MODEL, f"top_n={count}") for count in ENTRIES}
    oracle, oracle_naive = (MODEL, "oracle"), (MODEL, "oracle_article")
    without = {name: (MODEL, f"{name}=off") for name in ("gate", "relevance", "both")}
    return [
        Table(
            "Table 1: retrieved and oracle knowledge",
            [
                Row("closed book (base)", (MODEL, "closed_book")),
                Row("naive mRAG, whole articles (base)", naive),
                Row("naive mRAG, best passages (base)", (MODEL, "naive_rag_passages")),
                Row("mR²AG", mr2ag, 40.2),
                Row("naive mRAG, oracle article (base)", oracle_naive),
                Row("mR²AG, oracle entry", oracle, 60.0),
            ],
            [
                Claim("mR²AG is ahead of naive mRAG on the same retrieval", ahead(mr2ag, naive)),
                Claim("It is so with oracle entries too", ahead(oracle, oracle_naive)),
                Claim("Oracle entries are better than retrieved ones", ahead(oracle, mr2ag)),
                Claim("Looking up is better than the model alone", ahead(mr2ag, (MODEL, "closed_book"))),
            ],
            "The paper's numbers are InfoSeek's validation split; its LLaVA-mRAG was not run on it.",
        ),
        Table(
            "Table 5: rankings of candidate answers",
            [Row(name, by_rank[name], 100 * PAPER_TABLE_5[name]["overall"]) for name in RANKINGS],
            [
                Claim(
                    "A random candidate is the worst",
                    [s for n in RANKINGS for s in ahead(by_rank[n], by_rank["random"])],
                ),
                Claim("The product of all three is the best", ahead(by_rank[FULL], *by_rank.values())),
                Claim("S_rel is the best single score", ahead(by_rank["rel"], by_rank["ret"], by_rank["ans"])),
            ],
            "`random` is the exact expectation; `ret` shares between the passages of one entry.",
        ),
        Table(
            "Table 6: number of retrieved entries",
            [Row(str(count), by_count[count], paper) for count, paper in ENTRIES.items()],
            [
                Claim(
                    "More entries are better from 1 to 5",
                    [*ahead(by_count[3], by_count[1]), *ahead(by_count[5], by_count[3])],
                ),
                Claim("10 are better still", ahead(by_count[10], by_count[5])),
                Claim(
                    "but bring less than going from 1 to 5",
                    [{by_count[5]: 2.0, by_count[1]: -1.0, by_count[10]: -1.0}],
                ),
            ],
        ),
        Table(
            "The two reflections, each left out",
            [
                Row("mR²AG", mr2ag),
                Row("without Retrieval-Reflection: always look up", without["gate"]),
                Row("without Relevance-Reflection: every passage is relevant", without["relevance"]),
                Row("without both", without["both"]),
            ],
            [
                Claim("Retrieval-Reflection keeps visual questions right", ahead(mr2ag, without["gate"]), "visual"),
                Claim("Relevance-Reflection finds the evidence", ahead(mr2ag, without["relevance"])),
            ],
            "The paper argues for both (§3.1) and has no table of this.",
            visual=True,
        ),
    ]


def _stages(config: TablesConfig, run: Path, seed: int) -> list[Stage]:
    """The quick start, stage by stage, without its evaluation."""
    world, index, data, checkpoint = (run / name for name in ("world", "index", "reflection", "checkpoint"))
    training = {
        "model": config.base_model,
        "train_data": data,
        "output_dir": checkpoint,
        "seed": seed,
        "epochs": config.epochs,
        "device": "cpu" if config.device == "cpu" else "auto",
    }
    return [
        Stage(
            f"world, seed {seed}",
            "data_builders.build_world",
            "miniature/world.yaml",
            {"output": world, "seed": seed},
            world,
            MINUTES["world"],
        ),
        Stage(
            f"index, seed {seed}",
            "retrieval.build_index",
            "miniature/index.yaml",
            {"knowledge": world / "knowledge", "encoder": config.encoder, "output": index},
            index,
            MINUTES["index"],
        ),
        Stage(
            f"data, seed {seed}",
            "data_builders.build_mr2ag",
            "miniature/mr2ag_data.yaml",
            {"dataset": world, "index": index, "encoder": config.encoder, "output": data, "seed": seed},
            data,
            MINUTES["data"],
        ),
        Stage(
            f"fine-tuning, seed {seed}",
            "train.sft",
            f"miniature/mr2ag_{config.method}.yaml",
            training,
            checkpoint,
            MINUTES["train"],
        ),
    ]
