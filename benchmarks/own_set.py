"""A set as a user would bring one: pictures by other hands than the gallery's, another encyclopedia, other questions.

    python benchmarks/own_set.py --output my_set

Emoji of Twitter are what is asked about, emoji of EmojiOne illustrate the articles, and the articles are entries of the
Collaborative International Dictionary of English (Webster's of 1913, brought up to date): what a thing is, Latin names
and families of animals and plants, and what its name is akin to in other languages. Writes `questions.jsonl`,
`knowledge.jsonl` and `images/` as docs/own_data.md describes them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from reflectune.core.images import open_image, save_jpeg
from reflectune.core.paths import user_cache
from reflectune.examples.pocket.models.packages import Package, unpack

TWITTER = Package(
    "npm",
    "emoji-datasource-twitter",
    "16.0.0",
    "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    "CC-BY-4.0",
)
EMOJIONE = Package(
    "npm", "emojione", "2.2.7", "5fe002738e6e276f49ac37783799d2feab99a6131fdedccfa56569d745449ae5", "CC-BY-4.0"
)
DICTIONARY = Package(
    "debian",
    "dict-gcide",
    "0.48.5+nmu2",
    "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
    "GPL-3.0-or-later",
)
PAGES = "usr/share/dictd/gcide.dict.dz"
QUESTION_ART, ARTICLE_ART, EMOJI = "package/img/twitter/64", "package/assets/png", "package/emoji.json"
"""Where the packages have pictures, and EmojiOne names."""
CATEGORIES = ("nature", "food", "travel", "objects", "activity")
"""Of EmojiOne: those whose emoji show things."""
DISTRACTORS = 3000
"""Entries without a picture beside those with one."""

LANGUAGES = {
    "AS.": "Anglo-Saxon",
    "D.": "Dutch",
    "G.": "German",
    "Sw.": "Swedish",
    "Dan.": "Danish",
    "Icel.": "Icelandic",
    "F.": "French",
    "L.": "Latin",
    "Gr.": "Greek",
    "It.": "Italian",
    "Sp.": "Spanish",
    "OHG.": "Old High German",
    "OE.": "Old English",
    "OF.": "Old French",
}
"""How the dictionary writes languages."""
QUESTION_LANGUAGES = ("German", "Dutch", "Swedish", "Danish", "French", "Italian", "Spanish", "Greek", "Icelandic")
QUESTIONS = {
    "latin": ("Which Latin name do naturalists use for what is shown?", "By what scientific name is this known?"),
    "family": ("Name the scientific family of what this emoji shows.", "Which family is it counted among by science?"),
    "word": (
        "Which {language} word is the English name of this akin to?",
        "What is the word for this in {language}, according to its origin?",
    ),
    "name": ("Say in one or two words what the emoji depicts.", "Which thing has been drawn here?"),
}


@dataclass(frozen=True)
class Article:
    """An entry of the dictionary.

    Attributes:
        word: Its headword.
        meaning: Its definitions, paragraph by paragraph, with blank lines between.
        origin: Its etymology, languages written out; "" if it has none.
        latin: Scientific names that it gives.
        families: Names of families that it gives.
        words: By language, what its origin names.
    """

    word: str
    meaning: str
    origin: str
    latin: tuple[str, ...]
    families: tuple[str, ...]
    words: dict[str, str]

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What can be asked of it: the kind of question, its language, the answer."""
        facts = [("latin", "", self.latin[0])] if len(self.latin) == 1 else []
        facts += [("family", "", self.families[0])] if len(self.families) == 1 else []
        return facts + [
            ("word", language, word) for language, word in self.words.items() if language in QUESTION_LANGUAGES
        ]


def read_dictionary(path: Path) -> Iterator[Article]:
    """The nouns of the dictionary that have a meaning."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    for entry in re.split(r"\n(?=\S[^\n]* \\)", text):
        head = re.match(r"(?P<word>[A-Za-z][A-Za-z \-]+?) \\[^\\]*\\[^,;\n]*,\s+n\.", entry)
        if head:
            article = parse(head["word"], entry[head.end() :])
            if len(article.meaning) > 40:
                yield article


def parse(word: str, body: str) -> Article:
    """An entry, of its headword and what comes behind `n.`."""
    body = re.sub(r"\[(?:1913 Webster|WordNet 1\.5|PJC|AS|Century Dict\.[^\]]*|[^\]\n]*Webster[^\]]*)\]", "", body)
    origin = ""
    if match := re.match(r"[^\[]{0,60}\[(?P<origin>(?:[^\[\]]|\[[^\]]*\])+)\]", body, re.DOTALL):
        origin, body = match["origin"], body[match.end() :]
    names = re.findall(r"\{([A-Z][a-z]+ [a-z]+)\}", " ".join(body.split()))
    families = re.findall(r"\{([A-Z][a-z]+(?:id\[ae\]|idae|ace\[ae\]|aceae))\}", body)
    origin = plain(origin)
    for short, language in LANGUAGES.items():
        origin = re.sub(rf"(?<![A-Za-z.]){re.escape(short)}(?= [a-z'])", language, origin)
    words: dict[str, str] = {}
    for language in LANGUAGES.values():
        if match := re.search(rf"(?<!Old )(?<!High ){language} ([a-zäöüåæøéèêàáíóúñç]{{3,}})\b", origin):
            words[language] = match[1]
    latin, family_names = (tuple(dict.fromkeys(map(plain, listed))) for listed in (names, families))
    paragraphs = (plain(paragraph) for paragraph in re.split(r"\n\s*\n", body))
    return Article(word.lower(), "\n\n".join(filter(None, paragraphs)), origin, latin, family_names, words)


def plain(text: str) -> str:
    """Text without the dictionary's marks: `{Elephas}`, `[^e]`, `(Zool.)`, and who is quoted."""
    for mark, letters in {"[ae]": "ae", "[oe]": "oe", "[eth]": "dh", "[thorn]": "th", "[root]": ""}.items():
        text = text.replace(mark, letters)
    text = re.sub(r"\[[^\w\[\]]*([A-Za-z])[^\w\[\]]*\]", r"\1", text)  # a letter with an accent
    text = re.sub(r'\[["\'`=.^~,]*([a-z]{1,2})\]', r"\1", text)
    text = re.sub(r"\((?:[A-Z][a-z\"\[\]o]*\.(?: &)? ?)+\)|[{}`\\]|\[[^\]]*\]", "", text)
    text = re.sub(r"--[A-Z][a-z]+\.(?: \([^)]*\))?", "", text)
    return re.sub(r" ([,.;:])", r"\1", " ".join(text.split())).strip(" ;,")


