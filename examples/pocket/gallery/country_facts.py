"""Facts about countries, from the World Factbook."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reflectune.core.types import AnswerType
from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.sources.reference_works import Country

GEOGRAPHY, PEOPLE, STATE, ECONOMY = (f"Facts: {part}" for part in ("geography", "people", "state", "economy"))
_CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania", "Central America", "Caribbean")
_BORDER = re.compile(r"([A-Z][A-Za-z' ]+?) (\d[\d,]*(?:\.\d+)?) ?km")
_IN_FULL = {
    "US": "United States",
    "USA": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "Burma": "Myanmar",
    "Czechia": "Czech Republic",
    "DRC": "Democratic Republic of the Congo",
}
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"


def country_facts(country: Country, title: str) -> Iterator[Fact]:
    """Return the Factbook's facts about a country, as sentences; entries of an unusual form are left out.

    Args:
        country: Page of the country.
        title: Title of its article.
    """
    for make in (_geography, _people, _state, _economy):
        for relation, heading, answers, answer_type, sentence in make(country, _with_article(title)):
            value = answers[0]
            if value and len(value.split()) <= 6 and re.search(r"\w", value):
                yield Fact(title, relation, answers, answer_type, heading, sentence)


_Row = tuple[str, str, tuple[str, ...], AnswerType, str]


_ARTICLE_STARTS = (
    *("United", "Netherlands", "Philippines", "Republic", "Democratic", "Central African", "Dominican", "Czech R"),
)
"""Beginnings of countries' names that need an article."""


def _with_article(title: str) -> str:
    """Return a country's name in a sentence, e.g. `the Netherlands`."""
    name = title.split(" (")[0]
    has_article = title.startswith(_ARTICLE_STARTS) or title.endswith(("Islands", "Maldives"))
    return f"the {name}" if has_article else name


def _geography(country: Country, name: str) -> Iterator[_Row]:
    location = re.split(r"[,;(]", country.text("Geography", "Location").split(": ", 1)[-1])[0].strip()
    continents = tuple(part for part in _CONTINENTS if part in location)
    if continents and len(location.split()) <= 3:
        sentence = f"{name[:1].upper()}{name[1:]} lies in {location}."
        yield "region", GEOGRAPHY, tuple(dict.fromkeys((location, *continents))), "string", sentence
    area = _amount(country.text("Geography", "Area", "total ") or country.text("Geography", "Area", "total"), "sq km")
    if area:
        text = f"{area} square kilometres"
        yield "area", GEOGRAPHY, (text,), "numerical", f"Its total area is {text}."
    peak = country.text("Geography", "Elevation", "highest point")
    match = re.match(r"([A-Z][^\d;,(]{2,30}?) (-?\d[\d,]*(?:\.\d+)?) ?(?:m\b|$|;)", peak)
    if match:
        yield "highest_point", GEOGRAPHY, (match[1],), "string", f"Its highest point is {match[1]}."
        text = f"{match[2]} metres"
        yield "elevation", GEOGRAPHY, (text,), "numerical", f"The highest point rises to {text}."
    coast = _amount(country.text("Geography", "Coastline"), "km")
    if coast and coast != "0":
        text = f"{coast} kilometres"
        yield "coastline", GEOGRAPHY, (text,), "numerical", f"The coastline is {text} long."
    borders = re.sub(r"^[^:]*: |\([^)]*\)", "", country.text("Geography", "Land boundaries", "border countries"))
    lengths = [(_IN_FULL.get(place.strip(), place.strip()), length) for place, length in _BORDER.findall(borders)]
    neighbours = [place for place, _ in lengths]
    if 2 <= len(neighbours) <= 3:
        answer = " && ".join(neighbours)
        text = f"{', '.join(neighbours[:-1])} and {neighbours[-1]}"
        yield "neighbours", GEOGRAPHY, (answer,), "multi_answer", f"It borders {text}."
    if len(neighbours) > 3:
        longest = max(lengths, key=lambda pair: float(pair[1].replace(",", "")))[0]
        yield "longest_border", GEOGRAPHY, (longest,), "string", f"Its longest land border is with {longest}."


def _people(country: Country, name: str) -> Iterator[_Row]:
    count = _amount(country.text("People and Society", "Population", "total"), "")
    if count:
        text = f"{count} people"
        yield "population", PEOPLE, (text,), "numerical", f"The population is {text}."
    demonym = country.text("People and Society", "Nationality", "adjective")
    if re.fullmatch(r"[A-Z][\w' -]+", demonym) and demonym != name:
        yield "demonym", PEOPLE, (demonym,), "string", f"Something from {name} is called {demonym}."
    spoken = country.text("People and Society", "Languages", "Languages")
    match = re.match(r"(?:Modern |Standard )?([A-Z][\w' -]+?)(?: \([^)]*official[^)]*\)| \d)", spoken)
    if match and " or " not in match[1]:
        yield "language", PEOPLE, (match[1],), "string", f"The main language is {match[1]}."
    religion = re.match(r"([A-Z][\w' -]+?) (?:\([^)]*\) ?)*[<>~]?\d", country.text("People and Society", "Religions"))
    if religion and religion[1] not in ("Other", "None", "Unspecified"):
        yield "religion", PEOPLE, (religion[1],), "string", f"The most common religion is {religion[1]}."
    age = _amount(country.text("People and Society", "Median age", "total"), "years")
    if age:
        yield "median_age", PEOPLE, (f"{age} years",), "numerical", f"The median age is {age} years."


