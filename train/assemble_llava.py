"""LLaVA-1.5 before instruction tuning: `python -m reflectune.train.assemble_llava --language L --vision V …`.

Joins a Vicuna, a CLIP and the pre-trained projector (`mm_projector.bin`) into a checkpoint that transformers and
`train/sft.py` load: the stage 1 that mR²AG trains from (arXiv 2411.15041, §4.2). Without a projector it starts an
untrained one, for a stage 1 of one's own.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.train.runs.llava_config import AssembleConfig


@command(AssembleConfig, writes="output")
def assemble_llava(config: AssembleConfig) -> None:
    """Assemble a LLaVA from its three published parts."""
    from reflectune.train.checkpoints.llava import assemble  # slow to import: after the config is right

    print(assemble(config))


if __name__ == "__main__":
    assemble_llava.main()
