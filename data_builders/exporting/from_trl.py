"""Reads TRL's chat data back as reflection data, where its conversations are of our form."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.images import read_header
from reflectune.core.rows import schema_of, to_row
from reflectune.core.types import AnswerStyle
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.conversations import Conversation, conversation, find_file, raw_rows
from reflectune.data_builders.exporting.images import FOLDER, ImagePlacer
from reflectune.data_builders.exporting.recognise import Piece, recognise
from reflectune.data_builders.exporting.run import Summary, earlier_export
from reflectune.data_builders.exporting.source import BadRows
from reflectune.data_builders.exporting.writers import open_writer
from reflectune.formats.reflection_data import Manifest, earlier_manifest, write_manifest
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import (
    Branch,
    PromptedBranch,
    PromptedExample,
    ReflectionExample,
    TrainingExample,
)
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.models.schemes.registry import find_scheme


@dataclass
class Group:
    """The rows of one question, as they come."""

    id: str
    named: bool
    image: str
    question: str
    where: str
    pieces: list[Piece] = field(default_factory=list)

    @property
    def is_declined(self) -> bool:
        """Whether all that is known so far is that nothing is to be looked up."""
        return all(piece.kind == "gate" and not piece.retrieve for piece in self.pieces)


def import_trl(config: ExportConfig) -> Summary:
    """Write a split of reflection data from TRL's chat data.

    Raises:
        UserError: A row is not of our form, or the output holds data of another scheme.
    """
    scheme = find_scheme(config.scheme or MR2AG.name)
    path, output = find_file(Path(config.data), config.split), Path(config.output)
    earlier = earlier_manifest(output, scheme.name, output)
    roots = _image_roots(config, path.parent)
    images = _Images(ImagePlacer(roots, config.images, output, write=not config.dry_run), output, not config.dry_run)
    bad = BadRows(path, config.on_error)
    file = output / f"{config.split}.parquet"
    count = rows = 0
    sample: dict[str, object] = {}
    with nullcontext() if config.dry_run else open_writer(file, schema_of(scheme.example_type)) as writer:
        for group in _groups(path, scheme, images, bad):
            try:
                example = to_row(_example(group, scheme, config.split))
            except UserError as error:
                bad.add(group.where, str(error))
                continue
            count, rows, sample = count + 1, rows + len(group.pieces), sample or example
            if writer:
                writer.write(example)
        bad.settle(output, write=not config.dry_run)
        if not count:
            raise UserError(f"{path} holds no row of our form")
    if not config.dry_run:
        prints = {**earlier.fingerprints, config.split: file_fingerprint(file)}
        named = {str(root.resolve()) for root in roots} if config.images == "absolute" else set()
        folders = tuple(sorted({*earlier.image_folders, *named}))
        write_manifest(output, Manifest(scheme.name, output, prints, folders))
    return Summary(count, rows, images.count, bad.count, 0, sample)


class _Images:
    """Says how the data names an image: a path as `ImagePlacer` does; bytes become a file of the output's."""

    def __init__(self, placer: ImagePlacer, output: Path, write: bool) -> None:
        self._placer, self._output, self._write = placer, output, write
        self._held: set[str] = set()

    @property
    def count(self) -> int:
        return self._placer.count + len(self._held)

    def __call__(self, image: str | bytes) -> str:
        if isinstance(image, str):
            return self._placer(image)
        name = f"{FOLDER}/{hashlib.sha256(image).hexdigest()[:16]}.{read_header(image).format}"
        if self._write and name not in self._held:
            write_atomically(self._output / name, image)
        self._held.add(name)
        return name


def _groups(path: Path, scheme: Scheme, images: _Images, bad: BadRows) -> Iterator[Group]:
    """The rows, those of one question together; they stand one after the other."""
    group: Group | None = None
    seen: set[str] = set()
    for number, raw in enumerate(raw_rows(path), start=1):
        where = f"row {number}"
        try:
            row = conversation(raw)
            image = images(row.image)
            known = row.question or (group.question if group and _may_belong(row, image, group) else "")
            piece = _recognised(row, scheme, known)
            goes_on = group is not None and _belongs(row, image, piece, group)
            if not goes_on and row.id in seen:
                raise UserError(f"the question `{row.id}` comes again; put its rows one after the other")
        except UserError as error:
            bad.add(where, str(error))
            continue
        if group is None or not goes_on:
            if group is not None:
                yield group
            group = Group(row.id or f"{path.stem}-{number:06d}", bool(row.id), image, piece.question, where)
            seen |= {row.id} if row.id else set()
        group.pieces.append(piece)
    if group is not None:
        yield group


def _recognised(row: Conversation, scheme: Scheme, known: str) -> Piece:
    """What a row says; a guess at its question that doesn't fit is dropped, a column's is not."""
    try:
        piece = recognise(row, scheme, known)
    except UserError:
        if row.question or not known:
            raise
        return recognise(row, scheme)
    if row.question and piece.question != row.question:
        raise UserError(f"the first turn should begin with the column `question`, {row.question!r}")
    return piece


