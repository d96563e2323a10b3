import os
from pathlib import Path

import pytest

from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.types import Section


def test_equal_content_has_an_equal_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": (1, 2)}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint(Section("a", "b")) == fingerprint({"title": "a", "text": "b"})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_path_that_is_not_utf8_has_a_fingerprint() -> None:
    path, other = (Path(os.fsdecode(name)) for name in (b"Z\xfcrich.md", b"Z\xf6rich.md"))
    assert fingerprint([path]) != fingerprint([other])


def test_a_value_without_a_stable_text_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        fingerprint(object())


def test_a_files_fingerprint_covers_its_bytes_its_name_and_the_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("a")
    assert (
        len({file_fingerprint(one), file_fingerprint(two), file_fingerprint(one, two), file_fingerprint(two, one)}) == 4
    )
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.write_text("a")
    assert file_fingerprint(odd) != file_fingerprint(two)
    before = file_fingerprint(one)
    one.write_text("b")
    assert file_fingerprint(one) != before
