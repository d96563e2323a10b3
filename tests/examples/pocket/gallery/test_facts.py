"""Facts are statements of articles; no question asks for anything else."""

import pytest

from reflectune.core.types import Evidence
from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.country_facts import country_facts
from reflectune.examples.pocket.gallery.facts import Fact, entry_of, evidence_of
from reflectune.examples.pocket.gallery.relations import RELATIONS
from reflectune.examples.pocket.gallery.sources.reference_works import Article, Country
from reflectune.examples.pocket.gallery.taxonomy_facts import taxonomy_facts
from reflectune.examples.pocket.gallery.text_facts import PATTERNS, text_facts

from .conftest import country_page


def article(text: str, title: str = "Thing") -> Article:
    return Article(title, text, "", "")


@pytest.mark.parametrize(
    ("text", "category", "relation", "answers"),
    [
        ("It is native to Central Asia.", "animal", "native_to", ("Central Asia",)),
        (
            "It is native to the forests of Asia and Africa.",
            "animal",
            "native_to",
            ("Asia and Africa", "Asia", "Africa"),
        ),
        ("There are no such animals native to Australia.", "tool", "native_to", None),
        ("It is a fruit of the family Rutaceae.", "fruit", "family", ("Rutaceae",)),
        ("Most have four strings.", "instrument", "strings", ("4", "four")),
        ("There are three living species.", "animal", "species_count", ("3", "three")),
        ("A thing, also known as a gadget, is small.", "tool", "other_name", ("gadget",)),
        ("A thing, also known as a thing, is small.", "tool", "other_name", None),
        ("It is an omnivorous mammal.", "animal", "diet", ("omnivorous", "omnivore", "omnivores")),
        ("It is an Italian dish.", "food", "cuisine", ("Italian",)),
        ("It is an Italian dish.", "tool", "cuisine", None),
        ("It is the fourth planet from the Sun.", "planet", "planet_place", ("fourth",)),
        ("It stands in Agra, India.", "landmark", "city", ("Agra",)),
    ],
)
def test_a_pattern_reads_the_facts_of_its_kind_of_thing(
    text: str, category: str, relation: str, answers: tuple[str, ...] | None
) -> None:
    known = {fact.relation: fact.answers for fact in text_facts(article(text), category)}
    assert known.get(relation) == answers


def test_every_relation_has_words_held_out() -> None:
    assert {pattern.relation for pattern in PATTERNS} <= set(RELATIONS)
    for relation in RELATIONS.values():
        assert relation.train
        assert relation.held_out
        assert not set(relation.train) & set(relation.held_out)
        assert all("{it}" in text.lower() for text in (*relation.train, *relation.held_out))


def test_a_countrys_facts_are_stated_by_its_entry(sources: Collection) -> None:
    france = sources.countries[0]
    facts = list(country_facts(france, "France"))
    entry = entry_of(sources.articles["France"], facts)
    known = {fact.relation: fact for fact in facts}
    assert known["capital"].answers == ("Paris",)
    assert known["currency"].answers[:2] == ("euro", "euros")
    assert known["independence"].answers == ("1776", "4 July 1776")
    assert known["neighbours"].answers == ("Spain && Italy",)
    assert known["population"].range == pytest.approx((45e6, 55e6))
    assert known["elevation"].answers == ("4,810 metres",)
    for fact in facts:
        assert evidence_of(fact, entry), fact.relation
    titles = ["Summary", *(f"Facts: {part}" for part in ("geography", "people", "state", "economy"))]
    assert [section.title for section in entry.sections] == titles


@pytest.mark.parametrize("capital", ["administered from London", "none", "Nowhere", ""])
def test_what_is_no_capital_is_left_out(capital: str) -> None:
    page = country_page("Nowhere", ".nw", capital, "", "")
    assert "capital" not in {fact.relation for fact in country_facts(Country(page), "Nowhere")}


def test_a_fact_that_no_passage_states_has_no_evidence() -> None:
    entry = entry_of(article("It is red."), [])
    assert evidence_of(Fact("Thing", "family", ("Felidae",)), entry) == ()


def test_a_different_section_is_evidence_only_with_a_word_of_the_relation() -> None:
    fact = Fact("Thing", "capital", ("Paris",), heading="Facts", sentence="The capital is Paris.")
    told = entry_of(article("Its capital is Paris.", "Told"), [fact])
    named = entry_of(article("Its trains go to Paris.", "Named"), [fact])
    assert evidence_of(fact, told, "capital") == (Evidence("en:Told", 1), Evidence("en:Told", 0))
    assert evidence_of(fact, named, "capital") == (Evidence("en:Named", 1),)


def test_ranks_are_facts_unless_the_summary_contradicts(sources: Collection) -> None:
    def ranks(text: str, category: str = "animal") -> dict[str, str]:
        facts = taxonomy_facts(article(text, "Lion"), ("lion",), category, sources.wordnet)
        return {fact.relation: fact.answers[0] for fact in facts}

    lions = {"genus": "Panthera", "family": "Felidae", "order": "Carnivora", "class": "Mammalia"}
    assert ranks("It is large.") == lions
    assert "family" not in ranks("It is of the family Canidae.")
    assert "family" in ranks("It is of the family Felidae.")
    assert ranks("It is large.", "food") == {}
