from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.parsing import LARGEST_FILE, parse_value, parse_yaml, read_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


def read(folder: Path, content: bytes) -> object:
    path = folder / "settings.yaml"
    path.write_bytes(content)
    return read_yaml(path)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"", None),
        (b"a: 1\nb: [x, 2.5, null, true]\nc: {d: e}\n", {"a": 1, "b": ["x", 2.5, None, True], "c": {"d": "e"}}),
        (b"rate: 2e-5\nrates: [-1E5, .5e3, 1.5]\nname: 1e\n", {"rate": 2e-5, "rates": [-1e5, 500, 1.5], "name": "1e"}),
        (b"split: 2024-01-01\n", {"split": "2024-01-01"}),
        ("name: Zürich 🦉\n".encode(), {"name": "Zürich 🦉"}),
        (b"\xef\xbb\xbfa: 1\n", {"a": 1}),
    ],
)
def test_yaml_values_are_read_with_their_types(tmp_path: Path, content: bytes, value: object) -> None:
    assert read(tmp_path, content) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"steps: 1\nname: a\nsteps: 2\n", "`steps` is given twice, in lines 1 and 3; drop one"),
        (b"a:\n  b: 1\n  'b': 2\n", "`b` is given twice, in lines 2 and 3"),
        (b"a: 1\na: 2\nb: 3\nb: 4\n", "`b` is given twice, in lines 3 and 4"),
        (BOMB.encode(), "an alias; write out the value that it stands for"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"\n".join(b" " * n + b"a:" for n in range(999)), "nested too deeply"),
        (b"a: 1\nname: caf\xe9\n", "is not UTF-8 (byte 14, line 2); save it as UTF-8"),
        ("a: 1\n".encode("utf-16"), "is not UTF-8 (byte 0, line 1)"),
        (b"a: 1\n--- \nb: 2\n", "is not valid YAML"),
        (b"a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor for the tag"),
        (b"a: !!bool x\n", "a value doesn't fit its tag"),
        (b"a: " + b"9" * 5000 + b"\n", "a value doesn't fit its tag"),
        (b"? [a]\n: 1\n", "is not valid YAML"),
        (b"#" * (LARGEST_FILE + 1), "is larger than 1 MiB"),
    ],
)
def test_an_unreadable_yaml_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "settings.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name the YAML file in it"):
        read_yaml(tmp_path)
    with pytest.raises(UserError, match=r"config file not found: .*nowhere"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match="config file not found: /dev/zero"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train: a.json", {"train": "a.json"}),
        (r'{"a": "\ud83e\udd89"}', {"a": "🦉"}),
    ],
)
def test_a_command_lines_value_is_json_or_yaml(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "[" * 100_000, '{"a": NaN}', "{a", "9" * 5000])
def test_a_value_that_is_neither_json_nor_yaml_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_value(text)
    assert "\n" not in str(caught.value)


def test_yaml_of_bytes_is_not_quoted() -> None:
    with pytest.raises(UserError, match="valid YAML") as caught:
        parse_yaml(b'a: "hidden', "it")
    assert "hidden" not in str(caught.value)
