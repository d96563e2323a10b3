"""The set of other packages: what is read off a dictionary's page, and that its files fit together."""

import gzip
import json
from pathlib import Path

from PIL import Image

from reflectune.examples.pocket.dictionary_set import PACKAGES, make, parse

PAGE = """Zorl \\Zorl\\ (z[^o]rl), n. [OE. zorle, AS. zorla; akin to D. zoorl, G.
   z["o]rl, OHG. zurila, F. zorelle.]
   1. (Zo["o]l.) A bird of the family {Zorlid[ae]} ({Zorla
      borealis}), which sings at night and sleeps.
      [1913 Webster]
Mib \\Mib\\ (m[i^]b), n.
   A game in which small balls are thrown at others in a ring.
"""


def test_an_entry_is_read_without_its_marks() -> None:
    article = parse("Zorl", PAGE.split(", n.")[1].split("Mib")[0])
    assert article.word == "zorl"
    assert article.meaning == "1. A bird of the family Zorlidae (Zorla borealis), which sings at night and sleeps."
    assert article.origin.startswith("OE. zorle, AS. zorla; akin to Dutch zoorl, German zorl, OHG. zurila, French")
    names = (("latin", "", "Zorla borealis"), ("family", "", "Zorlidae"), ("word", "Dutch", "zoorl"))
    assert article.facts == (*names, ("word", "German", "zorl"), ("word", "French", "zorelle"))


def test_each_fact_is_asked_once_about_an_image_that_is_not_the_articles(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "set"
    images = (
        "clip_art/usr/share/openclipart/png/animals/birds/zorl_by_anna_01.png",
        "twitter/package/img/twitter/64/1.png",
    )
    for name in (*images, "emojione/package/assets/png/1.png"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGBA", (40, 20), "red").save(source / name)
    emoji = {"z": {"name": "zorl face", "unicode": "1", "category": "nature"}}
    (source / "emojione/package/emoji.json").write_text(json.dumps(emoji))
    dictionary = source / "dictionary" / PACKAGES["dictionary"][-1]
    dictionary.parent.mkdir(parents=True)
    dictionary.write_bytes(gzip.compress(PAGE.encode()))
    counts = make(output, source, seed=0)
    assert (counts["articles"], counts["with images"], counts["asked about"]) == (2, 1, 1)
    rows = [json.loads(line) for line in (output / "questions.jsonl").read_text().splitlines()]
    knowledge = {row["id"]: row for row in map(json.loads, (output / "knowledge.jsonl").read_text().splitlines())}
    assert knowledge["zorl"]["image"] == "images/zorl.2.jpg"
    assert "image" not in knowledge["mib"]
    assert len(rows) == len({row["id"] for row in rows}) == 6
    for row in rows:
        assert row["image"] in ("images/zorl.0.jpg", "images/zorl.1.jpg")
        assert (output / row["image"]).is_file()
        stated = " ".join(section["text"] for section in knowledge["zorl"]["sections"])
        assert row["answers"][0] in stated or not row["requires_retrieval"]
    assert len({row["split"] == "val_unseen_entity" for row in rows}) == 1  # an unseen thing is unseen in all questions
