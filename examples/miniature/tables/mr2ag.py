"""mR²AG's ablations (arXiv 2411.15041) in miniature: Tables 1, 5 and 6, the oracle, and each reflection left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.examples.miniature.tables.claims import Claim, MeasuredCell, PaperTable, TableRow, ahead, paper_column
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.stages import Answering, BuildStage, TablesPlan
from reflectune.examples.staging import PLAIN
from reflectune.inference.reading.ranking import FULL, RANKINGS
from reflectune.inference.sweeps.points import START, Point
from reflectune.retrieval.rerankers.config import RerankerConfig

MODEL = "mr2ag"
ENTRIES = (1, 3, 5, 10)
"""Numbers of retrieved entries in Table 6."""

TUNINGS = {"": "base", "_tuned": "tuned"}
"""The model that reads, by the ending of a baseline's name."""

TAUGHT = (
    " The miniatures were pre-trained to read up to five entries whole: what naive mRAG makes of ten whole says "
    "nothing of the method."
)

NAIVE = {"naive_rag_articles": "whole", "naive_rag_passages": "best passages", "naive_rag_passage": "best passage"}
"""Evidence of the baselines that read N entries."""
RECORD = "trainer_state.json"
"""File of a training with its steps, epochs and tokens."""


def plan(config: TablesConfig) -> TablesPlan:
    """Return a world, an index, data and two fine-tuned models per seed, unless a finished run has them.

    The second model is the baselines': the same base, tuned on the same questions without reflection.
    """
    stages: list[BuildStage] = []
    answering = []
    for number, seed in enumerate(config.seeds):
        finished = config.runs[number] if number < len(config.runs) else ""
        made = Path(config.output, f"seed-{seed}")
        run = Path(finished or made)
        if not finished:
            stages += _stages(config, run, seed)
        plain = run / "plain_checkpoint"
        if not finished or not (plain / "scheme.json").is_file():
            stages += _plain_stages(config, run, made, seed)
            plain = made / "plain_checkpoint"
        folders = (run / "world", run / "index", run / "checkpoint")
        answering.append(Answering(MODEL, seed, *folders, points(config), plain=plain))
    return TablesPlan("mR²AG's ablations in miniature", stages, answering, tables(config, answering))


def depths(config: TablesConfig) -> list[int]:
    """Return the numbers of entries at which mR²AG and the baselines are compared: Table 6's and the config's."""
    return sorted({*ENTRIES, config.top_n})


def points(config: TablesConfig) -> list[Point]:
    """Return every setting of the tables once."""
    return [
        Point(START),
        *(Point(f"ranking={name}", {"ranking": name}) for name in RANKINGS),
        *(Point(f"top_n={count}", {"top_n": count}) for count in depths(config)),
        Point("gate=off", {"gamma": 0.0}),
        Point("relevance=off", {"relevance": False}),
        Point("both=off", {"gamma": 0.0, "relevance": False}),
        Point("oracle", {"entries": "gold"}),
        *(
            Point(f"{name}{ending} top_n={count}", {"pipeline": f"{name}{ending}", "top_n": count})
            for count in depths(config)
            for name in NAIVE
            for ending in TUNINGS
        ),
        *(
            Point(f"{name}{end}", {"pipeline": f"{name}{end}"})
            for name in ("closed_book", "oracle_article")
            for end in TUNINGS
        ),
        *(
            Point(f"oracle_passages{ending}", {"pipeline": f"naive_rag_passages{ending}", "entries": "gold"})
            for ending in TUNINGS
        ),
    ]


def baselines(count: int) -> list[MeasuredCell]:
    """Return the baselines of mR²AG at `count` entries. None reads more entries, or is given the right one.

    They are `evaluate`'s baselines: closed book, naive mRAG of one entry and of `count` entries whole, the best
    passages of these and the best one, each by the base and by the model that was tuned without reflection.
    """
    names = [f"closed_book{ending}" for ending in TUNINGS]
    names += [f"naive_rag_articles{ending} top_n=1" for ending in TUNINGS]
    names += [f"{name}{ending} top_n={count}" for name in NAIVE for ending in TUNINGS]
    return [(MODEL, name) for name in dict.fromkeys(names)]


def tables(config: TablesConfig, answering: Sequence[Answering] = ()) -> list[PaperTable]:
    """Return the tables, and the paper's claims about them."""
    return [_retrieved_and_oracle(config, answering), _rankings(), _entries(config), _reflections()]


