from pathlib import Path

import pytest

from reflectune.core.config import find_problems, parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.probing.config import ProbeConfig


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    argv = ["--dataset", str(tmp_path), "--documents", "0", "--max_new_tokens", "0", "--metric", "evqa"]
    argv += ["--device_map", "half", "--leave_out_facts", "true"]
    with pytest.raises(UserError) as caught:
        parse_config(ProbeConfig, argv=[*argv, "--summary", "sentences", "--dtype", "int8"])
    for part in (
        "`model` is needed",
        "has no dataset.json",
        "`documents` must be at least 1, found 0",
        "`max_new_tokens` must be at least 1, found 0",
        "the metric `evqa` needs `bem`",
        "`dtype` should be one of",
        "`leave_out_facts` needs `trained_on`",
        "`index` is needed, or `ranked_entities`; or `documents_of: own`",
        "`device_map` should be one of 'auto', 'balanced', 'balanced_low_0', 'sequential', found 'half'",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"documents_by": "reranker", "reranker": "embedding"}, "`reranker: embedding` needs `reranker_model`"),
        ({"reranker": "embedding", "reranker_model": "miniature/text"}, "with `documents_by: reranker` only"),
        ({"reranker_model": "miniature/text"}, "`reranker: words` uses no model"),
        ({"documents_by": "reranker", "reranker": "encoder", "reranker_model": "miniature/clip"}, "by texts alone"),
        ({"documents_by": "reranker", "reranker": "embedding", "reranker_model": "miniature/text"}, ""),
    ],
)
def test_a_reranker_without_a_model_or_a_reader_is_a_problem(keys: dict[str, str], problem: str) -> None:
    found = [text for text in find_problems(ProbeConfig, keys) if "`reranker" in text]
    assert len(found) == bool(problem)
    assert all(problem in text for text in found)
