"""Pack the trained weights of a stage of pocket: `python -m reflectune.examples.pocket.pack --checkpoint DIR`.

Only the projector and the adapters of pocket/llava and of its tuned models are shipped, in bfloat16: a few MB. The
models are built of them and of the parts on first use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError
from reflectune.core.outputs import hold
from reflectune.core.partials import writing
from reflectune.examples.pocket.models.llava import ADAPTER, PROJECTOR, TRAINED
from reflectune.models.records import INFO_FILE, read_info, write_info
from reflectune.models.schemes.base import SCHEME_FILE
from reflectune.models.weights.projector import PROJECTOR as NAMES

ADAPTER_CONFIG = "adapter_config.json"
BASE = "pocket/llava"
"""Base model of the tuned models' adapters."""
_FRONT = "multi_modal_projector."


def pack(checkpoint: Path, output: Path) -> dict[str, int]:
    """Write the projector and the adapters of a stage, or the adapters and the scheme of a tuned model.

    Args:
        checkpoint: Checkpoint of `sft`: of stage 1 (all weights), of stage 2 (adapters with the projector), or adapters
            of `pocket/llava`.
        output: Output folder; its other files stay.

    Returns:
        The number of weights in each file.

    Raises:
        UserError: The checkpoint has neither a projector nor adapters of pocket/llava.
    """
    adapters = checkpoint / ADAPTER
    file = adapters if adapters.is_file() else checkpoint / "model.safetensors"
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} can't be read: {error}; give a finished checkpoint") from error
    if adapters.is_file() and _base_of(checkpoint) == BASE:
        made = {ADAPTER: weights}
    else:
        projector = {name.split(_FRONT)[-1]: value for name, value in weights.items() if _FRONT in name}
        if set(projector) != set(NAMES.values()):
            raise UserError(
                f"{checkpoint} has no trained projector: it should hold {', '.join(NAMES.values())}; "
                f"give a checkpoint that was trained with `train_towers: [projector, …]`, or adapters of {BASE}"
            )
        lora = {name: value for name, value in weights.items() if ".lora_" in name}
        made = {PROJECTOR: projector} | ({ADAPTER: lora} if lora else {})
    output.mkdir(parents=True, exist_ok=True)
    for name, tensors in made.items():
        with writing(output / name) as partial:
            save_file({key: value.bfloat16().contiguous() for key, value in tensors.items()}, partial)
    if ADAPTER in made:
        config = read_json(checkpoint / ADAPTER_CONFIG, "the adapters' configuration")
        write_json(output / ADAPTER_CONFIG, config | {"modules_to_save": None, "base_model_name_or_path": ""})
    if PROJECTOR not in made:
        write_atomically(output / SCHEME_FILE, (checkpoint / SCHEME_FILE).read_bytes())
        write_info(output, read_info(checkpoint))
    return {name: sum(tensor.numel() for tensor in tensors.values()) for name, tensors in made.items()}


def _base_of(checkpoint: Path) -> str:
    """Return the base model of a checkpoint's adapters; "" if it is not recorded."""
    return str(read_info(checkpoint)["base_model"]) if (checkpoint / INFO_FILE).is_file() else ""


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
