"""Encyclopedic-VQA: questions about iNaturalist's species and GLDv2's landmarks, and the knowledge base that answers.

The knowledge base (`encyclopedic_kb_wiki.json`, or the zip file that it comes in) is read as a stream. EchoSight's 100k
subsets for E-VQA and InfoSeek have the same format. Sections keep their places, since E-VQA's `evidence_section_id`
counts them; the first one is the article's opening and is headed by its title.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, MissingImage, Reject, stop
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import read_csv
from reflectune.data_builders.readers.images import ImageFolder, address_path
from reflectune.data_builders.readers.json_documents import read_json_array, read_json_dict
from reflectune.data_builders.readers.rows import Placed, SourceRow, integer, one_of, placed, text, texts

read_source = partial(read_json_dict, key="key")

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
    """The questions of one split, in the order of the CSV file.

    `{train,val,test}.csv` of google-research/encyclopedic_vqa has a header and the columns `question`, `answer`,
    `dataset_image_ids`, `dataset_name` (`inaturalist`, `landmarks`), `dataset_category_id`, `question_type`
    (`templated`, `automatic`, `multi_answer`, `2_hop`), `wikipedia_url`, `wikipedia_title`, `evidence`,
    `evidence_section_id`, `evidence_section_title`, `encyclopedic_vqa_split`, `question_original` and
    `wikipedia_url_used_in_train`. A `|` stands between the answers, between up to five image ids, and, for `2_hop`,
    between the two URLs and the two sections. Of `multi_answer` each answer is a list with `&&` between its items.

    A row has no id: the n-th record, from 0, is `evqa_<split>_<n, eight digits>`, and n stands in
    `Question.meta["row"]` (EchoSight calls it `E-VQA_n`). Entities are called by their URLs,
    as the knowledge base calls its articles.

    An image of `landmarks` is found by its id, one of `inaturalist` by the file name that iNaturalist 2021's own json
    has for its number: `images[{id, file_name}]`. For train that is `train.json`, for val and test `val.json`.

    Args:
        source: The CSV file, or a mapping of the roles `questions` (it) and `inaturalist` (the json) to files. The role
            `lens` is read by `evqa_lens`.
        split: Name of the split.
        images: A folder that has both sets of images: `inaturalist/{train,val}/…` and `landmarks/0/1/2/….jpg`.
        reject: Called with each bad row.
        images_per_question: Up to so many images of a row, each a question of its own; those after the first get `-2`,
            `-3`, … after their ids. The official scores are over the first.

    Raises:
        UserError: A role is unknown, there are no questions, `inaturalist` is needed and not given, or has no `images`.
    """
    if images_per_question < 1:
        raise UserError(f"`images_per_question` is {images_per_question}; it must be 1 or more")
    files = _files(source)
    names = file_names(files, images_per_question) if images.root is not None else {}
    make = partial(_questions, split=split, images=images, names=names, count=images_per_question)
    for row_questions, place in placed(_numbered(files["questions"], reject), make, reject):
        yield from ((question, place) for question in row_questions)


def _files(source: Path | Mapping[str, Any]) -> dict[str, Path]:
    if not isinstance(source, Mapping):
        return {"questions": source}
    if "questions" not in source or not set(source) <= set(ROLES):
        given_roles = ", ".join(map(str, source)) or "none"
        raise UserError(
            f"Encyclopedic-VQA's roles are {', '.join(ROLES)}, and questions is needed; found {given_roles}"
        )
    return {role: Path(path) for role, path in source.items()}


def _numbered(path: Path, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    """The records with their numbers as the field `row`; one that is left out has a number too."""
    dropped = 0

    def drop(error: BadRow) -> None:
        nonlocal dropped
        dropped += 1
        reject(error)

    for number, (line, row) in enumerate(read_csv(path, drop)):
        row["row"] = number + dropped
        yield line, row


def file_names(files: Mapping[str, Path], count: int) -> dict[str, str]:
    """The file name of each image of iNaturalist that the questions name; the others' would take 600 MB.

    Args:
        files: The roles `questions` and `inaturalist`, as `questions` takes them.
        count: So many images of a row are wanted.

    Raises:
        UserError: The questions name such images, and `inaturalist` is not given.
    """
    rows = (row for _, row in read_csv(files["questions"], lambda error: None))
    wanted = {
        image_id for row in rows if row.get("dataset_name") == "inaturalist" for image_id in _image_ids(row)[:count]
    }
    if not wanted:
        return {}
    if "inaturalist" not in files:
        raise UserError(
            f"{files['questions']} names images of iNaturalist 2021 by number; give their file names as the role "
            "`inaturalist`: iNaturalist's train.json for train, val.json for val and test"
        )
    return inaturalist_names(files["inaturalist"], wanted)


def inaturalist_names(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """The file names that iNaturalist 2021's own json has for these numbers of images.

    Raises:
        UserError: The file has no `images`.
    """
    names = {}
    for _, image in read_json_array(path, prefix="images.item"):
        if (number := str(integer(image, "id"))) in wanted:
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
    meta = {name: value for name in _CARRIED if (value := text(row, name, default=""))}
    common: dict[str, Any] = {
        "text": text(row, "question"),
        "answers": tuple(answer for answer in text(row, "answer").split(_SEPARATOR) if answer.strip()),
        "answer_type": "multi_answer" if kind == "multi_answer" else "string",
        "split": split,
        "requires_retrieval": True,
        "entity_ids": entities,
        "evidence": _evidence(row, entities),
        "meta": {"row": str(row["row"]), **meta, **({"two_hop": "yes"} if kind == "2_hop" else {})},
    }
    return [
        Question(
            id=row.id if number == 1 else f"{row.id}-{number}", image=picture(row, image_id, images, names), **common
        )
        for number, image_id in enumerate(image_ids, 1)
    ]


def picture(row: SourceRow, image_id: str, images: ImageFolder, names: Mapping[str, str]) -> str:
    """Path of one of a row's images; "" if nobody wants images.

    Args:
        row: The row, with `dataset_name`.
        image_id: One of its `dataset_image_ids`.
        images: The folder with both sets of images.
        names: Of `file_names`.

    Raises:
        BadRow: The data set of images is unknown, or there is no such image.
    """
    if images.root is None:
        return ""
    if one_of(row, "dataset_name", DATASETS) == "landmarks":
        landmark_path = images.find_for(row, "dataset_image_ids", _landmark(image_id))
        return landmark_path or images.path(row, "dataset_image_ids", image_id)
    if image_id not in names:
        problem = f"image {image_id} is not in the json of iNaturalist"
        fix = "train has its images in iNaturalist's train.json, val and test in val.json"
        raise MissingImage(row.file, row.line, row.id, "dataset_image_ids", problem, fix)
    path = f"inaturalist/{names[image_id]}"
    return images.find_for(row, "dataset_image_ids", path) or images.path(row, "dataset_image_ids", names[image_id])


def _landmark(image_id: str) -> str:
    return f"landmarks/{'/'.join(image_id[:3])}/{image_id}.jpg"


def _evidence(row: SourceRow, entities: tuple[str, ...]) -> tuple[Evidence, ...]:
    """The sections that answer: one of each article, where the row says which."""
    said = text(row, "evidence_section_id", default="")
    if not said:
        return ()
    parts = [part.strip() for part in said.split(_SEPARATOR)]
    if len(parts) != len(entities):
        problem = f"is {said!r} for {len(entities)} articles"
        raise row.bad("evidence_section_id", problem, "it should have a section for each URL: download the file again")
    sections = (SourceRow({"id": row.id, "evidence_section_id": part}, row.file, row.line) for part in parts)
    section_indices = [integer(section, "evidence_section_id", default=-1) for section in sections]
    return tuple(Evidence(entity, index) for entity, index in zip(entities, section_indices, strict=True) if index >= 0)


def _image_ids(row: SourceRow) -> list[str]:
    return _parts(row.get("dataset_image_ids") or "")


def _parts(joined: str) -> list[str]:
    return [part.strip() for part in joined.split(_SEPARATOR) if part.strip()]


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """One member of the dict."""
    titles, bodies = _strings(row, "section_titles"), _strings(row, "section_texts")
    if len(titles) != len(bodies):
        problem = f"has {len(bodies)} texts for {len(titles)} titles"
        raise row.bad("section_texts", problem, "the two lists must be of one length: download the file again")
    urls = texts(row, "image_urls", default=(), empty=True)
    paths = (
        images.exact(row, "image_urls", address_path(url)) or images.find_for(row, "image_urls", _file_name(url))
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


def pictures(row: SourceRow) -> Iterator[tuple[str, str]]:
    """The addresses of an article's pictures, each with its path below the folder of images."""
    return ((url, address_path(url)) for url in texts(row, "image_urls", default=(), empty=True) if url)


def _strings(row: SourceRow, field: str) -> list[str]:
    """A list of texts as it stands: an empty one keeps its place."""
    value = row.get(field)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise row.bad(field, f"is {type(value).__name__}", "it should be a list of texts")
    return value


def _file_name(url: str) -> str:
    return unquote(url).rsplit("/", 1)[-1]
