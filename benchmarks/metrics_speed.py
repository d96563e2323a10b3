"""Time to score InfoSeek's whole validation set officially: 73,620 predictions, on one core.

    python benchmarks/metrics_speed.py

Questions and predictions are made up, in the true numbers (18,656 of unseen questions, 54,964 of unseen entities) and
with ten accepted answers or a range each. Reading the prediction file is timed too; the promise is 10 s for both.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from reflectune.core.types import AnswerType, Question
from reflectune.metrics.reporting.score_table import compare, table
from reflectune.metrics.scoring.predictions import read_predictions
from reflectune.metrics.scoring.scoring import join, score

SPLITS = {"val_unseen_question": 18_656, "val_unseen_entity": 54_964}
ALIASES, PROMISED_SECONDS = 10, 10.0
WORDS = "the Republic of San Marino mountain river Kingdom people's north bank Saint-Étienne 1,204 order family".split()


def make_questions() -> list[Question]:
    draw = random.Random(0)
    splits = [split for split, count in SPLITS.items() for _ in range(count)]
    return [_question(draw, number, split) for number, split in enumerate(splits)]


def write_predictions(path: Path, questions: list[Question], seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for question in questions:
            right = question.answers[draw.randrange(ALIASES)] if question.answers else f"about {question.range} metres"
            answer = right if draw.random() < 0.3 else _phrase(draw)
            file.write(json.dumps({"data_id": question.id, "prediction": answer}) + "\n")


def main() -> None:
    questions = make_questions()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("first.jsonl", "second.jsonl")]
        for seed, path in enumerate(paths):
            write_predictions(path, questions, seed)
        started = time.perf_counter()
        file = read_predictions(paths[0])
        read = time.perf_counter()
        scored = score(join(file.rows, questions, "official"), "infoseek", "official")
        done = time.perf_counter()
        scores = table(scored, seed=0)
        with_intervals = time.perf_counter()
        other = score(join(read_predictions(paths[1]).rows, questions, "official"), "infoseek", "official")
        second = time.perf_counter()
        compare(scored, other, seed=0)
        compared = time.perf_counter()
    print(f"{len(questions):,} predictions; the official script would print {scores['official_report']['final_score']}")
    print(f"read and checked        {read - started:6.2f} s")
    print(f"scored officially       {done - read:6.2f} s   (promised: {PROMISED_SECONDS:g} s with reading)")
    print(f"95 % intervals          {with_intervals - done:6.2f} s")
    print(f"paired with another run {compared - second:6.2f} s")


def _question(draw: random.Random, number: int, split: str) -> Question:
    kind: AnswerType = draw.choices(("string", "time", "numerical"), weights=(70, 15, 15))[0]
    identity = f"infoseek_val_{number:08d}"
    if kind == "numerical":
        low = draw.uniform(1, 1000)
        return Question(identity, "", "How tall is it?", range=(low, low * 1.2), answer_type=kind, split=split)
    answers = tuple(_phrase(draw) for _ in range(ALIASES))
    return Question(identity, "", "What is it?", answers=answers, answer_type=kind, split=split)


def _phrase(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))


if __name__ == "__main__":
    main()
