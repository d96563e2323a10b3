"""Checkpoints of a trainer: whole or not there, of weights that are loaded bit by bit, in the form that others load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_finite, check_names, first_few
from reflectune.models.weights.adapters import check_adapter, read_adapter
from reflectune.train.runs.checkpoints import keep_newest, mark_checkpoint_whole, refuse_full_disk
from reflectune.train.runs.parameters import parameter_count

Save = Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None]
"""Writes model, processor and scheme into a folder, from gathered weights if there are any."""


class CheckpointedTrainer(Trainer):
    """A trainer whose checkpoints are ours: what one holds, when it counts as whole, and how it is loaded.

    The stock trainer resumes a full fine-tune of a vision-language model from nothing, with a warning only:
    https://github.com/huggingface/transformers/issues/43701; `_load_from_checkpoint` here can go once that is closed.
    Other trainers' subclasses stand behind it: `class Ours(CheckpointedTrainer, GRPOTrainer)`.
    """

    patience: int | None = None
    """Validations without a better metric before training stops; None for any number."""

    def keep_checkpoints(self, model: PreTrainedModel | PeftModel, save: Save, settings: Mapping[str, Any]) -> None:
        """Say how checkpoints are kept, before training begins.

        Args:
            model: The model, not wrapped.
            save: Writes one.
            settings: What determines the run, recorded in each checkpoint.
        """
        # `save_total_limit` is obeyed here, and only after a checkpoint is whole
        self._checkpoints_to_keep, self.args.save_total_limit = self.args.save_total_limit or 1, None
        self._bare_model, self._save_to, self.settings = model, save, settings
        self._folder = Path(str(self.args.output_dir))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            # What is divided among the processes was gathered by the caller; adapters are never divided.
            gathered = None if isinstance(self._bare_model, PeftModel) else state_dict
            self._save_to(Path(output_dir or self._folder), self._bare_model, gathered)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            needed = checkpoint_bytes(self._bare_model, deepspeed=self.is_deepspeed_enabled, fsdp=self.is_fsdp_enabled)
            refuse_full_disk(self._folder, needed)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            step = self.state.global_step
            mark_checkpoint_whole(self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}", self.settings, step)
            keep_newest(self._folder, self._checkpoints_to_keep)

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        """The state that training begins or goes on with, but `save_steps`, `logging_steps` and `eval_steps` as asked.

        The stock trainer goes on with the checkpoint's, and warns.
        """
        trained: tuple[int, int] = super()._init_training_state(*arguments, **named)
        self.state.compute_steps(self.args, self.state.max_steps)
        return trained

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """An epoch, unless all steps are taken: the stock trainer takes one more, if a run ends within its epoch."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*arguments, **named)
        else:
            self.control.should_training_stop = True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # each process loads its part of what FSDP has saved
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(self._bare_model, resume_from_checkpoint)


def load_weights(model: PreTrainedModel | PeftModel, folder: str | Path) -> None:
    """Load the weights that a checkpoint holds into a model of the same architecture, bit by bit.

    Raises:
        UserError: The checkpoint's weights are damaged, or some are missing, unknown, of another shape or not finite.
    """
    if isinstance(model, PeftModel):
        state = read_adapter(Path(folder))
        check_adapter(model, state, Path(folder))
        set_peft_model_state_dict(model, state)
        return
    # from_pretrained, and not the raw file: the names on the disk are not the names in memory.
    dtypes = {parameter.dtype for parameter in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # a frozen part in half precision is cast exactly
    kind: Any = type(model)  # with its report it returns a pair, which its types don't say
    try:
        loaded, report = kind.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except UNLOADABLE as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())[:400]}") from error
    check_names(str(folder), report)
    check_finite(str(folder), loaded)
    state, expected = loaded.state_dict(), model.state_dict()
    shapes, wanted = ({(name, tensor.shape) for name, tensor in tensors.items()} for tensors in (state, expected))
    if shapes != wanted:  # its config is of another architecture
        differing = {name for name, _ in shapes ^ wanted}
        raise UserError(f"{folder} does not hold this model's weights; differing: {first_few(differing)}")
    model.load_state_dict(state)


def checkpoint_bytes(model: nn.Module, *, deepspeed: bool, fsdp: bool) -> int:
    """About what a checkpoint takes: the weights (or adapters) and, for what trains, the optimiser's two moments.

    DeepSpeed and FSDP write the weights a second time, and DeepSpeed masters in fp32.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    saved = sum(
        parameter_count(p) * p.element_size() for p in (trained if isinstance(model, PeftModel) else model.parameters())
    )
    moments = 2 * sum(parameter_count(p) * 4 for p in trained)
    again = saved if deepspeed or fsdp else 0
    masters = moments // 2 if deepspeed else 0
    return saved + moments + again + masters + 2**24  # and the tokenizer