def _retrieved_and_oracle(config: TablesConfig, answering: Sequence[Answering]) -> PaperTable:
    count, paper = config.top_n, paper_column("mr2ag", "1")
    several = f"{count} entries" if count > 1 else "1 entry"
    mr2ag, oracle = (MODEL, START), (MODEL, "oracle")
    closed = {ending: (MODEL, f"closed_book{ending}") for ending in TUNINGS}
    oracles = [(MODEL, f"{name}{ending}") for name in ("oracle_article", "oracle_passages") for ending in TUNINGS]
    rows = [
        *_both("closed book", "closed_book{}", paper["LLaVA, without knowledge"], paper["LLaVA-FT, without knowledge"]),
        *(_both("naive mRAG, 1 entry", "naive_rag_articles{} top_n=1") if count > 1 else []),
        *_both(f"naive mRAG, {several} whole", f"naive_rag_articles{{}} top_n={count}", None, paper["LLaVA-mRAG"]),
        *_both(f"best passages of {several}", f"naive_rag_passages{{}} top_n={count}", None, paper["LLaVA-SFR"]),
        *_both(f"best passage of {several}", f"naive_rag_passage{{}} top_n={count}"),
        TableRow(f"mR²AG, {several}", mr2ag, paper["LLaVA-mR²AG"]),
        *_both("naive mRAG, oracle entry whole", "oracle_article{}", None, paper["LLaVA-mRAG, oracle"]),
        *_both("best passages of the oracle entry", "oracle_passages{}", None, paper["LLaVA-SFR, oracle"]),
        TableRow("mR²AG, oracle entry", oracle, paper["LLaVA-mR²AG, oracle"]),
    ]
    return PaperTable(
        "Table 1: retrieved and oracle knowledge",
        rows,
        [
            Claim("mR²AG is ahead of the best baseline on the same retrieval", ahead(mr2ag, *baselines(count))),
            Claim("It is so with oracle entries too", ahead(oracle, *oracles)),
            Claim("Oracle entries are better than retrieved ones", ahead(oracle, mr2ag)),
            Claim("Retrieval is better than the model alone", ahead(mr2ag, *closed.values())),
        ],
        lambda: _what_both_got(config, answering),
    )


def _both(title: str, point: str, base: float | None = None, tuned: float | None = None) -> list[TableRow]:
    """Return the rows of a baseline, by the base and by the tuned model. `{}` in `point` is replaced by the ending."""
    numbers = {"": base, "_tuned": tuned}
    return [
        TableRow(f"{title} ({model})", (MODEL, point.format(ending)), numbers[ending])
        for ending, model in TUNINGS.items()
    ]


def _what_both_got(config: TablesConfig, answering: Sequence[Answering]) -> str:
    """Return the caption of Table 1: the evidence and instruction of all rows, and how long each model was tuned."""
    mr2ag = tuning([tuned_model.checkpoint for tuned_model in answering])
    plain = tuning([tuned_model.plain for tuned_model in answering if tuned_model.plain])
    reranker = " ".join(filter(None, (config.reranker, config.reranker_model)))
    return (
        "All rows answer the same questions with the same instruction, and rows of as many entries have the same hits "
        "of the same index. Naive mRAG reads entries whole, one after the other, as far as the context holds; the best "
        f"{config.passages} passages of them are picked by a reranker ({reranker}), the paper's LLaVA-SFR. mR²AG and "
        "the tuned baselines are the same base, tuned on the same questions (mean over seeds): mR²AG for "
        f"{mr2ag}; the baselines, on what naive mRAG reads of the retrieved entries, for {plain}. The best baseline is "
        "the one that does best on these very questions, which favours it: the claim rests on the lead over each of "
        "them. The paper's order is that of InfoSeek's Wikidata set, where it ran all of these."
    )


def _rankings() -> PaperTable:
    cells: dict[str, MeasuredCell] = {name: (MODEL, f"ranking={name}") for name in RANKINGS}
    return PaperTable(
        "Table 5: rankings of candidate answers",
        [TableRow(name, cell, paper_column("mr2ag", "5")[name]) for name, cell in cells.items()],
        [
            Claim(
                "A random candidate is the worst", [s for name in RANKINGS for s in ahead(cells[name], cells["random"])]
            ),
            Claim("The product of all three is the best", ahead(cells[FULL], *cells.values())),
            Claim("S_rel is the best single score", ahead(cells["rel"], cells["ret"], cells["ans"])),
        ],
        "`random` is the exact expectation; `ret` shares between the passages of one entry.",
    )


