"""Each public knowledge base in its published layout, field by field, and the user's own."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import Entry, Section
from reflectune.data_builders.conversion.sources import list_files
from reflectune.data_builders.readers import wiki6m
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.data_builders.readers.rows import SourceRow
from reflectune.formats.passages import split_passages

from .conftest import jsonl, parquet

SHARED = Path(__file__).parents[4] / "shared" / "data" / "kb_slices"
WIKI6M_ROW = {
    "wikidata_id": "Q806563",
    "wikipedia_title": "Bánh Department",
    "wikipedia_content": " Banh is a commune.Its capital is Banh.## History.## Early years.Old. ## Draw 1 vs. 2.No.",
    "wikipedia_image_url": "https://upload.wikimedia.org/wikipedia/commons/b/b8/Loroum_departments.png",
    "wikipedia_summary": " Banh is a commune.",
}
URL = "https://en.wikipedia.org/wiki/Example_bird"
EVQA = {
    URL: {
        "title": "Example bird",
        "section_titles": ["Example bird", "Description", "Diet"],
        "section_texts": ["The example bird is a bird.", "", "It eats seeds."],
        "image_urls": ["https://upload.wikimedia.org/wikipedia/commons/a/ab/Some%20bird.jpg", "https://e.org/gone.jpg"],
        "image_reference_descriptions": ["caption", ""],
        "image_section_indices": [0, 1],
        "url": URL,
    }
}


def entries_of(name: str, source: Path, images: Path | None = None, reject: Reject = stop) -> list[Entry]:
    """Return the entries of a knowledge base; a user's own has its images in its folder."""
    folder = {"own": source.parent, "own_folder": source}.get(name, images)
    return list(knowledge_reader(name).entries(source, images=ImageFolder(folder), reject=reject))


def test_wiki6m_packed_or_not_with_its_marks_as_sections(tmp_path: Path) -> None:
    plain = jsonl(tmp_path / "Wiki6M_ver_1_0.jsonl", WIKI6M_ROW)
    packed = tmp_path / "Wiki6M_ver_1_0.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "wikipedia_images_full" / "Q806").mkdir(parents=True)
    (tmp_path / "wikipedia_images_full" / "Q806" / "Q806563.jpg").write_bytes(b"x")
    parts = [("", "Banh is a commune.\nIts capital is Banh."), ("History", ""), ("Early years", "Old.")]
    sections = tuple(Section(*part) for part in [*parts, ("Draw 1 vs. 2", "No.")])
    expected = Entry("Q806563", "Bánh Department", summary="Banh is a commune.", sections=sections)
    assert entries_of("wiki6m", plain) == entries_of("wiki6m", packed) == [expected]
    (with_image,) = entries_of("wiki6m", plain, images=tmp_path / "wikipedia_images_full")
    assert with_image.images == ("Q806/Q806563.jpg",)
    (in_parent,) = entries_of("wiki6m", plain, images=tmp_path)
    assert in_parent.images == ("wikipedia_images_full/Q806/Q806563.jpg",)


@pytest.mark.parametrize(
    ("content", "sections"),
    [
        ("", []),
        ("Only a lead.", [("", "Only a lead.")]),
        ("## First.Text.", [("First", "Text.")]),
        ("A.## U.S. career.He won.", [("", "A."), ("U.S. career", "He won.")]),
        ('A.## Results."All times local" ## Draw 1.x', [("", "A."), ("Results", '"All times local"'), ("Draw 1", "x")]),
        ("A.## Last.", [("", "A."), ("Last", "")]),
        ("A.## No stop at all", [("", "A."), ("No stop at all", "")]),
        ("It is C# and #1.", [("", "It is C# and #1.")]),
        ("A.### Deep.Text", [("", "A."), ("Deep", "Text")]),
        ("Roads.According to it. See e.g. Mr. X.", [("", "Roads.\nAccording to it. See e.g. Mr. X.")]),
        ("In the U.S. Army", [("", "In the U.S. Army")]),
    ],
)
def test_inline_marks_are_parsed(content: str, sections: list[tuple[str, str]]) -> None:
    assert wiki6m.parse_sections(content) == tuple(Section(*section) for section in sections)


def test_wiki6m_without_a_title_or_an_id_is_refused(tmp_path: Path) -> None:
    for field in ("wikidata_id", "wikipedia_title"):
        path = jsonl(tmp_path / "a.jsonl", {**WIKI6M_ROW, field: ""})
        with pytest.raises(UserError, match=rf"a.jsonl:1: .*field `{field}`: is empty"):
            entries_of("wiki6m", path)


def test_evqa_keeps_the_places_of_sections(tmp_path: Path) -> None:
    path = tmp_path / "encyclopedic_kb_wiki.json"
    path.write_text(json.dumps(EVQA))
    zipped = tmp_path / "encyclopedic_kb_wiki.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(path, path.name)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "Some bird.jpg").write_bytes(b"x")
    (entry,) = entries_of("evqa", path, images=tmp_path / "images")
    lead = "The example bird is a bird."
    sections = (Section("Example bird", lead), Section("Description", ""), Section("Diet", "It eats seeds."))
    assert entry == Entry(URL, "Example bird", URL, lead, ("Some bird.jpg",), sections)
    (without,) = entries_of("evqa", zipped)
    assert (without.sections, without.images) == (entry.sections, ())
    assert [passage.section for passage in split_passages(entry)] == [0, 2]