def _may_belong(row: Conversation, image: str, group: Group) -> bool:
    if row.id or group.named:
        return row.id == group.id
    return image == group.image and row.turns[0].startswith(group.question)


def _belongs(row: Conversation, image: str, piece: Piece, group: Group) -> bool:
    """Whether a row belongs to the question of the rows before it.

    Without ids, a question that is asked twice in a row can be taken for one.

    Raises:
        UserError: The row has the group's id, but another image or question.
    """
    if row.id or group.named:
        if row.id == group.id and (image, piece.question) != (group.image, group.question):
            raise UserError(f"the rows of `{row.id}` have different images or questions")
        return row.id == group.id
    if piece.kind == "look" and piece.follow_ups:
        return (image, piece.question) == (group.image, group.question) and _goes_on(group.pieces[-1], piece)
    if piece.kind == "look" and piece.style != "free":
        return (image, piece.question) == (group.image, group.question) and group.is_declined
    starts_again = (
        piece.kind in ("gate", "look") or group.is_declined or any(earlier.kind == "look" for earlier in group.pieces)
    )
    other_kind = any(earlier.kind == "read" and earlier.style != piece.style for earlier in group.pieces)
    return (image, piece.question) == (group.image, group.question) and not starts_again and not other_kind


def _goes_on(before: Piece, piece: Piece) -> bool:
    """Whether a row is the conversation of the row before, one round longer."""
    return (before.kind, before.style, before.answer, before.follow_ups) == (
        *("look", "free"),
        piece.answer,
        piece.follow_ups[:-1],
    )


def _example(group: Group, scheme: Scheme, split: str) -> TrainingExample:
    """The training example that a question's rows make.

    Raises:
        UserError: They contradict each other, or a passage is missing.
    """
    pieces = group.pieces
    if isinstance(scheme, PromptScheme):
        tasks = tuple(piece.branch for piece in pieces if isinstance(piece.branch, PromptedBranch))
        return PromptedExample(group.id, group.image, group.question, tasks, _style(group), split)
    if any(piece.kind == "look" or not piece.retrieve for piece in pieces):
        return _looked(group, scheme, split)
    branches = tuple(piece.branch for piece in pieces if isinstance(piece.branch, Branch))
    if not branches:
        raise UserError(f"`{group.id}` is to be looked up; after it should come a row for each passage")
    if sum(piece.kind == "gate" for piece in pieces) > 1:
        raise UserError(f"`{group.id}` has more than one row that ends with {scheme.tokens['retrieve']}")
    return ReflectionExample(
        group.id, group.image, group.question, True, branches=branches, style=_style(group), source=split
    )


def _looked(group: Group, scheme: Scheme, split: str) -> ReflectionExample:
    """The training example of a question that is answered by looking.

    Raises:
        UserError: Its answer is missing, or it has rows that contradict each other.
    """
    token = scheme.tokens["no_retrieve"]
    if group.is_declined:
        raise UserError(
            f"`{group.id}` is answered by looking; after the row that ends with {token} should come its answer"
        )
    look, pieces = group.pieces[-1], group.pieces[:-1]
    if look.style == "free":
        rows_fit = all(_goes_on(*pair) for pair in itertools.pairwise(group.pieces))
        rows_fit = rows_fit and (not pieces or not pieces[0].follow_ups)
    else:
        rows_fit = not pieces or (len(pieces) == 1 and not pieces[0].retrieve)
    if look.kind != "look" or not rows_fit:
        raise UserError(
            f"`{group.id}` is answered by looking, and has {len(group.pieces)} rows; it can have one, and where the "
            f"answer has a turn of its own one that ends with {token} before it; a conversation has one with all its "
            "rounds, or one for each round, every one longer by a round"
        )
    return ReflectionExample(
        *(group.id, group.image, group.question, False, look.answer),
        style=_style(group),
        source=split,
        follow_ups=look.follow_ups,
    )


def _style(group: Group) -> AnswerStyle:
    """How a question's rows ask for an answer.

    Raises:
        UserError: Some ask for one answer and some for several.
    """
    styles = {piece.style for piece in group.pieces if piece.style is not None}
    if len(styles) > 1:
        raise UserError(f"`{group.id}`: its rows ask for answers of different kinds: {', '.join(sorted(styles))}")
    return styles.pop() if styles else "short"


def _image_roots(config: ExportConfig, folder: Path) -> list[Path]:
    """The folders that image paths may lead into: `image_root`, or the data's own and what `export --to` noted."""
    if config.image_root:
        return [Path(config.image_root), folder]
    return [folder, *map(Path, earlier_export(folder).get("image_folders", ()))]