def _entries(config: TablesConfig) -> PaperTable:
    cells: dict[int, MeasuredCell] = {count: (MODEL, f"top_n={count}") for count in depths(config)}
    paper = paper_column("mr2ag", "6")
    rows = []
    for count, cell in cells.items():
        rows.append(TableRow(f"{count}: mR²AG", cell, paper.get(str(count))))
        for name, evidence in NAIVE.items():
            rows += _both(f"{count}: naive mRAG, {evidence}", f"{name}{{}} top_n={count}")
    return PaperTable(
        "Table 6: number of retrieved entries",
        rows,
        [
            *(
                Claim(f"At {count}, mR²AG is ahead of the best baseline", ahead(cell, *baselines(count)))
                for count, cell in cells.items()
            ),
            Claim("More entries are better from 1 to 5", [*ahead(cells[3], cells[1]), *ahead(cells[5], cells[3])]),
            Claim("10 are better still", ahead(cells[10], cells[5])),
            Claim("but bring less than going from 1 to 5", [{cells[5]: 2.0, cells[1]: -1.0, cells[10]: -1.0}]),
        ],
        "The paper's ranks and ours are of mR²AG's rows. The best baseline is closed book, naive mRAG at "
        "1 entry, or a row of as many entries; Table 1 says what all were given. The tuned baselines were tuned on "
        f"{config.top_n} entries." + (TAUGHT if config.base_model.startswith("miniature/") else ""),
    )


def _reflections() -> PaperTable:
    mr2ag = (MODEL, START)
    without = {name: (MODEL, f"{name}=off") for name in ("gate", "relevance", "both")}
    return PaperTable(
        "The two reflections, each left out",
        [
            TableRow("mR²AG", mr2ag),
            TableRow("without Retrieval-Reflection: always retrieve", without["gate"]),
            TableRow("without Relevance-Reflection: every passage is relevant", without["relevance"]),
            TableRow("without both", without["both"]),
        ],
        [
            Claim("Retrieval-Reflection keeps visual questions right", ahead(mr2ag, without["gate"]), "visual"),
            Claim("Relevance-Reflection finds the evidence", ahead(mr2ag, without["relevance"])),
        ],
        "The paper argues for both (§3.1) and has no table of this.",
        visual=True,
    )


def _stages(config: TablesConfig, run: Path, seed: int) -> list[BuildStage]:
    """Return the quick start's stages, without the baselines' and the evaluation."""
    world, index, data, checkpoint = (run / name for name in ("world", "index", "reflection", "checkpoint"))
    indexed = {"knowledge": world / "knowledge", "encoder": config.encoder, "output": index}
    built = {"dataset": world, "index": index, "output": data, "seed": seed}
    trained = {
        "model": config.base_model,
        "train_data": data,
        "output_dir": checkpoint,
        "seed": seed,
        "epochs": config.epochs,
        "device": config.training_device,
    }
    made = {"output": world, "seed": seed}
    return [
        BuildStage(f"world, seed {seed}", "examples.miniature.build_world", "", made, world),
        BuildStage(f"index, seed {seed}", "retrieval.build_index", "", indexed, index),
        BuildStage(f"data, seed {seed}", "data_builders.build_mr2ag", "mr2ag_data.yaml", built, data),
        BuildStage(f"train, seed {seed}", "train.sft", "sft.yaml", trained, checkpoint),
    ]


def _plain_stages(config: TablesConfig, run: Path, made: Path, seed: int) -> list[BuildStage]:
    """Return the stages of the baselines' model: mR²AG-IT's questions, answered from naive mRAG's evidence.

    Args:
        config: The settings.
        run: Folder with the world, the index and mR²AG-IT.
        made: Folder to build in.
        seed: Seed of the training.
    """
    plain, checkpoint = made / "plain", made / "plain_checkpoint"
    data = {
        "dataset": run / "world",
        "reflection": run / "reflection",
        "index": run / "index",
        "output": plain,
        "top_n": config.top_n,
        "passages": config.passages,
        "device": config.device,
        **{name: getattr(config, name) for name in RerankerConfig.model_fields},
    }
    trained = {
        **PLAIN,
        "model": config.base_model,
        "train_data": plain,
        "output_dir": checkpoint,
        "seed": seed,
        "device": config.training_device,
    }
    return [
        BuildStage(f"plain data, seed {seed}", "data_builders.build_plain", "plain_data.yaml", data, plain),
        BuildStage(f"plain train, seed {seed}", "train.sft", "sft.yaml", trained, checkpoint),
    ]


def tuning(folders: Sequence[Path]) -> str:
    """Return the means over checkpoints: `1,472 steps, 8.0 passes over the questions, 6.1 million tokens`.

    Tokens include passages. They are left out if a training did not count them.
    """
    if not all((folder / RECORD).is_file() for folder in folders):
        return "a number of steps that is not recorded"
    states = [read_json(folder / RECORD, "the record of a training") for folder in folders]
    steps, passes, tokens = (
        [state.get(name) or 0 for state in states] for name in ("global_step", "epoch", "num_input_tokens_seen")
    )
    text = f"{statistics.mean(steps):,.0f} steps, {statistics.mean(passes):.1f} passes over the questions"
    return f"{text}, {statistics.mean(tokens) / 1e6:.1f} million tokens" if all(tokens) else text
