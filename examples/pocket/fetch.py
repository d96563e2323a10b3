"""Fetch pocket's parts into the user's cache: `python -m reflectune.examples.pocket.fetch [--list]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from reflectune.core.entry_point import entry_point
from reflectune.examples.pocket.models.parts import PARTS, PocketPart, fetch, is_fetched, read_part


@entry_point
def main() -> None:
    """Fetch every part, or list them, with licences and sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="fetch nothing; say what there is, and its licences")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; by default all")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in arguments.parts or PARTS:
        if arguments.list:
            print(_listed(PARTS[name]))
        else:
            start = time.monotonic()
            folder = fetch(name)
            print(f"{_fetched(name)}; {folder} ({_mib(folder)} MiB, {time.monotonic() - start:.1f} s)", flush=True)


def _listed(part: PocketPart) -> str:
    state = "fetched" if is_fetched(part.name) else "not fetched yet"
    return (
        f"pocket/{part.name}: {part.title} ({part.licence}), {state}; "
        f"from {part.repository} at {part.commit[:8]}, else out of {part.package}"
    )


def _fetched(name: str) -> str:
    record = read_part(name)
    source = record["source"]
    origin = f"{source['hub']} at {source['commit'][:8]}" if "hub" in source else str(PARTS[name].package)
    return f"pocket/{name}: {record['title']} ({record['licence']}), from {origin}"


def _mib(folder: Path) -> int:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20)


if __name__ == "__main__":
    main()
