import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.types import FollowUp, Passage
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.loading import load
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.train.data.examples import EncodedExamples, load_examples, load_training_data
from reflectune.train.data.mixture import DataSource

PASSAGE = Passage("e", 0, 0, "A title", "", "", "Some words.")


@pytest.fixture
def renderer(base_model) -> Renderer:
    return load(str(base_model()), scheme="mr2ag").renderer


@pytest.fixture
def encoded(renderer: Renderer, data_folder: Path, examples: list[ReflectionExample]) -> Callable[..., EncodedExamples]:
    def build(**changes: Any) -> EncodedExamples:
        values: dict[str, Any] = {"max_tokens": 4096, "cache_bytes": 2**30}
        return EncodedExamples(examples, renderer, data_folder / "images", **{**values, **changes})

    return build


def rewritten(folder: Path, examples: list[ReflectionExample], **changes: Any) -> DataSource:
    """The data with its first example changed."""
    write_examples(folder / "train.parquet", [dataclasses.replace(examples[0], **changes), *examples[1:]])
    return DataSource(str(folder), "train")


def test_an_example_is_encoded_once_while_memory_lasts(encoded) -> None:
    one_image = 3 * 64 * 64 * 4
    dataset = encoded(cache_bytes=3 * one_image)
    kept = [dataset[i] for i in range(24)]

    assert sum(dataset[i] is kept[i] for i in range(24)) == 2  # and their tokens


def test_an_example_is_one_tree_or_one_row_per_branch(encoded, examples) -> None:
    shared, separate = encoded(), encoded(share_prefix=False)

    for i, example in enumerate(examples):
        assert len(shared[i].trees) == 1
        assert len(separate[i].trees) == max(len(example.branches), 1)
        assert shared[i].trees[0].supervised == sum(tree.supervised for tree in separate[i].trees)


def test_branches_that_are_too_long_are_left_out(encoded, examples) -> None:
    number = next(i for i, example in enumerate(examples) if len(example.branches) > 2)
    tree = encoded()[number].trees[0]
    lengths = [len(tree.prefix.ids) + len(branch.ids) for branch in tree.branches]
    limit = max(lengths) - 1
    short = encoded(max_tokens=limit)

    assert short[number].trees[0].branches == tuple(
        b for b, n in zip(tree.branches, lengths, strict=True) if n <= limit
    )
    assert short[number].trees[0].prefix == tree.prefix  # the retrieval gate is trained all the same
    counts = [short[i].left_out for i in range(len(examples))]
    assert counts[number] == lengths.count(max(lengths))
    assert short[~number].left_out == 0  # a filler
    assert short.left_out() == (sum(counts), sum(map(bool, counts)))
    assert encoded().left_out() == (0, 0)


def test_an_example_that_does_not_fit_at_all_is_replaced_without_weight(encoded) -> None:
    dataset = encoded()
    shortest = min(range(len(dataset)), key=lambda i: len(dataset[i].trees[0].prefix.ids))
    limit = len(dataset[shortest].trees[0].prefix.ids)
    short = encoded(max_tokens=limit)
    alone = next(i for i in range(len(dataset)) if len(dataset[i].trees[0].prefix.ids) > limit)

    assert {weight for tree in short[alone].trees for weight in tree.prefix.weights} == {0.0}
    assert short[alone].left_out > 0
    with pytest.raises(UserError, match="no training example fits into 30 tokens"):
        encoded(max_tokens=30)[0]


def test_a_conversation_is_shortened_by_its_last_rounds(encoded, examples) -> None:
    rounds = tuple(FollowUp(f"And {'now ' * n}?", "So.") for n in range(5))
    talk = dataclasses.replace(examples[0], retrieve=False, branches=(), answer="A.", style="free", follow_ups=rounds)
    examples[:] = [talk, dataclasses.replace(talk, follow_ups=rounds[:3])]
    three = encoded()[1].trees[0]

    assert encoded(max_tokens=three.depth + 3)[0].trees[0].prefix == three.prefix


def test_a_bug_in_the_encoding_names_the_example_and_keeps_its_cause(encoded, monkeypatch) -> None:
    dataset = encoded()
    monkeypatch.setattr(type(dataset.scheme), "encode", lambda *_: int("three"))
    with pytest.raises(RuntimeError, match=f"training example {dataset.examples[0].id} can't be encoded: ") as raised:
        dataset[0]
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_example_without_a_supervised_token_is_named(encoded, monkeypatch) -> None:
    """A chat template that ends no turn leaves labels empty. Here they are removed."""
    dataset = encoded()
    encode = type(dataset.scheme).encode

    def unlabelled(*given: Any) -> Tree:
        tree = encode(*given)
        silent = [Segment.of(part.ids, [IGNORE] * len(part.ids)) for part in (tree.prefix, *tree.branches)]
        return Tree(silent[0], tuple(silent[1:]), tree.vision)

    monkeypatch.setattr(type(dataset.scheme), "encode", unlabelled)
    with pytest.raises(UserError, match="training example k0 has no supervised token: it would teach nothing"):
        dataset[0]


def test_a_truncated_image_is_named_with_its_example(encoded, data_folder, examples) -> None:
    path = data_folder / "images" / examples[0].image
    path.write_bytes(path.read_bytes()[:60])

    with pytest.raises(UserError, match=rf"image unreadable: .*{path.name} \(needed by training example k0\)"):
        encoded()[0]


