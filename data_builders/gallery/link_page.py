"""A page with all links of pictures to articles, for a person to check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reflectune.core.html import render
from reflectune.data_builders.gallery.entities import Entity
from reflectune.data_builders.gallery.linking import Links
from reflectune.data_builders.gallery.questions import image_path
from reflectune.data_builders.proofreading.page import picture, write_articles
from reflectune.retrieval.passages import first_sentence


def write_link_page(path: Path, folder: Path, links: Links, entities: Sequence[Entity]) -> None:
    """Write one HTML file: of each entity every picture, the title, and the article's first sentence.

    Args:
        path: The file to write.
        folder: The data set, in which the pictures lie.
        links: How each picture was linked.
        entities: The pictured articles.
    """
    rules = {link.picture.id: link.rule for link in links.made}
    articles = [
        render(
            "data_builders/gallery/templates/link.html",
            picture=picture(image_path(one), folder, one.id),
            one=one,
            title=entity.article.title,
            topic=entity.article.description or entity.article.topic,
            rule=rules[one.id],
            use="knowledge base" if one is entity.shown else entity.role,
            sentence=first_sentence(entity.article.summary),
        )
        for entity in entities
        for one in (entity.shown, *entity.asked)
    ]
    note = f"{len(articles):,} pictures of {len(entities):,} articles; {len(links.refused):,} pictures were refused."
    write_articles(path, articles, "links of pictures to articles", note)