def test_a_folder_of_evqas_images_is_not_listed_for_each_article(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold millions of files."""
    path = tmp_path / "kb.json"
    path.write_text(json.dumps(EVQA))
    (tmp_path / "Some bird.jpg").write_bytes(b"x")
    monkeypatch.setattr("os.listdir", lambda folder: pytest.fail(f"lists {folder}"))
    (entry,) = entries_of("evqa", path, images=tmp_path)
    assert entry.images == ("Some bird.jpg",)


def test_an_evqa_article_whose_lists_differ_in_length_is_refused(tmp_path: Path) -> None:
    articles = {URL: {**EVQA[URL], "section_texts": ["one"]}, "u2": {**EVQA[URL], "section_titles": 3}}
    path = tmp_path / "kb.json"
    path.write_text(json.dumps(articles))
    rejected: list[BadRow] = []
    assert entries_of("evqa", path, reject=rejected.append) == []
    assert "has 1 texts for 3 titles" in str(rejected[0])
    assert "field `section_titles`: is int" in str(rejected[1])


def test_a_malformed_address_of_an_image_rejects_its_row_alone(tmp_path: Path) -> None:
    path, url = tmp_path / "encyclopedic_kb_wiki.json", "http://e.org]/a.jpg"
    path.write_text(json.dumps({"bad": {**EVQA[URL], "image_urls": [url]}, **EVQA}))
    rejected: list[BadRow] = []
    (left,) = entries_of("evqa", path, tmp_path, rejected.append)
    assert left.title == "Example bird"
    (error,) = rejected
    assert error.field == "image_urls"
    with pytest.raises(BadRow, match=r"field `wikipedia_image_url`: is .*, not an address"):
        list(wiki6m.images(SourceRow({**WIKI6M_ROW, "wikipedia_image_url": url}, path, 1)))


def test_reflectivas_dict_is_called_by_its_names(tmp_path: Path) -> None:
    path = tmp_path / "Wiki100k_ver_1_0-all.json"
    path.write_text(json.dumps({"Q1": WIKI6M_ROW, "Q2": {"wikipedia_content": "A thing.## History.Old."}}))
    first, second = entries_of("reflectiva_100k", path)
    assert (first.id, first.title) == ("Q1", "Bánh Department")
    assert second == Entry("Q2", "Q2", sections=(Section("", "A thing."), Section("History", "Old.")))


def test_m2kr_passages_are_entries(tmp_path: Path) -> None:
    rows = [
        {"passage_id": "Q1-0", "passage_content": "title: Barn owl content: It eats\nmice.", "title": "Barn owl"},
        {"passage_id": "WikiWeb_2", "passage_content": "title: Oak content: A tree."},
        {"passage_id": "Q3-0", "passage_content": "It has a title: no.", "title": "Plain"},
    ]
    parquet(tmp_path / "test_passages-00000-of-00001.parquet", *rows)
    entries = entries_of("m2kr", tmp_path)
    assert [(e.id, e.title, e.sections[0].text) for e in entries] == [
        ("Q1-0", "Barn owl", "It eats\nmice."),
        ("WikiWeb_2", "Oak", "A tree."),
        ("Q3-0", "Plain", "It has a title: no."),
    ]


def test_m2krs_passages_are_of_one_split(tmp_path: Path) -> None:
    """The folders hold a file for each split, with mostly the same passages."""
    for split in ("train", "test"):
        row = {"passage_id": "WikiWeb_2", "passage_content": "title: Oak content: A tree."}
        parquet(tmp_path / f"{split}_passages-00000-of-00001.parquet", row)
    with pytest.raises(UserError, match="holds the files of test_passages, train_passages; name one"):
        entries_of("m2kr", tmp_path)
    (entry,) = entries_of("m2kr", tmp_path / "test_passages-00000-of-00001.parquet")
    assert entry.id == "WikiWeb_2"


def test_wiki18_has_its_title_in_the_first_line(tmp_path: Path) -> None:
    contents = ['"Evan Morris"\nEvan Morris was a lobbyist.', '"""Heroes"" (song)"\nA song.', "no line break"]
    path = jsonl(tmp_path / "wiki18.jsonl", *({"id": f"{n}", "contents": text} for n, text in enumerate(contents)))
    rejected: list[BadRow] = []
    entries = entries_of("wiki18", path, reject=rejected.append)
    assert entries[0] == Entry("0", "Evan Morris", sections=(Section("", "Evan Morris was a lobbyist."),))
    assert entries[1].title == '"Heroes" (song)'
    assert [error.line for error in rejected] == [3]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real rows are not here")
def test_real_rows_of_wiki18() -> None:
    entries = entries_of("wiki18", SHARED / "wiki18_10rows.jsonl")
    assert [entry.title for entry in entries[:3]] == ["Evan Morris", "Horatio Hale", "Dibba Al-Hisn"]
    assert all(len(entry.sections[0].text.split()) in range(80, 110) for entry in entries)


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "owls").mkdir()
    (tmp_path / "owls" / "barn.md").write_text("# Barn owl\n\nA bird.\nIt is white.\n\n## Diet\n\nMice.\n")
    (tmp_path / "owls" / "barn.jpg").write_bytes(b"x")
    (tmp_path / "oak.txt").write_text("A tree.")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.md").write_text("# Only a title")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "log.txt").write_text("Hidden.")
    rejected: list[BadRow] = []
    oak, barn = entries_of("own_folder", tmp_path, reject=rejected.append)
    assert oak == Entry("oak", "oak", summary="A tree.", sections=(Section("", "A tree."),))
    lead, images = "A bird.\nIt is white.", ("owls/barn.jpg",)
    assert barn == Entry("owls/barn", "Barn owl", "", lead, images, (Section("", lead), Section("Diet", "Mice.")))
    assert [Path(error.file).name for error in rejected] == ["bad.txt", "empty.md"]


