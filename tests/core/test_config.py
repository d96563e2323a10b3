from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import UserError


@dataclass
class Settings:
    """Settings of a test."""

    learning_rate: float = 1e-3
    steps: int = 10
    method: Literal["full", "lora"] = "full"
    names: list[str] = field(default_factory=list)
    limit: int | None = None
    files: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    dry_run: bool = False

    def problems(self) -> list[str]:
        return ["`steps` must be positive"] if self.steps < 1 else []


def write(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return ["--config", str(path)]


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    (settings,) = parse_config(Settings, argv=[*write(tmp_path, "steps: 3\nnames: [a, b]\n"), "--steps", "5"])
    assert (settings.steps, settings.names) == (5, ["a", "b"])


def test_of_a_key_that_the_command_line_has_twice_the_last_value_counts() -> None:
    given = ["--steps", "3", "--steps=5", "--files", '{"a": 1}', "--files", '{"b": 2}']
    (settings,) = parse_config(Settings, argv=given)
    assert (settings.steps, settings.files) == (5, {"b": 2})


def test_a_number_that_yaml_reads_as_text_is_a_number(tmp_path: Path) -> None:
    (settings,) = parse_config(Settings, argv=write(tmp_path, "learning_rate: 2e-5\n"))
    assert settings.learning_rate == 2e-5


def test_the_file_may_be_joined_to_its_flag(tmp_path: Path) -> None:
    _, path = write(tmp_path, "steps: 3\n")
    (settings,) = parse_config(Settings, argv=[f"--config={path}"])
    assert settings.steps == 3


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
    (settings,) = parse_config(Settings, argv=[*file, *argv, "--steps", "5"])
    assert (settings.files, settings.names, settings.steps) == ({"train": "a.json"}, ["a", "b"], 5)
    assert settings.rates == [0.001, 2]


def test_a_list_on_the_command_line_may_be_empty(tmp_path: Path) -> None:
    (settings,) = parse_config(Settings, argv=[*write(tmp_path, "names: [c]\n"), "--names", "[]"])
    assert settings.names == []


def test_numbers_that_yaml_reads_as_text_are_numbers_in_a_list_too(tmp_path: Path) -> None:
    (settings,) = parse_config(Settings, argv=write(tmp_path, "rates: [2e-5, 1]\n"))
    assert settings.rates == [2e-5, 1]


def test_a_file_beside_the_script_is_no_source_of_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers' parser would read the words of `SCRIPT.args`."""
    (tmp_path / "sft.args").write_text("--steps 7")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "sft.py")])
    (settings,) = parse_config(Settings)
    assert settings.steps == 10


def test_a_key_given_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`steps` is given twice, in lines 1 and 3; drop one"):
        parse_config(Settings, argv=write(tmp_path, "steps: 3\nnames: [a]\nsteps: 4\n"))


def test_every_problem_of_the_file_is_reported_at_once(tmp_path: Path) -> None:
    text = "learning_rat: 1\nsteps: many\nmethod: qlora\nnames: a\n"
    with pytest.raises(UserError) as caught:
        parse_config(Settings, argv=write(tmp_path, text))
    message = str(caught.value)
    assert "unknown key `learning_rat`; did you mean `learning_rate`?" in message
    assert "`steps` should be a whole number, found 'many'" in message
    assert "`method` should be one of 'full', 'lora', found 'qlora'" in message
    assert "`names` should be a list of text, found 'a'" in message


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--stepz", "3"], "did you mean `steps`?"),
        (["--config"], "--config needs the path"),
        (["--config", "nowhere.yaml"], "config file not found: nowhere.yaml"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'; --help lists the keys"),
        (["--steps", "0"], "`steps` must be positive"),
        (["--config="], "--config needs the path"),
        (["--config", "--steps"], "--config needs the path"),
        (["--config", "."], "config file needed, . is a folder; name the YAML file in it"),
        (["--config", "a.yaml", "--config=b.yaml"], "`--config` is given 2 times, with a.yaml and b.yaml; give one"),
        (["stray"], "stray word `stray`; a key is given as --key value"),
        (["--steps", "3", "stray"], "stray word `stray`"),
        (["-s", "3"], "stray word `-s`"),
        (["--learning_rate", "nan"], "`learning_rate` must be a finite number, found nan"),
        (["--learning_rate", "1e400"], "`learning_rate` must be a finite number, found inf"),
        (["--steps", "9" * 400], "`steps` must be at most"),
        (["--names", "\udcff"], "half of a surrogate pair"),
        (["--names", "[a, [b]]"], "`names` should be a list of text, found ['a', ['b']]"),
        (["--files", "[a]"], "`files` should be a mapping, found ['a']"),
        (["--files", '{"a": 1, "a": 2}'], "`files` should be a mapping: `a` is given twice"),
        (["--files", "{1: a}"], "`files` should be a mapping, found {1: 'a'}"),
        (["--files", "[" * 5000], "`files` should be a mapping: more than 50 levels deep"),
        (["--files", "word"], "`files` should be a mapping, found 'word'"),
    ],
)
def test_a_bad_command_line_is_a_user_error(argv: list[str], said: str) -> None:
    with pytest.raises(UserError, match="problems") as caught:
        parse_config(Settings, argv=argv)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n"])
