"""Encyclopedic-VQA: questions about iNaturalist's species and GLDv2's landmarks, and the knowledge base.

The knowledge base (`encyclopedic_kb_wiki.json`, or its zip file) is streamed. EchoSight's 100k subsets for E-VQA and
InfoSeek have the same format. All sections are kept, since E-VQA's `evidence_section_id` counts them. The first is the
article's opening, with the article's title as its heading.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, MissingImage, Reject, stop
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import files_by_role, read_csv
from reflectune.data_builders.readers.images import ImageFolder, address_path
from reflectune.data_builders.readers.json_documents import read_json_array, read_json_dict
from reflectune.data_builders.readers.rows import Placed, SourceRow, each, integer, one_of, placed, text, texts
from reflectune.retrieval.retrievers.ranked_retriever import Ranking

read_source = read_json_dict

ROLES = ("questions", "inaturalist", "lens")
_TYPES = ("templated", "automatic", "multi_answer", "2_hop")
DATASETS = ("inaturalist", "landmarks")
_SEPARATOR = "|"
_CARRIED = ("question_type", "dataset_name", "dataset_category_id", "question_original", "wikipedia_url_used_in_train")


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    images_per_question: int = 1,
) -> Iterator[Placed[Question]]:
    """Yield the questions of one split, in the order of the CSV file.

    `{train,val,test}.csv` of google-research/encyclopedic_vqa has the columns `question`, `answer`,
    `dataset_image_ids`, `dataset_name` (`inaturalist`, `landmarks`), `dataset_category_id`, `question_type`
    (`templated`, `automatic`, `multi_answer`, `2_hop`), `wikipedia_url`, `wikipedia_title`, `evidence`,
    `evidence_section_id`, `evidence_section_title`, `encyclopedic_vqa_split`, `question_original` and
    `wikipedia_url_used_in_train`. A `|` separates the answers, up to five image ids, and for `2_hop` the two URLs and
    the two sections. For `multi_answer` each answer is a list separated by `&&`.

    The n-th record, from 0, gets the id `evqa_<split>_<n, eight digits>`; `Question.meta["row"]` is n (EchoSight's
    `E-VQA_n`). Ids of entities are their URLs, as in the knowledge base.

    An image of `landmarks` is found by its id. An image of `inaturalist` is found by its file name in iNaturalist
    2021's own json, `images[{id, file_name}]`: `train.json` for train, `val.json` for val and test.

    Args:
        source: The CSV file, or a mapping of the roles `questions` (the CSV file) and `inaturalist` (that json) to
            files. `evqa_lens` reads the role `lens`.
        images: Folder with both sets of images: `inaturalist/{train,val}/…` and `landmarks/0/1/2/….jpg`.
        images_per_question: Make a question of each of a row's first images; the ids of the second and later ones end
            in `-2`, `-3`, …, and have it as `meta["row_image"]`. The official scores are over the first.

    Raises:
        UserError: A role is unknown or missing, or `inaturalist` has no `images`.
    """
    if images_per_question < 1:
        raise UserError(f"`images_per_question` is {images_per_question}; it must be 1 or more")
    files = files_by_role(source, ROLES, "Encyclopedic-VQA")
    names = file_names(files, images_per_question) if images.root is not None else {}
    make = partial(_questions, split=split, images=images, names=names, count=images_per_question)
    for row_questions, line in placed(_numbered(files["questions"], reject), make, reject):
        yield from ((question, line) for question in row_questions)


def _numbered(path: Path, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    """Yield the records with their numbers as the field `row`; a rejected record has a number, too."""
    dropped = 0

    def drop(error: BadRow) -> None:
        nonlocal dropped
        dropped += 1
        reject(error)

    for number, (line, row) in enumerate(read_csv(path, drop)):
        row["row"] = number + dropped
        yield line, row


def file_names(files: Mapping[str, Path], count: int) -> dict[str, str]:
    """Return the file names of the iNaturalist images that the questions name; those of all would take 600 MB.

    Args:
        files: The roles `questions` and `inaturalist`, see `questions`.
        count: Images per row.

    Raises:
        UserError: The questions name such images, and `inaturalist` is not given.
    """
    rows = (row for _, row in read_csv(files["questions"], lambda error: None))
    numbers = {
        image_id for row in rows if row.get("dataset_name") == "inaturalist" for image_id in _image_ids(row)[:count]
    }
    if not numbers:
        return {}
    if "inaturalist" not in files:
        raise UserError(
            f"{files['questions']} names images of iNaturalist 2021 by number; give their file names as the role "
            "`inaturalist`: iNaturalist's train.json for train, val.json for val and test"
        )
    return inaturalist_names(files["inaturalist"], numbers)


def inaturalist_names(path: Path, numbers: Collection[str]) -> dict[str, str]:
    """Return the file names of images by number, from iNaturalist 2021's own json.

    Raises:
        UserError: The file has no `images`.
    """
    names = {}
    for _, image in read_json_array(path, prefix="images.item"):
        if (number := str(integer(image, "id"))) in numbers:
            names[number] = text(image, "file_name")
    return names


def _questions(
    row: SourceRow, *, split: str, images: ImageFolder, names: Mapping[str, str], count: int
) -> list[Question]:
    row["id"], row.id_field = f"evqa_{split}_{row['row']:08d}", "id"
    kind = one_of(row, "question_type", _TYPES)
    image_ids = _image_ids(row)[:count]
    if not image_ids:
        raise row.bad("dataset_image_ids", "is empty", "a question has an image: leave the row out")
    entities = tuple(_parts(text(row, "wikipedia_url"))) if kind == "2_hop" else (text(row, "wikipedia_url"),)
    carried = {name: value for name in _CARRIED if (value := text(row, name, default=""))}
    meta = {"row": str(row["row"]), **carried, **({"two_hop": "yes"} if kind == "2_hop" else {})}
    common: dict[str, Any] = {
        "text": text(row, "question"),
        "answers": tuple(answer for answer in text(row, "answer").split(_SEPARATOR) if answer.strip()),
        "answer_type": "multi_answer" if kind == "multi_answer" else "string",
        "split": split,
        "requires_retrieval": True,
        "entity_ids": entities,
        "evidence": _evidence(row, entities),
    }
    return [
        Question(
            id=row.id if number == 1 else f"{row.id}-{number}",
            image=image(row, image_id, images, names),
            meta=meta if number == 1 else {**meta, "row_image": str(number)},
            **common,
        )
        for number, image_id in enumerate(image_ids, 1)
    ]


def image(row: SourceRow, image_id: str, images: ImageFolder, names: Mapping[str, str]) -> str:
    """Return the path of one of a row's images; "" if `images` has no root.

    Args:
        row: The row, with `dataset_name`.
        image_id: One of its `dataset_image_ids`.
        images: Folder with both sets of images.
        names: See `file_names`.

    Raises:
        BadRow: The image's data set is unknown, or the image is missing.
    """
    if images.root is None:
        return ""
    if one_of(row, "dataset_name", DATASETS) == "landmarks":
        landmark_path = images.find_for(row, "dataset_image_ids", f"landmarks/{'/'.join(image_id[:3])}/{image_id}.jpg")
        return landmark_path or images.path(row, "dataset_image_ids", image_id)
    if image_id not in names:
        problem = f"image {image_id} is not in the json of iNaturalist"
        fix = "train has its images in iNaturalist's train.json, val and test in val.json"
        raise MissingImage(row.file, row.line, row.id, "dataset_image_ids", problem, fix)
    path = f"inaturalist/{names[image_id]}"
    return images.find_for(row, "dataset_image_ids", path) or images.path(row, "dataset_image_ids", names[image_id])


def _evidence(row: SourceRow, entities: tuple[str, ...]) -> tuple[Evidence, ...]:
    """Return the evidence sections, one per article; none if the row names none."""
    joined = text(row, "evidence_section_id", default="")
    if not joined:
        return ()
    parts = [part.strip() for part in joined.split(_SEPARATOR)]
    if len(parts) != len(entities):
        problem = f"is {joined!r} for {len(entities)} articles"
        raise row.bad("evidence_section_id", problem, "it should have a section for each URL: download the file again")
    sections = (SourceRow({"id": row.id, "evidence_section_id": part}, row.file, row.line) for part in parts)
    section_indices = [integer(section, "evidence_section_id", default=-1) for section in sections]
    return tuple(Evidence(entity, index) for entity, index in zip(entities, section_indices, strict=True) if index >= 0)


def _image_ids(row: SourceRow) -> list[str]:
    return _parts(row.get("dataset_image_ids") or "")


def _parts(joined: str) -> list[str]:
    return [part.strip() for part in joined.split(_SEPARATOR) if part.strip()]


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a member of the dict.

    Its images are at `address_path` of their URLs below the folder, or are named as the last part of their URLs.
    Missing images are left out: about 1.25 M of them are gone from the web.
    """
    titles, bodies = _strings(row, "section_titles"), _strings(row, "section_texts")
    if len(titles) != len(bodies):
        problem = f"has {len(bodies)} texts for {len(titles)} titles"
        raise row.bad("section_texts", problem, "the two lists must be of one length: download the file again")
    field = "image_urls"
    urls = texts(row, field, default=(), empty=True)
    paths = (
        images.exact(row, field, address_path(row, field, url), respell=False)
        or images.find_for(row, field, unquote(url).rsplit("/", 1)[-1])
        for url in urls
    )
    return Entry(
        id=text(row, "key"),
        title=text(row, "title"),
        url=text(row, "url", default=row["key"]),
        summary=bodies[0].strip() if bodies else "",
        images=tuple(dict.fromkeys(path for path in paths if path)) if images.root else (),
        sections=tuple(map(Section, titles, bodies)),
    )


