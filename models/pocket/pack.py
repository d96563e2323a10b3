"""Keeps what a stage of pocket trained, and nothing else: `python -m reflectune.models.pocket.pack --checkpoint DIR`.

The projector and the adapters, in bfloat16, are a few MB, and all of pocket/llava that is shipped; it is built of them
and of the parts on first use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError, entry_point
from reflectune.core.outputs import hold
from reflectune.core.partials import replacing
from reflectune.models.pocket.llava import ADAPTER, PROJECTOR, TRAINED
from reflectune.models.weights.projector import PROJECTOR as NAMES

ADAPTER_CONFIG = "adapter_config.json"
_FRONT = "multi_modal_projector."


def pack(checkpoint: Path, output: Path) -> dict[str, int]:
    """Write the projector, and the adapters if there are any.

    Args:
        checkpoint: Of stage 1 (all weights) or stage 2 (adapters with the projector), as train/sft.py wrote it.
        output: Folder, replaced.

    Returns:
        How many numbers each file holds.

    Raises:
        UserError: The checkpoint has no projector.
    """
    adapters = checkpoint / ADAPTER
    weights = load_file(adapters if adapters.is_file() else checkpoint / "model.safetensors")
    projector = {name.split(_FRONT)[-1]: value for name, value in weights.items() if _FRONT in name}
    if set(projector) != set(NAMES.values()):
        raise UserError(
            f"{checkpoint} has no trained projector: it should hold {', '.join(NAMES.values())}; "
            "give a checkpoint that was trained with `train_towers: [projector, …]`"
        )
    lora = {name: value for name, value in weights.items() if ".lora_" in name}
    made = {PROJECTOR: projector} | ({ADAPTER: lora} if lora else {})
    with replacing(output) as folder:
        for name, tensors in made.items():
            save_file({key: value.bfloat16().contiguous() for key, value in tensors.items()}, folder / name)
        if lora:
            config = read_json(checkpoint / "adapter_config.json", "the adapters' configuration")
            write_json(
                folder / "adapter_config.json", config | {"modules_to_save": None, "base_model_name_or_path": ""}
            )
    return {name: _numbers(tensors) for name, tensors in made.items()}


def _numbers(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


@entry_point
def main() -> None:
    """Pack one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="that stage 1 or 2 of pocket wrote")
    parser.add_argument("--output", type=Path, default=TRAINED, help="folder (default: the installation's own)")
    arguments = parser.parse_args()
    hold(arguments.output)
    for name, count in pack(arguments.checkpoint, arguments.output).items():
        print(f"{arguments.output / name}: {count:,} numbers")


if __name__ == "__main__":
    main()
