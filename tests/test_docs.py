"""The documents: links and paths lead somewhere, code runs. (`scripts/lint.sh` builds the site.)"""

import ast
import importlib
import re
import runpy
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reflectune import cli
from reflectune.core.command import Command
from reflectune.core.config import parse_config
from reflectune.core.errors import UserError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.md"))
FOLDERS = "core|formats|models|metrics|retrieval|data_builders|inference|train|examples|tests|benchmarks|scripts"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w/]+(?:\.\w+|/))`")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = re.findall(
    r"^(\w+) = \[", PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.MULTILINE
)

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "python", "bash", "console", "sh", "yaml", "json", "{toctree}", "{eval-rst}"}
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
COMMAND = re.compile(r"(?:\$launch|accelerate launch|bash|pip install|(?:\.venv/bin/)?(?:python|reflectune))\s+\S")
OTHERS = {"cd", "dvc", "export", "hf", "img2dataset", "lmms-eval", "pipx", "source", "true", "vllm"}
"""Programs that are not ours; any other word where a command stands is taken for a slip."""


class Block(NamedTuple):
    """A fenced block: its page, the line where it begins, its language and its text."""

    page: Path
    line: int
    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def place(block: Block) -> str:
    return f"{name(block.page)}:{block.line}"


def blocks(*languages: str) -> list[Block]:
    """All fenced blocks of these languages."""
    return [
        Block(page, text.count("\n", 0, fence.start()) + 1, *fence.groups())
        for page in (*PAGES, *BENCHMARKS)
        for text in [page.read_text(encoding="utf-8")]
        for fence in FENCE.finditer(text)
        if fence.group(1) in languages
    ]


def wrong(check: Callable[[Path], Any], pages: Iterable[Path]) -> dict[str, Any]:
    """Return the findings of a check by page."""
    return {name(page): found for page in pages if (found := check(page))}


def test_links_lead_to_files_that_are_there() -> None:
    def lost(page: Path) -> list[str]:
        targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
        return [target for target in targets if not (page.parent / target).exists()]

    assert wrong(lost, PAGES) == {}


def test_paths_of_modules_are_right() -> None:
    def lost(page: Path) -> list[str]:
        paths = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if "NAME" not in path]
        return [path for path in paths if not (ROOT / path).exists()]

    assert wrong(lost, PAGES) == {}


def test_names_in_modules_are_right() -> None:
    named = r"`(\w+)`,? (?:of|in) `([\w/]+/\w+\.py)`"

    def lost(page: Path) -> list[tuple[str, str]]:
        found = re.findall(named, page.read_text(encoding="utf-8"))
        return [(name, path) for name, path in found if not re.search(rf"\b{name}\b", (ROOT / path).read_text())]

    assert re.findall(named, "`Metric` of `core/types.py`") == [("Metric", "core/types.py")]
    assert wrong(lost, PAGES) == {}


def test_every_page_is_in_the_sites_contents() -> None:
    contents = (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} == {
        line for line in contents if line.isidentifier()
    }


def test_the_table_of_folders_has_every_folder_and_every_command() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|(.*)\|(.*)\|$", text, re.MULTILINE)
    assert {folder for folder, *_ in rows} == {
        path.name for path in (ROOT / "src/reflectune").iterdir() if path.is_symlink()
    }
    for folder, on_top, below in rows:
        inner = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        assert inner == set(re.findall(r"`(\w+)/`", below)) - {"templates"}, folder
        scripts = (path for path in (ROOT / folder).glob("*.py") if "\n@command(" in path.read_text(encoding="utf-8"))
        assert {path.stem for path in scripts} <= set(re.findall(r"`(\w+)`", on_top)), folder


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_image_is_what_its_source_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/pipeline.py"))["draw"]()
    assert (ROOT / "docs/pipeline.svg").read_text(encoding="utf-8") == drawn


def headless(page: Path) -> list[str]:
    """Return the first rows of tables without a head; rows after a blank line are not a table."""
    lines = ["", *FENCE.sub("", page.read_text(encoding="utf-8")).splitlines(), ""]
    heads = [
        number for number, line in enumerate(lines) if line.startswith("|") and not lines[number - 1].startswith("|")
    ]
    return [lines[number] for number in heads if not re.fullmatch(r"\|[-:| ]+\|", lines[number + 1])]


def test_tables_have_a_head() -> None:
    assert wrong(headless, [*PAGES, *BENCHMARKS]) == {}


def test_every_fence_is_read_here() -> None:
    """A fence that is indented, or of another language, would escape the tests below."""
    for page in (*PAGES, *BENCHMARKS):
        text = page.read_text(encoding="utf-8")
        fences = FENCE.findall(text)
        assert {language for language, _ in fences} <= LANGUAGES, page
        assert text.count("```") == 2 * len(fences), page


