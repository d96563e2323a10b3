import importlib.util
import json
from pathlib import Path

import pytest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.examples.pocket import switches
from reflectune.inference.running.config import EvaluateConfig
from reflectune.train.settings.sft import SftConfig

CONFIGS = {"probe": ProbeConfig, "derive_labels": DeriveConfig, "sft": SftConfig, "evaluate": EvaluateConfig}
MISSING = ("has no", "is not a folder", "does not exist", "is needed", "is not a file", "must be an existing")


def problems(command: list[str]) -> list[str]:
    """Return what a command's config has against its flags, apart from files that no stage has written here."""
    try:
        parse_config(CONFIGS[command[3]], argv=command[4:])
    except UserError as error:
        return [line for line in str(error).splitlines()[1:] if not any(text in line for text in MISSING)]
    return []


@pytest.mark.parametrize("name", switches.SWITCHES)
def test_a_switch_has_commands_whose_flags_exist_and_reads_what_earlier_ones_write(name, tmp_path, monkeypatch) -> None:
    fitted = {"s_ret_temperature": 0.02, "srt_fusion": [1.0, 0.5, -1.25], "k": 0, "threshold": 0.35}
    monkeypatch.setattr(switches, "choice", lambda name: tmp_path)
    (tmp_path / "choice.json").write_text(json.dumps(fitted))
    stages = {}
    for own in dict.fromkeys(("retrieved", name)):
        stages |= switches.stages(own, "cpu", ["val_unseen_entity"])
    stages[f"evaluate_{name}"] += switches.fused_flags(name) if switches.SWITCHES[name].fused else []
    for command in stages.values():
        if command[2] == "reflectune":
            assert problems(command) == []
        else:
            assert importlib.util.find_spec(command[2])
    words = [word for command in stages.values() for word in command]
    written = {words[k + 1] for k, word in enumerate(words) if word in ("--output", "--output_dir")}
    for k, word in enumerate(words):
        if word in ("--probes", "--train_data", "--labels", "--rel_scores") or word == "--model":
            folder = str(Path(words[k + 1]).parent if word == "--rel_scores" else words[k + 1])
            assert folder in {*written, str(switches.RUN / "reader"), str(switches.FOLDER / "choice")}


def test_the_table_has_the_finished_switches(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(switches, "FOLDER", tmp_path)
    (tmp_path / "evaluation_pairs").mkdir()
    scores = {"pipelines": {"mmkb_rag": {"overall": {"value": 0.5}, "n": 3}}}
    (tmp_path / "evaluation_pairs/metrics.json").write_text(json.dumps(scores))
    assert switches.table(["retrieved", "pairs"]).splitlines()[2:] == ["| pairs | overall 50.0 |"]