def on_white(path: Path, output: Path) -> None:
    """Save a picture that has transparent parts as a user would who has only JPEG."""
    picture = open_image(path, "RGBA").resize((160, 160), Image.Resampling.LANCZOS)
    sheet = Image.new("RGBA", (192, 192), "white")
    sheet.alpha_composite(picture, (16, 16))
    save_jpeg(sheet.convert("RGB"), output)


def make(output: Path, seed: int) -> dict[str, int]:
    """Write the set; how many there are of what."""
    cache = user_cache("own_set")
    twitter, emojione, dictionary = cache / "twitter", cache / "emojione", cache / "dictionary"
    unpack(TWITTER, lambda name: name.startswith(f"{QUESTION_ART}/"), twitter)
    unpack(EMOJIONE, lambda name: name.startswith((f"{ARTICLE_ART}/", EMOJI)), emojione)
    unpack(DICTIONARY, lambda name: name == PAGES, dictionary)
    pictures: dict[str, tuple[Path, Path]] = {}  # of the question and of the article, by what they show
    for emoji in json.loads((emojione / EMOJI).read_text(encoding="utf-8")).values():
        files = (twitter / QUESTION_ART / f"{emoji['unicode']}.png", emojione / ARTICLE_ART / f"{emoji['unicode']}.png")
        if emoji["category"] in CATEGORIES and all(file.is_file() for file in files):
            pictures[emoji["name"].lower()] = files
    articles: dict[str, Article] = {}
    for article in read_dictionary(dictionary / PAGES):  # of homonyms the one that there is most to ask about
        known = articles.get(article.word)
        if known is None or (len(article.facts), len(article.meaning)) > (len(known.facts), len(known.meaning)):
            articles[article.word] = article
    rng = random.Random(seed)
    pictured = sorted(name for name in pictures if name in articles)
    others = rng.sample(sorted(articles.keys() - set(pictured)), DISTRACTORS)
    (output / "images").mkdir(parents=True)
    for name in pictured:
        for picture, kind in zip(pictures[name], (".asked", ""), strict=True):
            on_white(picture, output / f"images/{name}{kind}.jpg")
    with (output / "knowledge.jsonl").open("w", encoding="utf-8") as file:
        for name in sorted([*pictured, *others]):
            article = articles[name]
            sections = [{"title": "Meaning", "text": article.meaning}]
            sections += [{"title": "Origin of the word", "text": article.origin}] if article.origin else []
            row = {"id": name, "title": name.capitalize(), "sections": sections}
            row |= {"image": f"images/{name}.jpg"} if name in pictures else {}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    rows = list(questions([articles[name] for name in pictured], rng))
    with (output / "questions.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    splits = [str(row["split"]) for row in rows]
    return {"articles": len(pictured) + len(others), "pictured": len(pictured)} | {
        split: splits.count(split) for split in sorted(set(splits))
    }


def questions(articles: list[Article], rng: random.Random) -> Iterator[dict[str, object]]:
    """Questions about each picture; three things in ten are unseen, and one fact in five of the others."""
    for article in articles:
        unseen = rng.random() < 0.3
        for kind, language, answer in [*article.facts, ("name", "", article.word)]:
            split = "val_unseen_entity" if unseen else "val_unseen_question" if rng.random() < 0.2 else "train"
            wording = rng.choice(QUESTIONS[kind]).format(language=language)
            row = {
                "id": f"{article.word} {kind} {language}".strip(),
                "image": f"images/{article.word}.asked.jpg",
                "question": wording,
                "answers": [answer],
                "split": split,
                "requires_retrieval": kind != "name",
            }
            yield row | ({"entity_ids": [article.word]} if kind != "name" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--seed", type=int, default=0, help="of splits, wordings and distractors")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} is there already; name a new folder")
    for what, count in make(arguments.output, arguments.seed).items():
        print(f"{what}: {count:,}")


if __name__ == "__main__":
    main()
