"""Page for proof-reading a gallery: all links of images to articles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reflectune.data_builders.annotators.proofreading import PageArticle, PageLabel, write_page
from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.linking import Links
from reflectune.examples.pocket.gallery.questions import image_path
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.formats.passages import first_sentence


def write_link_page(path: Path, folder: Path, links: Links, entities: Sequence[GalleryEntity]) -> None:
    """Write one HTML file with every image, the title, and the article's first sentence of each entity.

    Args:
        path: Output file.
        folder: Folder of the data set, which has the images.
        links: Links of the images.
        entities: Depicted articles.
    """
    rules = {link.image.id: link.rule for link in links.made}

    def article(item: tuple[GalleryEntity, SourceImage]) -> PageArticle:
        entity, image = item
        title, topic = entity.article.title, entity.article.description or entity.article.topic
        use = "knowledge base" if image is entity.shown else entity.role
        label = PageLabel(rules[image.id], "relevant", image.name, [topic], subject=f"→ {title}")
        note = first_sentence(entity.article.summary)
        meta = [image.hand, image.style, use]
        return PageArticle(image.id, image_path(image), title, meta, [label], note=note)

    images = [(entity, image) for entity in entities for image in (entity.shown, *entity.asked)]
    title = f"links of images to {len(entities):,} articles, {len(links.refused):,} images refused"
    write_page(path, images, article, folder, title)
