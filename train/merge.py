"""Merge an adapter into its base model, or assemble a LLaVA: `reflectune merge --checkpoint DIR --output DIR`.

A LLaVA in the layout of its own code is rewritten in transformers' layout by the same command.

    reflectune merge --language lmsys/vicuna-7b-v1.5 --vision openai/clip-vit-large-patch14-336 \\
        --projector mm_projector.bin --output DIR

The result is a full checkpoint that transformers, vLLM and reflectune load.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.core.errors import UserError
from reflectune.core.paths import is_occupied
from reflectune.train.settings.merge import MergeConfig


@command(MergeConfig, writes="output")
def merge(config: MergeConfig) -> None:
    """Merge an adapter, join the parts of a LLaVA, or rewrite one in transformers' layout."""
    if config.is_original:
        print(_convert(config))
    else:
        print(_merge_adapter(config) if config.checkpoint else _assemble(config))


def _merge_adapter(config: MergeConfig) -> str:
    from reflectune.train.weights.merging import is_merged, merge_adapter, plan_merge  # slow to import

    folder = str(config.folder)
    planned = plan_merge(folder, config.dtype)
    if is_occupied(Path(config.output)):
        if not is_merged(folder, config.output, planned):
            raise UserError(f"`output`: {config.output} holds something else than this merge; choose a new folder")
        return f"nothing to do: {config.output} holds this merge"
    if not config.dry_run:
        merge_adapter(folder, config.output, planned)
    return f"{config.checkpoint} merged into {planned.base_model}{planned.remark}, as {planned.dtype}: {config.output}"


def _assemble(config: MergeConfig) -> str:
    if config.dry_run:
        return f"{config.language}, {config.vision} and a projector would be joined into {config.output}"
    from reflectune.train.weights.merging import assemble  # slow to import

    return assemble(config, config.output, config.dtype)


def _convert(config: MergeConfig) -> str:
    if config.dry_run:
        return f"{config.checkpoint} would be written in transformers' layout to {config.output}"
    from reflectune.train.weights.merging import convert_original  # slow to import

    return convert_original(config)


if __name__ == "__main__":
    merge.main()