def test_examples_are_read_with_their_image_root_and_for_their_scheme_alone(
    data_folder: Path, examples: list[ReflectionExample]
) -> None:
    loaded, roots = load_examples(DataSource(str(data_folder), "train"), "mr2ag")

    assert list(loaded) == [loaded[i] for i in range(len(loaded))] == examples
    assert roots[0] == data_folder / "images"
    elsewhere = DataSource(str(data_folder), "train", str(data_folder / "images"))
    assert load_examples(elsewhere, "mr2ag")[1][0] == data_folder / "images"
    with pytest.raises(UserError, match="was built for the scheme `mr2ag`, and `scheme` is `mmkb_rag`"):
        load_examples(elsewhere, "mmkb_rag")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "k0: the question is empty"),
        ({"image": ""}, "k0: the question has no image"),
        ({"id": " "}, " : the id is empty"),
        ({"id": "k1"}, "k1: the id came before"),
        ({"image": "gone.png"}, r"k0: image not found: .*images/gone\.png"),
        ({"branches": ()}, "k0: a question with retrieval needs a passage"),
        ({"branches": (Branch(PASSAGE, True, ""),)}, "k0: a relevant branch has no answer"),
        ({"retrieve": False, "branches": ()}, "k0: a question without retrieval needs an answer"),
        ({"follow_ups": (FollowUp("Why?", "So."),)}, "k0: a conversation goes on .* after a free answer without"),
        (
            {"retrieve": False, "answer": "A.", "style": "free", "follow_ups": (FollowUp("", "So."),)},
            "k0: a later round of its conversation lacks",
        ),
    ],
)
def test_a_bad_row_is_named(data_folder, examples, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_examples(rewritten(data_folder, examples, **changes), "mr2ag")


def test_a_folder_whose_images_are_all_gone_is_said_to_be_moved(data_folder: Path, tmp_path: Path) -> None:
    write_manifest(data_folder, Manifest("mr2ag", tmp_path / "gone", {"train": "0"}))
    with pytest.raises(UserError, match=r"none of its \d+ images can be read, (.|\n)*was the folder moved\?"):
        load_examples(DataSource(str(data_folder), "train"), "mr2ag")


def test_all_bad_rows_are_counted(data_folder: Path, examples: list[ReflectionExample]) -> None:
    write_examples(data_folder / "train.parquet", [dataclasses.replace(example, question="") for example in examples])

    with pytest.raises(UserError, match=r"24 bad rows(.|\n)*and 14 more"):
        load_examples(DataSource(str(data_folder), "train"), "mr2ag")


def test_the_first_process_checks_and_measures_the_data_for_all(data_folder: Path) -> None:
    sources, sent = [DataSource(str(data_folder), "train")], list[Any]()
    first = load_training_data(sources, "mr2ag", processes=Processes(0, 2, broadcast=sent.extend))
    shutil.rmtree(data_folder / "images")

    def receive(items: list[Any]) -> None:
        items[:] = sent

    other = load_training_data(sources, "mr2ag", processes=Processes(1, 2, broadcast=receive))
    assert list(other.examples) == list(first.examples)
    assert (other.parts, other.lengths, other.kinds) == (first.parts, first.lengths, first.kinds)


def test_no_examples_are_an_error(data_folder: Path) -> None:
    write_examples(data_folder / "train.parquet", [], ReflectionExample)

    with pytest.raises(UserError, match="holds no example"):
        load_examples(DataSource(str(data_folder), "train"), "mr2ag")


@pytest.mark.parametrize("path", ["../private.png", "PRIVATE", "link.png"])
def test_an_image_outside_of_the_data_s_folders_is_a_bad_row(data_folder, examples, path: str) -> None:
    private = data_folder / "private" / "private.png"
    private.parent.mkdir()
    Image.new("RGB", (4, 4)).save(private)
    write_manifest(data_folder / "inner", Manifest("mr2ag", data_folder / "images", {"train": "0"}))
    (data_folder / "images" / "link.png").symlink_to(private)
    named = {"PRIVATE": str(private), "../private.png": "../private/private.png"}.get(path, path)
    write_examples(data_folder / "inner" / "train.parquet", [dataclasses.replace(examples[0], image=named)])

    with pytest.raises(UserError, match=r"k0: image refused: .*leads out of"):
        load_examples(DataSource(str(data_folder / "inner"), "train"), "mr2ag")


def test_a_plain_example_reads_the_leading_documents_that_its_context_holds(base_model, data_folder, examples) -> None:
    """Naive RAG reads the same part of a long article in tuning and in inference."""
    plain = load(str(base_model()), scheme="plain").renderer
    image, question = examples[0].image, examples[0].question
    documents = tuple(Passage("a", 0, i, "A title", "", "", "some words of a long article") for i in range(40))

    def tree_of(count: int, max_tokens: int) -> Tree:
        branch = PromptedBranch("vqa", documents[:count], reply="blue")
        example = PromptedExample("1", image, question, (branch,), "short", "")
        dataset = EncodedExamples([example], plain, data_folder / "images", max_tokens=max_tokens)
        return dataset[0].trees[0]

    most = tree_of(7, 4096).depth
    assert tree_of(40, most).branches == tree_of(7, 4096).branches
    assert tree_of(40, most - 1).branches == tree_of(6, 4096).branches
    assert tree_of(40, 4096).branches != tree_of(7, 4096).branches