def images(row: SourceRow) -> Iterator[tuple[str, str]]:
    """Return the URLs of an article's images, each with its path below the folder of images."""
    urls = texts(row, "image_urls", default=(), empty=True)
    return ((url, address_path(row, "image_urls", url)) for url in urls if url)


def _strings(row: SourceRow, field: str) -> list[str]:
    """Return a list of texts, empty ones included."""
    value = row.get(field)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise row.bad(field, f"is {type(value).__name__}", "it should be a list of texts")
    return value


RANKED = "lens.jsonl"
"""File of ranked entities in the data set's folder, a value of `ranked_entities`."""


def write_lens(path: Path, source: Path, images: Iterable[str], inaturalist: Path | None) -> str:
    """Write the ranked entities of a data set's images as JSONL.

    Args:
        path: File to write. The other arguments are those of `lens_rankings`.

    Returns:
        A line that counts the rankings.

    Raises:
        UserError: `source` is damaged, or has a row for none of the images.
    """
    images = dict.fromkeys(image for image in images if image)
    rankings = {ranking.image: ranking for ranking in lens_rankings(source, images, inaturalist)}
    if not rankings:
        raise UserError(
            f"{source} has a row for none of the {len(images):,} images; it is for E-VQA's test split, and needs "
            "`images`"
        )
    rows = [dataclasses.asdict(ranking) for ranking in rankings.values()]
    lines = [{name: value for name, value in row.items() if value is not None} for row in rows]
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    empty = sum(not ranking.entities for ranking in rankings.values())
    return f"{path}: rankings of {len(rankings):,} of {len(images):,} images, {empty:,} of them empty"


