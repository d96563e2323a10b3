"""Which file is exported, of which scheme, and where its images are."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.reflection_data import MANIFEST, image_roots, read_manifest
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.registry import find_scheme


def data_file(config: ExportConfig) -> Path:
    """The Parquet file of the split.

    Raises:
        UserError: There is none.
    """
    path = Path(config.data)
    file = path if path.is_file() else path / f"{config.split}.parquet"
    if not file.is_file():
        raise UserError(f"reflection data not found: {file}; build it with data_builders.build_mr2ag, or set `split`")
    return file


def scheme_and_images(config: ExportConfig) -> tuple[Scheme, tuple[Path, ...]]:
    """The data's scheme, and the folders that its image paths may lead into; relative ones start at the first.

    Raises:
        UserError: Another scheme is asked for than the manifest names.
    """
    if not Path(config.folder(), MANIFEST).is_file():
        return find_scheme(config.scheme), (Path(config.image_root), config.folder())
    manifest = read_manifest(config.folder())
    if config.scheme and config.scheme != manifest.scheme:
        raise UserError(f"{config.data} was built for the scheme `{manifest.scheme}`, and `scheme` is {config.scheme}")
    if config.image_root:
        return find_scheme(manifest.scheme), (Path(config.image_root), config.folder())
    return find_scheme(manifest.scheme), image_roots(config.folder(), manifest)