def test_a_folder_without_articles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="put one file per article there"):
        entries_of("own_folder", tmp_path)


def test_an_article_has_no_other_ones_image(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for name in ("owl.md", "zoo/owl.md"):
        (tmp_path / name).write_text("A bird.")
    (tmp_path / "zoo" / "owl.png").write_bytes(b"x")
    images = {entry.id: entry.images for entry in entries_of("own_folder", tmp_path)}
    assert images == {"owl": (), "zoo/owl": ("zoo/owl.png",)}


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "owl.jpg").write_bytes(b"x")
    rows = [
        {"id": 1.0, "title": "Barn owl", "text": "A bird.\n\nWhite.", "image": "owl.jpg", "url": "https://e.org"},
        {"id": "b", "title": "Oak", "sections": [{"title": "", "text": "A tree."}, {"title": "Use", "text": "Ships."}]},
    ]
    owl, oak = entries_of("own", jsonl(tmp_path / "knowledge.jsonl", *rows))
    sections = (Section("", "A bird.\n\nWhite."),)
    assert owl == Entry("1", "Barn owl", "https://e.org", "A bird.", ("owl.jpg",), sections)
    assert oak.sections == (Section("", "A tree."), Section("Use", "Ships."))
    assert entries_of("own", parquet(tmp_path / "knowledge.parquet", *rows[1:])) == [oak]


def test_the_image_comes_before_the_images(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(b"x")
    row = {"id": "a", "title": "A", "text": "Text.", "image": "b.jpg", "images": ["a.jpg", "b.jpg", "c.jpg"]}
    (entry,) = entries_of("own", jsonl(tmp_path / "knowledge.jsonl", row))
    assert entry.images == ("b.jpg", "a.jpg", "c.jpg")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": None}, "field `text`: is null"),
        ({"sections": ["a"], "text": None}, "field `sections`"),
        ({"sections": [{"title": "", "text": "x"}]}, "field `text`: is given in addition to `sections`; leave one out"),
        ({"images": "a.jpg"}, "one image alone goes into `image`"),
    ],
)
def test_a_bad_article_of_the_users_own_is_named(tmp_path: Path, change, problem) -> None:
    path = jsonl(tmp_path / "knowledge.jsonl", {"id": "a", "title": "T", "text": "Text.", **change})
    with pytest.raises(UserError, match=f"knowledge.jsonl:1: .*{problem}"):
        entries_of("own", path)


def test_a_folder_s_links_that_lead_out_are_no_articles(tmp_path: Path) -> None:
    """A folder from someone else may hold a link to any file of the user."""
    (tmp_path / "diary.txt").write_text("the user's own words")
    articles = tmp_path / "articles"
    articles.mkdir()
    (articles / "oak.md").write_text("# Oak\n\nA tree.")
    (articles / "again.md").symlink_to("oak.md")
    (articles / "leak.md").symlink_to(tmp_path / "diary.txt")
    (articles / "deep").symlink_to(tmp_path)
    rejected: list[BadRow] = []
    entries = entries_of("own_folder", articles, reject=rejected.append)
    assert [entry.id for entry in entries] == ["again", "oak"]
    assert [error.row_id for error in rejected] == ["leak"]
    assert "leads out of" in str(rejected[0])
    assert not any("own words" in str(entry) for entry in entries)
    assert {path.name for path in list_files([articles])} == {"oak.md", "again.md"}
    with pytest.raises(UserError, match=r"leak.md:1: id leak: .*leads out of .*delete the link"):
        entries_of("own_folder", articles)


def test_a_link_that_leads_out_is_refused_as_an_article_s_image(tmp_path: Path) -> None:
    (tmp_path / "private.jpg").write_bytes(b"x")
    articles = tmp_path / "articles"
    articles.mkdir()
    (articles / "oak.md").write_text("# Oak\n\nA tree.")
    (articles / "oak.jpg").symlink_to(tmp_path / "private.jpg")
    with pytest.raises(UserError, match=r"id oak: `oak.jpg` is or passes a link that leads out of"):
        entries_of("own_folder", articles)
