from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError

from reflectune.core.config import (
    Settings,
    cross_check,
    find_problems,
    make_config,
    parse_config,
    setting,
    union,
)
from reflectune.core.errors import UserError
from reflectune.core.values import InputFile, Seed, Share, output_of


class Plain(Settings):
    """Settings of a test."""

    learning_rate: float = setting(1e-3, "peak learning rate")
    steps: int = setting(10, "steps", ge=1)
    method: Literal["full", "lora"] = setting("full", "weights to train")
    compile: Literal["auto", "on", "off"] = setting("auto", "compile layers")
    names: list[str] = setting([], "names")
    limit: int | None = setting(None, "most rows")
    name: str = setting("", "a name")
    files: dict[str, Any] = setting({}, "file of each split")
    rates: list[float] = setting([], "rates")
    dry_run: bool = setting(False, "say what would be done, and stop")
    resume: bool = setting(True, "go on")


def write(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return ["--config", str(path)]


def problems(kind: type[Settings], argv: list[str]) -> list[str]:
    with pytest.raises(UserError, match="the config has problems:") as caught:
        parse_config(kind, argv)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize(
    ("text", "argv", "values"),
    [
        ("steps: 3\nnames: [a, b]\n", ["--steps", "5"], {"steps": 5, "names": ["a", "b"]}),
        ("{}", ["--steps", "3", "--steps=5"], {"steps": 5}),
        ("{}", ["--files", '{"a": 1}', "--files", '{"b": 2}'], {"files": {"b": 2}}),
        ("learning_rate: 2e-5\nrates: [2e-5, 1]\n", [], {"learning_rate": 2e-5, "rates": [2e-5, 1]}),
        ("{}", ["--learning_rate", "-1", "--rates", "-1", "-2e-3"], {"learning_rate": -1, "rates": [-1, -2e-3]}),
        ("names: [c]\n", ["--names", "[]"], {"names": []}),
        ("limit: null\n", [], {"limit": None}),
        ("compile: off\ndry_run: on\n", [], {"compile": "off", "dry_run": True}),  # YAML 1.1 reads both as truth values
        ("compile: on\nresume: off\n", [], {"compile": "on", "resume": False}),
        ("limit: 3\n", ["--limit", "null"], {"limit": None}),
        ("{}", ["--dry_run"], {"dry_run": True, "resume": True}),
        ("{}", ["--dry-run", "--no-resume"], {"dry_run": True, "resume": False}),
        ("{}", ["--dry_run=true", "--resume", "false"], {"dry_run": True, "resume": False}),
        ("{}", ["--dry_run", "--no_dry_run", "--no_resume", "--resume"], {"dry_run": False, "resume": True}),
    ],
)
def test_the_last_flag_counts_then_the_file(tmp_path, text: str, argv: list[str], values: dict[str, Any]) -> None:
    flag, path = write(tmp_path, text)
    assert parse_config(Plain, [flag, path, *argv]) == parse_config(Plain, [f"{flag}={path}", *argv]) == Plain(**values)


@pytest.mark.parametrize(
    "argv",
    [
        ["--files", '{"train": "a.json"}', "--names", '["a", "b"]', "--rates", "[1e-3, 2]"],
        ['--files={"train": "a.json"}', "--names=[a, b]", "--rates=[0.001, 2]"],
        ["--files", "{train: a.json}", "--names", "a", "b", "--rates", "1e-3", "2"],
    ],
)
def test_a_mapping_or_list_on_the_command_line_is_json_or_yaml(argv: list[str], tmp_path: Path) -> None:
    file = write(tmp_path, "files: {val: b.json}\nnames: [c]\n")
    settings = parse_config(Plain, [*file, *argv, "--steps", "5"])
    assert (settings.files, settings.names, settings.steps) == ({"train": "a.json"}, ["a", "b"], 5)
    assert settings.rates == [0.001, 2]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "learning_rat: 1\nsteps: many\nmethod: qlora\nnames: a\n")
    assert problems(Plain, [*file, "--stepz", "3", "--limit"]) == [
        f"{file[1]}: unknown key `learning_rat`; did you mean `learning_rate`?",
        "command line: unknown key `stepz`; did you mean `steps`?",
        "command line: `limit` needs a value",
        "`steps` should be a whole number, found 'many'",
        "`method` should be one of 'full', 'lora', found 'qlora'",
        "`names` should be a list of text, found 'a'",
    ]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--config"], "--config needs the path"),
        (["--config="], "--config needs the path"),
        (["--config", "--steps"], "--config needs the path"),
        (["--config", "a.yaml", "--config=b.yaml"], "`--config` is given 2 times, with a.yaml and b.yaml; give one"),
        (["stray"], "stray word `stray`; a key is given as --key value"),
        (["--steps", "3", "stray"], "stray word `stray`"),
        (["--no_steps"], "`--no_steps` is for a key that is true or false"),
        (["--no_resume=1"], "`--no_resume` is for a key that is true or false"),
        (["--dry_run", "perhaps"], "`dry_run` should be true or false, found 'perhaps'"),
        (["--learning_rate", "1e400"], "`learning_rate` must be a finite number, found inf"),
        (["--learning_rate", "1e300"], "`learning_rate` must be between -9,007,199,254,740,992 and"),
        (["--steps", "9" * 400], "`steps` must be between -9,007,199,254,740,992 and"),
        (["--names", "\udcff"], "`names` is not UTF-8"),
        (["--files", "[a]"], "`files` should be a mapping, found ['a']"),
        (["--files", '{"a": 1, "a": 2}'], "`files` should be a mapping as JSON: `a` is given twice"),
        (["--files", "{1: a}"], "`files` should be a mapping, found 1"),
        (["--files", "[" * 5000], "`files` should be a mapping as JSON: nested too deeply"),
    ],
)
def test_a_bad_command_line_is_a_user_error(argv: list[str], problem: str) -> None:
    (found,) = problems(Plain, argv)
    assert problem in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n- b\n", "settings.yaml must hold `key: value` lines, found list"),
        ("steps: true\n", "`steps` should be a whole number, found True"),
        ('name: "a\\0b"', "holds a zero byte or half of a surrogate pair"),
        ('names: ["\\ud800"]', "holds a zero byte or half of a surrogate pair"),
        ('files: {a: "\\0"}', "holds a zero byte or half of a surrogate pair"),
    ],
)
def test_a_bad_file_is_a_user_error(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(Plain, write(tmp_path, text))
    assert problem in found


def test_a_leading_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    read = parse_config(Plain, write(tmp_path, 'name: ~/a\nnames: [~/b, "c~/d"]\nfiles: {train: ~/e}'))
    assert (read.name, read.names) == ("/home/ann/a", ["/home/ann/b", "c~/d"])
    assert read.files == {"train": "/home/ann/e"}


class Files(Settings):
    """Settings that name files."""

    read: InputFile = setting("", "a file")
    written: Annotated[str, output_of("made.json")] = setting("", "a folder")


def test_a_file_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kb.json").write_text("{}")
    assert find_problems(Files, {"read": "~/kb.json", "written": "~/new"}) == []
    assert make_config(Files, read="~/kb.json").read == str(tmp_path / "kb.json")
    (problem,) = find_problems(Files, {"written": "~/"})
    assert "holds a knowledge base already" in problem


def test_a_line_that_is_not_yaml_is_named_and_not_quoted(tmp_path: Path) -> None:
    """A line may hold a password."""
    (found,) = problems(Plain, write(tmp_path, 'steps: 1\nname: "http://me:hidden@host\n'))
    assert "settings.yaml is not valid YAML" in found
    assert "line 2, column" in found
    assert "hidden" not in found


class Guarded(Settings):
    """Settings with two secrets."""

    address: str = setting("", "an address with its password", secret=True)
    attempts: int = setting(1, "how often", ge=1, secret=True)
    name: str = setting("", "shown")


def test_a_secret_of_a_wrong_type_is_not_quoted(tmp_path: Path) -> None:
    assert problems(Guarded, write(tmp_path, "address: ['http://me:hidden@host']\nname: [shown]\n")) == [
        "`address` should be text, found a value of type list",
        "`name` should be text, found ['shown']",
    ]


def test_the_rest_of_a_secret_with_a_space_is_not_quoted() -> None:
    (found,) = problems(Guarded, ["--address", "http://me:pass", "hidden@host"])
    assert "`--address` takes one word; put quotes around it" in found
    assert "hidden" not in found


def test_a_secret_out_of_bounds_is_not_quoted() -> None:
    assert find_problems(Guarded, {"attempts": -73}) == ["`attempts` must be at least 1, found another value"]
    with pytest.raises(ValidationError) as caught:
        Guarded(attempts=-73)
    assert "73" not in str(caught.value)
    assert "hidden" not in repr(Guarded(address="hidden"))


class Bounded(Settings):
    """Settings with bounds."""

    share: float = setting(0.5, "a share, 50% of all", ge=0, le=1)
    steps: int | None = setting(None, "steps, if set", ge=1)
    rate: float = setting(1.0, "a rate", gt=0)
    part: float = setting(1.0, "a part", gt=0, le=1)
    most: int = setting(3, "at most", le=3)
    seed: Seed = setting(0, "seed")
    weights: list[Share] = setting([0.5], "weights")


@pytest.mark.parametrize(
    ("key", "good", "bad", "problem"),
    [
        ("share", (0, 1), (-0.1, 1.1), "`share` must be between 0 and 1, found {}"),
        ("steps", (1, None), (0,), "`steps` must be at least 1, found {}"),
        ("rate", (1e-9,), (0, -1), "`rate` must be above 0, found {}"),
        ("part", (1e-9, 1), (0, 2), "`part` must be above 0 and at most 1, found {}"),
        ("most", (3, -1), (4,), "`most` must be at most 3, found {}"),
        ("seed", (0, 2**32 - 1), (-1, 2**32), "`seed` must be between 0 and 4,294,967,295, found {}"),
        ("share", (), (float("nan"),), "`share` must be a finite number, found {}"),
        ("rate", (), (None,), "`rate` should be a number, found {}"),
    ],
)
def test_a_value_out_of_bounds_is_named(key: str, good: tuple[Any, ...], bad: tuple[Any, ...], problem: str) -> None:
    assert [find_problems(Bounded, {key: value}) for value in good] == [[] for _ in good]
    assert [find_problems(Bounded, {key: value}) for value in bad] == [[problem.format(value)] for value in bad]


def test_each_item_of_a_list_is_within_bounds() -> None:
    assert find_problems(Bounded, {"weights": [0, 2, 1]}) == ["`weights` must be between 0 and 1, found 2"]


class Checked(Bounded):
    """Settings that must fit each other."""

    output: str = setting("", "folder", needed="a folder")
    method: Literal["full", "lora"] = setting("full", "weights to train")

    @cross_check
    def rate_problems(self) -> Iterator[str]:
        """Yield a problem of two keys, then one that needs a third."""
        if self.method == "lora" and self.rate > 1:
            yield "`rate` is too high for lora"
        if self.is_partial and self.method == "full":
            yield "`part` is for lora"

    @property
    def is_partial(self) -> bool:
        """True if not all is taken."""
        return self.part < 1


def test_a_check_ends_at_a_key_that_is_wrong_itself() -> None:
    assert problems(Checked, ["--method", "lora", "--rate", "2", "--part", "7"]) == [
        "`part` must be above 0 and at most 1, found 7",
        "`output` is needed: a folder",
        "`rate` is too high for lora",
    ]
    assert problems(Checked, ["--part", "0.5", "--methot", "lora", "--output", "o"]) == [
        "command line: unknown key `methot`; did you mean `method`?"
    ]


def test_a_needed_key_that_is_misspelt_is_one_problem() -> None:
    assert problems(Checked, ["--outptu", "o"]) == ["command line: unknown key `outptu`; did you mean `output`?"]


def test_keys_that_another_key_needs_are_missing_unless_they_are_wrong() -> None:
    class Judged(Bounded):
        judge: bool = setting(False, "ask a judge")
        url: str = setting("", "the judge's server")

        @cross_check
        def judge_problems(self) -> Iterator[str]:
            if self.judge:
                yield from self.missing("url", "steps", "share", why="the judge's")

    assert find_problems(Judged, {}) == []
    assert find_problems(Judged, {"judge": True, "share": 0}) == [
        "`url` is needed: the judge's",
        "`steps` is needed: the judge's",
    ]
    assert find_problems(Judged, {"judge": True, "url": 3, "steps": 1}) == ["`url` should be text, found 3"]


def test_a_subclass_replaces_a_check_by_its_name() -> None:
    class Lenient(Checked):
        def rate_problems(self) -> Iterator[str]:
            yield from ()

        def needed_problems(self) -> Iterator[str]:
            yield from ()

    assert find_problems(Lenient, {"method": "lora", "rate": 2.0}) == []


def test_two_bases_must_not_have_different_checks_of_one_name() -> None:
    class Other(Settings):
        @cross_check
        def rate_problems(self) -> list[str]:
            return []

    with pytest.raises(TypeError, match="both have a check `rate_problems`; rename one"):
        type("Both", (Checked, Other), {})


def test_a_config_of_python_values_is_checked_whole() -> None:
    assert make_config(Checked, output="o").output == "o"
    with pytest.raises(UserError, match="`share` must be between 0 and 1, found 2\n  `output` is needed: a folder"):
        make_config(Checked, share=2)


class Search(Settings):
    """Settings of searching."""

    top_n: int = setting(5, "entries", ge=1)


class First(Search):
    """Settings of one pipeline."""

    saturation: float = setting(0.9, "τ", ge=-1, le=2)

    @cross_check
    def saturation_problems(self) -> Iterator[str]:
        """Yield a problem of two keys."""
        if self.saturation == 0 and self.top_n > 5:
            yield "`saturation` is 0"


class Second(Search):
    """Settings of a different pipeline."""

    crop: float = setting(0.0, "share", ge=0, le=1)


def test_a_union_has_the_keys_and_checks_of_all() -> None:
    both = union("Both", Search, First, Second)
    assert list(both.model_fields) == ["top_n", "crop", "saturation"]
    assert find_problems(both, {"crop": 2, "saturation": 0, "top_n": 6}) == [
        "`crop` must be between 0 and 1, found 2",
        "`saturation` is 0",
    ]
    assert First.of(make_config(both, saturation=0.5)) == First(saturation=0.5)
    with pytest.raises(TypeError, match="Second lacks keys of First: saturation"):
        First.of(Second())


def test_a_union_refuses_a_key_that_is_declared_twice() -> None:
    class Third(Settings):
        crop: float = setting(0.0, "a different share")

    with pytest.raises(TypeError, match="Second and Third both declare the key `crop`"):
        union("Both", First, Second, Third)


def test_a_union_refuses_base_classes_in_different_orders() -> None:
    class Shared(Settings):
        pass

    class One(First, Shared):
        pass

    class Other(Shared, First):
        pass

    with pytest.raises(TypeError, match=r"the same order everywhere: One\(First, Shared\); Other\(Shared, First\)"):
        union("Both", One, Other)
