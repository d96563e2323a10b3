"""Pipelines answer by a real vLLM as they do here."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.experiment import run
from reflectune.models.remote import probe

LIMITS = {"max_new_tokens": 8, "max_reply_tokens": 8, "gamma": 0.0, "top_n": 2}


@pytest.fixture(autouse=True)
def any_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept models whose gates' words have little mass: their tokens' rows were not trained."""
    monkeypatch.setattr(probe, "LEAST_MASS", 0.0)


@pytest.mark.slow
def test_mmkb_rag_and_the_baselines_answer_by_a_real_vllm(served, world: Path, make, tmp_path: Path) -> None:
    server = served("qwen2_vl")
    pipelines = ["closed_book", "naive_rag", "oracle", "mmkb_rag"]
    more = {"pipelines": pipelines, "reranker": "embedding", "reranker_model": "miniature/text", "passages": 2}
    found: list[dict[str, Any]] = []
    for name, model, url in (("local", server.checkpoint, ""), ("server", str(server.export), server.url)):
        models = SimpleNamespace(tuned=model, base=model)
        more["output"] = str(tmp_path / name)
        with server.alone():
            metrics = run(EvaluateConfig(**make.keys(world, models, server=url, **more, **LIMITS)))
        rows = {
            file.stem: [json.loads(line) for line in file.read_text().splitlines()[1:]]
            for file in (tmp_path / name / "traces").glob("*.jsonl")
        }
        found.append({"scores": metrics["pipelines"], "traces": rows})
    local, remote = found
    assert {"mmkb_rag", "closed_book", "naive_rag_passages", "oracle_passage"} <= {*local["traces"]}
    assert remote["scores"] == local["scores"]
    for pipeline, traces in local["traces"].items():
        for one, other in zip(traces, remote["traces"][pipeline], strict=True):
            assert (other["answer"], other["used"]) == (one["answer"], one["used"])
            assert other["gate"] == pytest.approx(one["gate"], abs=1e-3)
            assert [p["s_rel"] for p in other["passages"]] == pytest.approx(
                [p["s_rel"] for p in one["passages"]], abs=1e-3
            )