def _state(country: Country, name: str) -> Iterator[_Row]:
    capital = re.split(r"[(;,]", country.text("Government", "Capital", "name"))[0].strip()
    if capital[:1].isupper() and capital != name:
        yield "capital", STATE, _place_names(capital), "string", f"The capital is {capital}."
    form = re.split(r"[;(,]", country.text("Government", "Government type"))[0].strip()
    if 0 < len(form.split()) <= 4:
        yield "government", STATE, (form,), "string", f"The form of government is {_indefinite(form)}."
    date = re.match(rf"(\d{{1,2}} (?:{_MONTHS}) )?(\d{{4}})\b", country.text("Government", "Independence"))
    if date:
        whole = f"{date[1] or ''}{date[2]}"
        sentence = f"It became independent {'on' if date[1] else 'in'} {whole}."
        yield "independence", STATE, tuple(dict.fromkeys((date[2], whole))), "time", sentence
    anthem = re.findall(r"\"([^\"]+)\"", country.text("Government", "National anthem(s)", "title"))
    if len(anthem) == 1 and len(anthem[0].split()) <= 5:
        song = anthem[0].strip(" ,.")
        yield "anthem", STATE, (song,), "string", f"The national anthem is “{song}”."
    holiday = re.match(
        r"([A-Z][\w' ]+?), (?:\d|(?:first|second|third|last) )", country.text("Government", "National holiday")
    )
    if holiday and holiday[1] not in ("Independence Day", "National Day") and not re.search("[A-Z]{3}", holiday[1]):
        yield "holiday", STATE, (holiday[1],), "string", f"The national holiday is {holiday[1]}."
    symbol = re.sub(r" \([^)]*\)", "", country.text("Government", "National symbol(s)"))
    if re.fullmatch(r"[a-z][a-z' -]+", symbol):
        yield "symbol", STATE, (symbol,), "string", f"The national symbol is the {symbol}."


def _economy(country: Country, name: str) -> Iterator[_Row]:
    money = re.match(r"([A-Za-z' -]+?) \(([A-Z]{3})\)", country.text("Economy", "Exchange rates", "Currency"))
    if money:
        currency, code = money[1].strip(), money[2]
        sentence = f"The currency is the {singular(currency)} ({code})."
        yield "currency", ECONOMY, _currency_names(currency, code), "string", sentence
    goods = re.match(r"([a-z][\w' /-]+?)(?:,| \()", country.text("Economy", "Exports - commodities"))
    if goods:
        yield "export", ECONOMY, (goods[1],), "string", f"The most important export is {goods[1]}."
    partner = re.match(r"([A-Z][A-Za-z' ]+?) \d", country.text("Economy", "Exports - partners"))
    if partner:
        place = _IN_FULL.get(partner[1], partner[1])
        yield "partner", ECONOMY, (place,), "string", f"Most exports go to {place}."
    crop = re.match(r"([a-z][\w' /-]+?)(?:,| \()", country.text("Economy", "Agricultural products"))
    if crop:
        yield "crop", ECONOMY, (crop[1],), "string", f"The main agricultural product is {crop[1]}."


def _amount(text: str, unit: str) -> str:
    """Return the number at the start of a text, with its magnitude if it has one, if the unit follows."""
    match = re.match(rf"(?:total: )?(-?\d[\d,]*(?:\.\d+)?(?: million| billion)?) ?{re.escape(unit)}", text)
    return match[1] if match else ""


def _indefinite(text: str) -> str:
    return f"{'an' if text[0].lower() in 'aeio' else 'a'} {text}"


def _place_names(place: str) -> tuple[str, ...]:
    """Return a place's name, and the name without `City`, `D.C.` or a qualifier."""
    short = re.sub(r" (?:City|D\.?C\.?)$|,.*$", "", place)
    return tuple(dict.fromkeys((place, short)))


def singular(money: str) -> str:
    """Return a currency's name in the singular: "US dollar" of "US dollars"."""
    words = money.split()
    last = words[-1]
    if last.endswith("ies"):
        last = last[:-3] + "y"
    elif last.endswith(("ales", "ones")):  # quetzales, colones
        last = last[:-2]
    elif last.endswith("s") and not last.endswith("ss"):
        last = last[:-1]
    return " ".join([*words[:-1], last])


def _currency_names(money: str, code: str) -> tuple[str, ...]:
    """Return a currency's name in the singular and plural, the last word of each, and the code."""
    single = singular(money)
    return tuple(dict.fromkeys((single, money, single.split()[-1], money.split()[-1], code)))