def lens_rankings(source: Path, images: Iterable[str], inaturalist: Path | None = None) -> Iterator[Ranking]:
    """Yield the rankings of images, in the order of the file.

    `lens_entities.csv` of google-research/encyclopedic_vqa has a row for each image of the test split, with the
    columns `dataset_name` (`inaturalist`, `landmarks`), `dataset_image_id`, and `lens_wiki_urls`: a Python list of
    Wikipedia addresses, best first, without scores, which may be empty.

    Args:
        source: The CSV file.
        images: Paths of images in a data set's questions. The name of a landmark's file is its id.
        inaturalist: iNaturalist 2021's `val.json`, which maps ids to file names; None skips rows of iNaturalist.

    Raises:
        UserError: The file is missing, or a row of it is damaged.
    """
    by_name: dict[str, list[str]] = {}
    for image in dict.fromkeys(images):
        by_name.setdefault(PurePosixPath(image).stem, []).append(image)
    results = list(each(read_csv(source), _result, stop))
    numbers = {image_id for dataset, image_id, _ in results if dataset == "inaturalist"}
    files = inaturalist_names(inaturalist, numbers) if inaturalist else {}
    for dataset, image_id, addresses in results:
        file_name = files.get(image_id, "") if dataset == "inaturalist" else image_id
        for image in by_name.get(PurePosixPath(file_name).stem, ()):
            yield Ranking(image, addresses)


def _result(row: SourceRow) -> tuple[str, str, tuple[str, ...]]:
    """Return the image data set, the id of the image, and the addresses of its entities."""
    literal = row.get("lens_wiki_urls") or ""
    try:
        addresses = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        addresses = None
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        problem = f"is {literal[:80]!r}"
        raise row.bad("lens_wiki_urls", problem, "it should be a list of addresses: download the file again")
    named = tuple(dict.fromkeys(address.strip() for address in addresses if address.strip()))
    return one_of(row, "dataset_name", DATASETS), text(row, "dataset_image_id"), named
