import importlib.util
import itertools
import json
from pathlib import Path

import pytest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.plain_config import PlainConfig
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.examples.pocket import switches
from reflectune.inference.running.config import EvaluateConfig
from reflectune.train.settings.merge import MergeConfig
from reflectune.train.settings.sft import SftConfig

CONFIGS = {"probe": ProbeConfig, "derive_labels": DeriveConfig, "sft": SftConfig, "evaluate": EvaluateConfig}
CONFIGS |= {"build_plain": PlainConfig, "build_mr2ag": BuildConfig, "merge": MergeConfig}
MISSING = (
    "has no",
    "is not a folder",
    "does not exist",
    "is needed",
    "is not a file",
    "must be an existing",
    "is missing",
)


def problems(command: list[str]) -> list[str]:
    """Return what a command's config has against its flags, apart from files that no stage has written here."""
    try:
        parse_config(CONFIGS[command[3]], argv=command[4:])
    except UserError as error:
        return [line for line in str(error).splitlines()[1:] if not any(text in line for text in MISSING)]
    return []


@pytest.mark.parametrize("name", switches.SWITCHES)
def test_a_switch_has_commands_whose_flags_exist_and_reads_what_earlier_ones_write(name, tmp_path, monkeypatch) -> None:
    fitted = {"s_ret_temperature": 0.02, "srt_fusion": [1.0, 0.5, -1.25], "k": 0, "threshold": 0.35, "f1": 0.5}
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
    pairs = [pair for command in stages.values() for pair in itertools.pairwise(command)]
    written = {value for key, value in pairs if key in ("--output", "--output_dir")} | {str(switches.RUN / "reader")}
    read = [value for key, value in pairs if key in ("--probes", "--train_data", "--labels", "--model")]
    files = [Path(file) for value in read if value.startswith("{") for file in json.loads(value)]
    assert {*(value for value in read if not value.startswith("{")), *(str(file.parent) for file in files)} <= written
