"""Write a benchmark's results as JSON, its page, and the board of claims: `python benchmarks/results.py`."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_atomically

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "benchmarks"
RESULTS = PAGES / "results"
PACKAGES = ("torch", "transformers", "peft", "trl", "faiss-cpu")
UNRECORDED = ("--results", "--run", "--commit")
"""Options that change no figure, and are left out of a recorded command."""


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder.

    Attributes:
        name: Name of the script, of its page and of its results.
        title: Title of its page.
        text: Text between title and tables, in Markdown.
        tables: Lines of the page below the text, from the figures.
        claims: Rows of the board, from the figures: claim, measured value, reference.
        also: Further results that the page shows: name, and function that returns their lines from the figures.
        joined: True to keep the figures of earlier commands with the same commit, machine and versions in the file.
    """

    name: str
    title: str
    text: str
    tables: Callable[[dict[str, Any]], list[str]]
    claims: Callable[[dict[str, Any]], list[tuple[str, str, str]]] = lambda figures: []
    also: Mapping[str, Callable[[dict[str, Any]], list[str]]] | None = None
    joined: bool = False

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return a parser with the options that every benchmark has."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file to write")
        parser.add_argument("--commit", help="commit to record, for a machine without git")
        parser.add_argument("--page", action="store_true", help="measure nothing: write the page from the JSON file")
        return parser

    def parse(self, parser: argparse.ArgumentParser) -> argparse.Namespace:
        """Parse the command line; with `--page`, write the page and exit."""
        arguments = parser.parse_args()
        if arguments.page:
            self.write_page(arguments)
            parser.exit()
        return arguments

    def write(self, figures: dict[str, Any], arguments: argparse.Namespace, name: str = "") -> Path:
        """Write the figures with the machine, the commit and the command; return the file."""
        path = arguments.results / f"{name or self.name}.json"
        measured = {
            "benchmark": self.name,
            "commit": arguments.commit or commit(),
            "machine": machine(figures.get("gpu")),
            "versions": versions(),
        }
        commands = [command_line()]
        if self.joined and path.is_file():
            earlier = read_json(path, "the results")
            if measured.items() <= earlier.items():
                figures = earlier["figures"] | figures
                commands = list(dict.fromkeys([*earlier["command"].split(" && "), *commands]))
        record = {
            **measured,
            "date": datetime.date.today().isoformat(),
            "command": " && ".join(commands),
            "claims": [dict(zip(("claim", "value", "reference"), row, strict=True)) for row in self.claims(figures)],
            "figures": figures,
        }
        write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return path

    def finish(self, figures: dict[str, Any], arguments: argparse.Namespace) -> None:
        """Write the figures and the page, and print the page."""
        self.write(figures, arguments)
        self.write_page(arguments)

    def page(self, results: Path = RESULTS) -> str:
        """Return the page as Markdown."""
        lines = [f"# {self.title}", "", self.text.strip(), ""]
        for name, tables in {self.name: self.tables, **(self.also or {})}.items():
            path = results / f"{name}.json"
            if path.is_file():
                record = read_json(path, "the results")
                lines += [_source(record), "", *tables(record["figures"]), ""]
        return "\n".join(lines).rstrip() + "\n"

    def write_page(self, arguments: argparse.Namespace) -> None:
        """Write the page, and print it."""
        text = self.page(arguments.results)
        if arguments.results.resolve() == RESULTS:
            (PAGES / f"{self.name}.md").write_text(text, encoding="utf-8")
        print(text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; all columns but the first are right-aligned."""
    lines = [list(map(str, head)), ["---", *["--:"] * (len(head) - 1)], *[list(map(_cell, row)) for row in rows]]
    return [f"| {' | '.join(line)} |" for line in lines]


def score_cells(score: Mapping[str, Any]) -> tuple[str, str]:
    """Return the cells of a score in per cent: its value, and its interval."""
    return f"{100 * score['value']:.1f}", f"{100 * score['low']:.1f} to {100 * score['high']:.1f}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _source(record: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return f"`{record['command']}`: {record['machine']}; {packages}; commit {record['commit']}, {record['date']}."


def commit() -> str:
    """Return the short hash of HEAD, with a plus if tracked sources have changed since."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "*.py", "*.yaml"], cwd=ROOT)
    except OSError:
        return "unknown"
    return head.stdout.strip() + "+" * changed.returncode if head.returncode == 0 else "unknown"


def machine(gpu: str | None = None) -> str:
    """Return the GPU's name, or the CPU's name and its cores."""
    if gpu:
        return gpu
    import psutil

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {psutil.cpu_count(logical=False) or 1} cores"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """Return the command of this process as it is typed in the repository, without options that change no figure."""
    script, *left = sys.argv
    kept: list[str] = []
    while left:
        word = left.pop(0)
        if word in UNRECORDED:
            left = left[1:]
        elif not word.startswith(tuple(f"{name}=" for name in UNRECORDED)):
            kept.append(word)
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *kept])


def board(results: Path = RESULTS) -> str:
    """Return the board of claims as Markdown, one row a claim."""
    rows = []
    for path in sorted(results.glob("*.json")):
        record = read_json(path, "the results")
        for row in record["claims"]:
            page = f"[{record['benchmark']}]({record['benchmark']}.md)"
            cells = (row["claim"], row["value"], row["reference"], record["machine"], record["commit"], page)
            rows.append(cells)
    head = "# Board of measurements\n\nA reference is the rival's figure, or an aim set before the measurement.\n\n"
    return head + "\n".join(table(("claim", "measured", "reference", "machine", "commit", "page"), rows)) + "\n"


def main() -> None:
    """Write the board."""
    (PAGES / "board.md").write_text(board(), encoding="utf-8")
    print(board(), end="")


if __name__ == "__main__":
    main()
