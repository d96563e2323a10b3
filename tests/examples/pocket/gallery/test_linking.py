"""An image is linked to its subject's article, and to no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.linking import (
    Links,
    Reviewed,
    link_images,
    read_reviewed,
)
from reflectune.examples.pocket.gallery.sources.categories import CATEGORIES
from reflectune.examples.pocket.gallery.sources.images import SourceImage

from .conftest import write

NOTHING = Reviewed({}, {}, {}, frozenset())


def link(sources: Collection, name: str, category: str = "animal", reviewed: Reviewed = NOTHING) -> Links:
    image = SourceImage("a/1", name, category, "a", "a", "drawing", Path("x.png"))
    return link_images([image], sources.articles, sources.wordnet, sources.countries, reviewed)


@pytest.mark.parametrize("name", ["lion", "Lion", "lions", "the lion", "lion face", "Lion, Africa"])
def test_a_name_is_matched_without_its_article_and_plural(sources: Collection, name: str) -> None:
    assert [made.title for made in link(sources, name).made] == ["Lion"]


@pytest.mark.parametrize("name", ["lioness", "sea lion", "li", "lion king", ""])
def test_a_different_name_is_not_matched(sources: Collection, name: str) -> None:
    assert link(sources, name).made == []


def test_an_article_of_a_different_sense_is_refused(sources: Collection) -> None:
    links = link(sources, "turkey", "bird")
    assert links.made == []
    ((_, title, why),) = links.refused
    assert (title, why) == ("Turkey", "the article's subject is a country, not a bird")


def test_a_name_that_is_no_such_thing_is_refused(sources: Collection) -> None:
    assert link(sources, "violin", "animal").refused[0][2] == "WordNet knows no animal called violin"


def test_a_person_goes_before_all_rules(sources: Collection) -> None:
    aliases = replace(NOTHING, aliases={"fiddle": "Violin"})
    assert [made.rule for made in link(sources, "fiddle", "instrument", aliases).made] == ["reviewed"]
    assert link(sources, "turkey", "bird", replace(NOTHING, allowed=frozenset({"Turkey"}))).made
    for key in ("lion", "a/1"):
        assert link(sources, "lion", "animal", replace(NOTHING, denied={key: "a toy"})).refused[0][2] == "a toy"


def test_a_flag_is_linked_by_its_countrys_letters(sources: Collection) -> None:
    assert [made.title for made in link(sources, "fr", "flag").made] == ["France"]
    assert link(sources, "zz", "flag").made == []
    renamed = replace(NOTHING, countries={"zz": "Spain"})
    assert [made.title for made in link(sources, "zz", "flag", renamed).made] == ["Spain"]


def test_the_reviewed_list_is_sound() -> None:
    reviewed = read_reviewed()
    assert not set(reviewed.aliases) & set(reviewed.denied)
    assert set(reviewed.categories.values()) <= set(CATEGORIES)
    assert all(len(group) > 1 for group in reviewed.look_alikes)
    assert all(name == name.lower() for name in reviewed.aliases)


def test_a_reviewed_list_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    write(tmp_path / "reviewed.json", '{"aliases": {}}')
    with pytest.raises(UserError, match="lacks 'countries'"):
        read_reviewed(tmp_path / "reviewed.json")
