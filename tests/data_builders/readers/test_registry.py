import inspect
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.data_builders.readers.registry import (
    KNOWLEDGE,
    QUESTIONS,
    knowledge_reader,
    option_problems,
    question_reader,
)

from .conftest import read_set


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_set_has_the_common_arguments(name: str) -> None:
    parameters = inspect.signature(question_reader(name)).parameters
    assert next(iter(parameters)) == "source"
    assert {"split", "images", "reject"} <= set(parameters)
    assert all(parameters[key].kind is inspect.Parameter.KEYWORD_ONLY for key in list(parameters)[1:])


JSON = ("aokvqa", "hotpotqa", "livevqa", "llava_instruct", "reflectiva")
PARQUET = ("fvqa", "infoseek_human", "m2kr", "mmsearch", "mrag_bench")


@pytest.mark.parametrize("name", [*sorted({*JSON, *PARQUET} - {"livevqa"}), "nq", "viquae"])
def test_a_set_of_one_file_has_no_roles(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not from the roles elsewhere"):
        read_set(name, {"elsewhere": tmp_path})


@pytest.mark.parametrize("name", [*JSON, *PARQUET])
def test_a_file_that_is_cut_off_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("set.json" if name in JSON else "set.parquet")
    path.write_bytes(b'[{"id": "a' if name in JSON else b"PAR1 cut off")
    with pytest.raises(UserError, match=rf"{path.name}.* is damaged"):
        read_set(name, path)
    if name in KNOWLEDGE and name in JSON:
        with pytest.raises(UserError, match=rf"{path.name}.* is damaged"):
            list(knowledge_reader(name).entries(path))


def test_an_unknown_reader_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no reader `wiki6` for knowledge; did you mean `wiki6m`"):
        knowledge_reader("wiki6")
    with pytest.raises(UserError, match="no reader `x` for questions; there are"):
        question_reader("x")


@pytest.mark.parametrize(
    ("reader", "options"),
    [
        ("own", {"meta": "topic"}),
        ("own", {"columns": ["question"]}),
        ("okvqa", {"raw_answers": "false"}),
        ("evqa", {"images_per_question": "2"}),
        ("m2kr", {"gold": "articles?"}),
    ],
)
def test_a_value_of_an_options_wrong_type_is_refused(reader: str, options: dict[str, object]) -> None:
    ((name, value),) = options.items()
    (issue,) = option_problems(reader, options)
    assert issue.startswith(f"`options`: `{name}` is {value!r}: Input should be")