# Python.


def run_python(text: str) -> None:
    """Run a block. An error that a run's folder, which the block names, does not exist yet is ignored.

    transformers raises an OSError then.
    """
    constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    runs = [value for value in constants if isinstance(value, str) and value.startswith(("runs/", "data/"))]
    try:
        exec(compile(text, "block", "exec"), {"__name__": "block"})
    except (UserError, OSError) as error:
        if not any(run in str(error) for run in runs):
            raise


@pytest.mark.parametrize("block", blocks("python"), ids=place)
def test_python_runs_as_far_as_there_are_files(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(block.text)


# Commands.

NOT_THERE_YET = re.compile(r"  `\w+` (.* is not a folder|must be an existing (file|folder), )")
"""Problems of a value whose file an earlier command writes."""


def parse(module: str, words: list[str]) -> list[str]:
    """Return the problems of a command's keys, those in its YAML file too, and of their values' types.

    Whether folders exist is not checked.
    """
    (command,) = (value for value in vars(importlib.import_module(module)).values() if isinstance(value, Command))
    kind = type(command.kind.__name__, (command.kind,), {"problems": lambda self: []})
    try:
        parse_config(kind, words)
    except UserError as error:
        issues = str(error).splitlines()
        left = [issue for issue in issues[1:] if not NOT_THERE_YET.match(issue)]
        return left if left or len(issues) > 1 else issues
    return []


def options_of_script(path: Path) -> set[str]:
    """Return the options of an argparse script, with those of `results.parser` where it starts from that."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    options = {
        str(argument.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    if path.name != "results.py" and any(isinstance(c.func, ast.Name) and c.func.id == "parser" for c in calls):
        options |= options_of_script(path.with_name("results.py"))
    return options


def unknown_options(known: set[str], words: list[str]) -> list[str]:
    return [f"takes no {word}" for word in words if word.startswith("--") and word.split("=")[0] not in known]


MODULES = {module.partition(".")[2]: module for modules in cli.GROUPS.values() for module in modules}


def front_door_problems(words: list[str], files: Mapping[str, Path]) -> list[str]:
    """Return the problems of the words behind `reflectune`."""
    if words in (["--help"], ["--version"], ["COMMAND", "--help"]):
        return []
    words = words[1:] if words[0] in cli.GROUPS and words[1:2] and words[1] in MODULES else words
    if words[0] not in MODULES:
        return [f"reflectune has no command {words[0]}"]
    return module_problems(f"reflectune.{MODULES[words[0]]}", words[1:], files)


def module_problems(module: str, words: list[str], files: Mapping[str, Path]) -> list[str]:
    """Return the problems of the words behind `python -m MODULE`."""
    path = ROOT / f"{module.removeprefix('reflectune.').replace('.', '/')}.py"
    if not module.startswith("reflectune.") or not path.is_file():
        return [f"{module} does not exist"]
    text = path.read_text(encoding="utf-8")
    if "__main__" not in text and "\n@command(" not in text:
        return [f"{module} is not a command"]
    if "\n@command(" not in text:
        return unknown_options(options_of_script(path), words)
    given = [
        str(files.get(word, ROOT / word)) if before == "--config" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    return parse(module, given)


def script_problems(path: str, words: list[str], files: Mapping[str, Path]) -> list[str]:
    """Return the problems of a script and its words: our entry scripts, benchmarks, and what bash runs."""
    script = ROOT / path
    if not script.is_file():
        return [f"{path} does not exist"]
    if script.suffix == ".py" and path.startswith(("benchmarks/", "docs/", "tests/")):
        return unknown_options(options_of_script(script), words)
    if script.suffix == ".py":
        return module_problems(f"reflectune.{path.removesuffix('.py').replace('/', '.')}", words, files)
    text = script.read_text(encoding="utf-8")
    if 'pytest "$@"' in text:
        return []
    if '"tests/soak/$soak.py" "$@"' in text:
        return script_problems(f"tests/soak/{words[0]}.py", words[1:], files)
    passed = re.search(r'-m reflectune\.([\w.]+) "\$@"', text)
    called = ROOT / f"{passed[1].replace('.', '/')}.py" if passed else None
    return unknown_options(options_of_script(called) if called else set(), words)


def program_problems(words: list[str], files: Mapping[str, Path]) -> list[str]:
    """Return the problems of the words behind `python` or `$launch`: `-m` and a module, or a script."""
    if words[:2] == ["-m", "venv"]:
        return []
    return module_problems(words[1], words[2:], files) if words[0] == "-m" else script_problems(*split(words), files)


def launch_problems(words: list[str], files: Mapping[str, Path]) -> list[str]:
    """Return the problems of the words behind `accelerate launch`."""
    if words[0] != "--config_file":
        return program_problems(words, files)
    issues = [] if (ROOT / words[1]).is_file() else [f"{words[1]} does not exist"]
    rest = words[4:] if words[2:3] == ["--num_processes"] else words[2:]
    return issues + (program_problems(rest, files) if rest else [])


def command_problems(line: str, files: Mapping[str, Path] | None = None) -> list[str]:
    """Return the problems of one command.

    Args:
        line: As a person types it.
        files: YAML files that the page shows, by the name that it gives them.
    """
    words, files = shlex.split(line, comments=True), files or {}
    variables = []
    while words and (assigned := re.fullmatch(r"(\w+)=(.*)", words[0])):
        variables.append(assigned[1])
        words = words[1:]
        if not words:  # `launch="accelerate launch …"`
            return command_problems(assigned[2], files) if COMMAND.match(assigned[2].removeprefix(".venv/bin/")) else []
    if not words:
        return []
    if words[-1] == "…" and not words[-2].startswith("--"):
        words = words[:-1]
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "reflectune":
        return front_door_problems(rest, files)
    if program == "python":
        return program_problems(rest, files)
    if program == "bash":
        text = (ROOT / rest[0]).read_text(encoding="utf-8") if (ROOT / rest[0]).is_file() else ""
        unread = [f"{rest[0]} reads no {key}" for key in variables if text and f"${{{key}:-" not in text]
        if 'exec "$@"' in text:  # the script runs the command behind it
            return unread + command_problems(shlex.join(rest[1:]), files)
        return unread + script_problems(*split(rest), files)
    if program == "$launch":
        return program_problems(rest, files)
    if program == "accelerate":
        return launch_problems(rest[1:], files)
    if program == "pip":
        extras = re.findall(r"(?:reflectune|\.)\[([\w,]+)\]", " ".join(rest))
        return [f"there is no extra {one}" for group in extras for one in group.split(",") if one not in EXTRAS]
    return [] if program in OTHERS else [f"{program} is not known"]


def split(words: list[str]) -> tuple[str, list[str]]:
    return words[0], words[1:]


def commands(page: Path) -> Iterator[str]:
    """Yield the commands of a page, those of its shell blocks and those between backticks."""
    for block in blocks("bash", "console", "sh"):
        if block.page == page:
            lines = block.text.replace("\\\n", " ").splitlines()
            shown = [line[2:] for line in lines if line.startswith("$ ")] if block.language == "console" else lines
            yield from (part for line in shown for part in re.split(r"\s+(?:&&|;|\|)\s+", line))
    for span in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        one = " ".join(span.split())
        if COMMAND.match(re.sub(r"^(?:\w+=\S+ )+", "", one)) and not one.endswith("python -m"):
            yield one


@pytest.fixture
def shown_files(tmp_path: Path) -> Mapping[Path, dict[str, Path]]:
    """The YAML files that each page shows, written down."""
    files: dict[Path, dict[str, Path]] = {page: {} for page in (*PAGES, *BENCHMARKS)}
    for number, block in enumerate(blocks("yaml")):
        if match := re.search(r"--config (\S+)", block.text.splitlines()[0]):
            path = tmp_path / f"{number}.yaml"
            path.write_text(block.text, encoding="utf-8")
            files[block.page][match[1]] = path
    return files


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS], ids=name)
def test_commands_are_there_and_take_what_they_are_given(page: Path, shown_files) -> None:
    wrong = {line: issues for line in commands(page) if (issues := command_problems(line, shown_files[page]))}
    assert wrong == {}


def test_every_command_stands_on_the_commands_page() -> None:
    words = [word for line in commands(ROOT / "docs/commands.md") for word in shlex.split(line)[1:4]]
    shown = {Path(word).stem if word.endswith(".py") else word.rpartition(".")[2] for word in words}
    assert set(MODULES) - shown == set()


def test_commands_are_found() -> None:
    counts = {page.name: len(list(commands(page))) for page in PAGES}
    assert counts["README.md"] > 12
    assert counts["commands.md"] > 30
    assert counts["self_labelling.md"] >= 6


@pytest.mark.parametrize(
    ("line", "issue"),
    [
        ("python benchmarks/retrieval.py --seed 0", "takes no --seed"),
        ("python -m reflectune.examples.miniature.build_world --config configs/none.yaml", "configs/none.yaml"),
        ("python -m reflectune.examples.miniature.build_world --sede 0", "unknown key `sede`; did you mean `seed`?"),
        ("reflectune nothing --seed 0", "has no command nothing"),
        ("python -m reflectune.inference.config", "is not a command"),
        ("reflectune export --to excel", "`to` should be one of"),
        ("reflectune estimate --processes many", "`processes` should be a whole number"),
        ("bash scripts/none.sh", "does not exist"),
        ("bash scripts/pocket.sh --quik", "takes no --quik"),
        ("bash scripts/soak.sh kill --kils 4", "takes no --kils"),
        ("COLOUR=1 bash scripts/quickstart.sh", "reads no COLOUR"),
        ("$launch -m reflectune.retrieval.build_index --worker 8", "unknown key `worker`"),
        ("$launch train/sft.py --config configs/examples/miniature/sft.yaml --epoch 3", "unknown key `epoch`"),
        ("accelerate launch train/stf.py", "does not exist"),
        (
            "accelerate launch --config_file configs/accelerate/zero9.yaml --num_processes 8 train/sft.py …",
            "zero9.yaml",
        ),
        ('launch=".venv/bin/accelerate launch --config_file configs/accelerate/tpu.yaml"', "tpu.yaml does not exist"),
        ("pip install 'reflectune[rogue]'", "no extra rogue"),
        ("pyhton train/sft.py", "pyhton is not known"),
    ],
)
def test_a_wrong_command_is_noticed(line: str, issue: str) -> None:
    (problem,) = command_problems(line)
    assert issue in problem


# YAML.


def yaml_problems(text: str, file: Path) -> list[str]:
    """Return the problems of a YAML block, whose first line names its command: `# python -m … --config NAME.yaml`."""
    command = text.splitlines()[0].removeprefix("# ")
    if not COMMAND.match(command) or " --config " not in command:
        return ["the first line is not a comment with a command and its --config"]
    file.write_text(text, encoding="utf-8")
    return command_problems(command, {command.split(" --config ")[1].split()[0]: file})


@pytest.mark.parametrize("block", blocks("yaml"), ids=place)
def test_yaml_is_what_its_command_reads(block: Block, tmp_path: Path) -> None:
    assert yaml_problems(block.text, tmp_path / "block.yaml") == []
