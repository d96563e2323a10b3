"""A finished checkpoint's card, and its upload to a server that speaks the Hub's protocol on this machine."""

import base64
import functools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml

from reflectune.core.errors import UserError
from reflectune.models.loading import load
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.saving import PublishingConfig
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.model_card import front_matter, validation_metrics, write_card


@dataclass
class Hub:
    """The requests that a server received."""

    url: str = ""
    is_private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    refuses: bool = False


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The part of the Hub's protocol by which a repository is made and small files are committed."""
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            path = self.path.split("?")[0]
            if state.refuses:
                return self.reply({"error": "this token may not write"}, 403)
            if path == "/api/repos/create":
                state.is_private = json.loads(body).get("private", json.loads(body).get("visibility") == "private")
                return self.reply({"url": f"{state.url}/owner/name"})
            if path == "/api/validate-yaml":
                return self.reply({"errors": [], "warnings": []})
            if path == "/api/models/owner/name/preupload/main":
                expected = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
                return self.reply({"files": [{**f, "shouldIgnore": False} for f in expected]})
            assert path == "/api/models/owner/name/commit/main", path
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    state.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.reply({"commitUrl": f"{state.url}/owner/name/commit/1", "commitOid": "1"})

        def do_GET(self) -> None:
            self.reply({"id": "owner/name", "sha": "0", "siblings": []})

        def reply(self, content: Any, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", state.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield state
        server.shutdown()


@pytest.fixture
def config(config) -> Callable[..., SftConfig]:
    return functools.partial(config, max_steps=2, save_steps=1, lora_dropout=0.0, licence="apache-2.0")


@pytest.mark.parametrize(
    ("method", "weights"), [pytest.param("full", "model", marks=pytest.mark.slow), ("lora", "adapter_model")]
)
def test_a_finished_checkpoint_is_uploaded_with_its_card_and_all_that_loads_it(
    hub, config, data_folder: Path, method: str, weights: str, tmp_path, capsys
) -> None:
    (data_folder / "val.parquet").write_bytes((data_folder / "train.parquet").read_bytes())
    validated: dict[str, Any] = {"eval_data": str(data_folder), "eval_steps": 1, "best_metric": "loss"}
    run = config(method=method, push_to_hub="owner/name", **validated)
    fine_tune(run)

    layout = {f"{weights}.safetensors", "README.md", "scheme.json", "reflectune.json", "tokenizer.json"}
    layout.add("adapter_config.json" if method == "lora" else "config.json")
    assert layout <= set(hub.files)
    assert not [name for name in hub.files if "checkpoint" in name or name in ("run.json", "trainer_state.json")]
    assert hub.is_private
    assert f"uploaded: {hub.url}/owner/name/commit/1" in capsys.readouterr().out
    for name, content in hub.files.items():
        path = tmp_path / "downloaded" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert load(str(tmp_path / "downloaded")).fingerprint == load(run.output_dir).fingerprint

    _, front, body = hub.files["README.md"].decode().split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["license"] == "apache-2.0"
    assert meta["library_name"] == ("transformers" if method == "full" else "peft")
    assert "base_model" not in meta  # it is a folder here, which the Hub does not know
    assert "24 questions (18 with retrieval, 6 without retrieval), 43 branches" in body
    settings = json.loads(Path(run.output_dir, "reflectune.json").read_text())["training"]
    assert f"| data's fingerprint | {settings['data_fingerprint']} |" in body
    assert all(f"| `{token}` |" in body for token in MR2AG.tokens.values())
    assert re.search(r"\| relevance_auroc \| [01]\.\d{4} \|", body)
    assert ("\n| lora_r |" in body) == (method == "lora")
    assert "\n| max_steps | 2 |" in body
    assert "\n| epochs |" not in body


def test_a_failed_upload_names_a_command_and_the_same_training_uploads(hub, config) -> None:
    run = config(push_to_hub="owner/name")
    hub.refuses = True
    with pytest.raises(UserError, match=r"is finished, in (.|\n)*403(.|\n)*hf upload owner/name .*--private$"):
        fine_tune(run)
    trained = Path(run.output_dir, "model.safetensors").stat().st_mtime_ns

    hub.refuses = False
    fine_tune(run)

    assert "model.safetensors" in hub.files
    assert Path(run.output_dir, "model.safetensors").stat().st_mtime_ns == trained


def test_what_an_upload_needs_is_asked_for_before_training(config, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (problem,) = config(push_to_hub="owner/name").problems()
    assert problem == "`push_to_hub` needs the Hub, and $HF_HUB_OFFLINE is set; unset it"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    first, second = config(push_to_hub="my model").problems()
    assert first == "`push_to_hub` must be owner/name, found my model"
    assert "`hf auth login`" in second
    assert config().problems() == []


def test_a_hub_model_is_named_as_the_base() -> None:
    header = front_matter("", "llava-hf/llava-1.5-7b-hf", method="full", scheme=MR2AG)

    assert header["base_model"] == "llava-hf/llava-1.5-7b-hf"
    assert "reflection-tokens" in header["tags"]


def test_the_card_of_a_model_without_tokens_promises_none_and_loads_qwen_by_us(tmp_path: Path) -> None:
    loaded = load("miniature/qwen2_vl", scheme="plain")
    settings = {"method": "full", "scheme": "plain", "model_fingerprint": "m", "data_fingerprint": "d"}
    write_card(tmp_path, publishing=PublishingConfig(), loaded=loaded, data="", settings=settings, history=[], step=1)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "token" not in card.split("---\n", 2)[2].replace("Tokens and prompts are in", "")
    assert "reflection-tokens" not in card
    assert "reflectune.models.loading" in card  # plain AutoProcessor finds no video half, and returns a tokenizer


def test_the_cards_metrics_are_those_of_the_weights_step() -> None:
    values = ((1, "loss", 3.0), (1, "eval_loss", 2.0), (2, "eval_loss", 4.0), (2, "loss", 1.0))
    history = [{"step": step, name: value} for step, name, value in values]

    assert validation_metrics(history, 1) == {"loss": 2.0}
    assert validation_metrics(history, 2) == {"loss": 4.0}
    assert validation_metrics(history[:1], 1) == {}