def test_a_file_that_holds_no_keys_is_a_user_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError):
        parse_config(Settings, argv=write(tmp_path, text))


def test_a_line_that_is_not_yaml_is_named_and_not_quoted(tmp_path: Path) -> None:
    """It may hold a password."""
    with pytest.raises(UserError, match=r"settings\.yaml is not valid YAML.* line 2, column") as caught:
        parse_config(Settings, argv=write(tmp_path, 'steps: 1\nname: "http://me:hidden@host\n'))

    assert "hidden" not in str(caught.value)


@dataclass
class Guarded:
    """Settings, two of which may hold a secret."""

    address: str = setting("", "an address with its password", repr=False)
    attempts: int = setting(1, "how often", low=1, repr=False)
    name: str = setting("", "shown")


@pytest.mark.parametrize(
    ("text", "kind"), [("['http://me:hidden@host']", "list"), ("{hidden: 1}", "dict"), ("[[{a: hidden}]]", "list")]
)
def test_a_value_that_may_hold_a_secret_is_not_quoted_when_its_type_is_wrong(
    tmp_path: Path, text: str, kind: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse_config(Guarded, argv=write(tmp_path, f"address: {text}\nname: [shown]\n"))

    assert f"`address` should be text, found a value of type {kind}" in str(caught.value)
    assert "`name` should be text, found ['shown']" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_rest_of_a_secret_with_a_space_is_not_quoted() -> None:
    with pytest.raises(UserError, match="`--address` takes one word; put quotes around it") as caught:
        parse_config(Guarded, argv=["--address", "http://me:pass", "hidden@host"])
    assert "hidden" not in str(caught.value)


def test_a_value_that_may_hold_a_secret_is_not_quoted_when_it_is_out_of_bounds() -> None:
    assert bound_problems(Guarded(attempts=-73), Guarded) == ["`attempts` must be at least 1, found another value"]


def test_true_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whole number"):
        parse_config(Settings, argv=write(tmp_path, "steps: true\n"))


def test_null_stands_for_an_optional_value(tmp_path: Path) -> None:
    (settings,) = parse_config(Settings, argv=write(tmp_path, "limit: null\n"))
    assert settings.limit is None


@dataclass
class Bounded:
    """Settings with bounds."""

    share: float = setting(0.5, "a share, 50%% of all", low=0, high=1)
    steps: int | None = setting(None, "steps, if set", low=1)
    rate: float = setting(1.0, "a rate", above=0)
    most: int = setting(3, "at most", high=3)
    odds: float = setting(0.5, "a gate", low=0, high=1, says="is a probability in [0, 1]")
    precision: str = setting("float32", "of weights", choices=("float32", "bfloat16"))
    names: list[str] = setting(["a"], "names")

    def problems(self) -> list[str]:
        return bound_problems(self, Bounded)


@dataclass
class Inheriting(Bounded):
    """Has bounds of its own."""

    count: int = setting(1, "a count", low=1)


@pytest.mark.parametrize(
    ("key", "good", "bad", "said"),
    [
        ("share", (0, 1), (-0.1, 1.1, float("nan")), "`share` must be between 0 and 1, found {}"),
        ("steps", (1, None), (0,), "`steps` must be at least 1, found {}"),
        ("rate", (1e-9,), (0, -1), "`rate` must be above 0, found {}"),
        ("most", (3, -1), (4,), "`most` must be at most 3, found {}"),
        ("odds", (0, 1), (2,), "`odds` is a probability in [0, 1], found {}"),
        ("precision", ("bfloat16",), ("int8",), "`precision` is one of float32, bfloat16; found `{}`"),
    ],
)
def test_a_value_out_of_bounds_is_named(key: str, good: tuple, bad: tuple, said: str) -> None:
    assert [Bounded(**{key: value}).problems() for value in good] == [[] for _ in good]
    assert [Bounded(**{key: value}).problems() for value in bad] == [[said.format(value)] for value in bad]


def test_a_class_checks_the_keys_that_it_declares() -> None:
    config = Inheriting(most=4, count=0)
    assert config.problems() == ["`most` must be at most 3, found 4"]
    assert bound_problems(config, Inheriting) == ["`count` must be at least 1, found 0"]


def test_a_key_that_is_never_unset_can_not_be_none() -> None:
    with pytest.raises(TypeError):
        Bounded(rate=None).problems()  # type: ignore[arg-type]


def test_bounds_are_checked_by_the_parser_and_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="`share` must be between 0 and 1, found 2"):
        parse_config(Bounded, argv=["--share", "2"])
    with pytest.raises(SystemExit):
        parse_config(Bounded, argv=["--help"])
    assert "a share, 50% of all" in capsys.readouterr().out


def test_instances_share_no_list() -> None:
    one, other = Bounded(), Bounded()
    one.names.append("b")
    assert other.names == ["a"]
