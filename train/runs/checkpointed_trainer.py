"""A trainer whose checkpoints are whole or absent, and whose weights are loaded bit by bit."""

from __future__ import annotations

import functools
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from accelerate.utils import gather_object
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, ProgressCallback, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.durable import sync
from reflectune.core.errors import UserError
from reflectune.core.launching import any_process, launch_processes
from reflectune.core.weights import UNLOADABLE, check_finite, check_names, first_few
from reflectune.models.weights.adapters import check_adapter, read_adapter
from reflectune.train.runs.failures import not_finite
from reflectune.train.runs.logs import ProgressWithSpeed
from reflectune.train.weights.checkpoints import keep_newest, mark_whole, refuse_full_disk
from reflectune.train.weights.parameters import are_finite, parameter_count

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals after which a training saves a checkpoint and ends."""
SAME: Final = 3.0
"""Seconds in which a further SIGINT counts as the same one: torchrun passes on what the terminal has sent to all."""
Save = Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None]
"""Writes model, processor and scheme into a folder, from gathered weights if there are any."""


@dataclass(frozen=True, eq=False)
class Run:
    """The part of a run that all trainers share.

    Attributes:
        model: The model, with frozen weights frozen.
        args: Arguments of the trainer. `save_total_limit` is applied only after a checkpoint is whole.
        save: Writes a checkpoint.
        settings: Everything that determines the weights, recorded in each checkpoint.
    """

    model: PreTrainedModel | PeftModel
    args: Any
    save: Save
    settings: Mapping[str, Any]


class CheckpointedTrainer(Trainer):
    """A trainer with our checkpoints: their content, their completeness, and how they are loaded.

    The stock trainer resumes a full fine-tune of a vision-language model from nothing, with a warning only:
    https://github.com/huggingface/transformers/issues/43701; `_load_from_checkpoint` here can go once that is closed.
    Other trainers come after it in the bases: `class Ours(CheckpointedTrainer, GRPOTrainer)`.
    """

    patience: int | None = None
    """Validations without a better metric before training stops; None for any number."""
    _stopped_by: int | None = None
    """The signal to stop that this process got first."""
    _ends_early = False
    """True once all processes agreed to stop for a signal."""

    def keep_checkpoints(self, run: Run) -> None:
        """Take over checkpoints and the progress line from the stock trainer, before training begins."""
        # `save_total_limit` is applied in `_save_checkpoint`, and only after a checkpoint is whole
        self._checkpoints_to_keep, self.args.save_total_limit = self.args.save_total_limit or 1, None
        self._bare_model, self._save_to, self.settings = run.model, run.save, run.settings
        self._folder = Path(str(self.args.output_dir))
        self.processes = launch_processes()
        self.step_losses: list[tuple[Tensor, Sequence[str]]] = []
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(ProgressWithSpeed())

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train. After the step in which a process gets SIGTERM or Ctrl-C, save a checkpoint and exit.

        The status is 143 or 130. A second Ctrl-C ends the process at once. With transformers' `enable_jit_checkpoint`
        (5.23) each process saves at a step of its own, and the run seems finished.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()  # Python calls handlers there alone
        before = {number: signal.signal(number, self._note_signal) for number in STOPS} if in_main_thread else {}
        try:
            output = super().train(*arguments, **named)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        if self._ends_early and self.state.global_step < self.state.max_steps:
            self.processes.wait()  # the first process has marked the checkpoint
            if self.processes.index == 0:
                print(f"stopped after step {self.state.global_step}; run the same command again to go on", flush=True)
            sys.exit(128 + (self._stopped_by or signal.SIGTERM))
        return output

    def _note_signal(self, number: int, *_: Any) -> None:
        if self._stopped_by is None:
            self._stopped_by, self._stopped_at = number, time.monotonic()
            if number == signal.SIGINT and self.processes.index == 0:
                print("stopping after this step, with a checkpoint; Ctrl-C again stops at once", flush=True)
        elif number == signal.SIGINT and time.monotonic() > self._stopped_at + SAME:
            raise KeyboardInterrupt

    def get_train_dataloader(self) -> DataLoader:
        """Make the stock loader, whose workers leave signals to this process: a scheduler sends them to all."""
        loader: Any = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)
        inner.worker_init_fn = functools.partial(_ignore_signals, inner.worker_init_fn)
        return loader

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of a step's gradient; all processes agree here to go on.

        DDP and FSDP have not changed the weights yet. DeepSpeed has, but for a step whose norm is not finite.

        Raises:
            UserError: The norm, or a loss in any process, is not finite.
        """
        norm = super()._get_grad_norm(model, grad_norm)
        taken, self.step_losses = self.step_losses, []
        losses = torch.stack([loss for loss, _ in taken]).tolist() if taken else []  # one wait for the device
        is_sound = all(map(math.isfinite, [*losses, *([] if norm is None else [norm])]))
        is_unsound, self._ends_early = any_process(not is_sound, self._stopped_by is not None)
        if is_unsound:
            raise not_finite(
                self.state.global_step + 1,
                float(norm or 0.0),
                gather_object([*zip(losses, (ids for _, ids in taken), strict=True)]),
            )
        if self._ends_early:
            self.control.should_save = self.control.should_training_stop = True
        return norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights. Under ZeRO-1 and ZeRO-2 the first process writes its own tensors.

        The stock trainer (5.23) has each process copy all weights into its memory there.

        Raises:
            UserError: Some weights are not finite, in any process. Nothing is written.
        """
        if any(any_process(not are_finite(self._bare_model))):
            raise UserError(
                f"some weights are not finite at step {self.state.global_step}; lower `learning_rate`. The last "
                "checkpoint is kept"
            )
        if self.is_deepspeed_enabled:
            engine: Any = self.deepspeed
            is_sharded = engine.zero_optimization_stage() == 3
            self._save(output_dir, self.accelerator.get_state_dict(engine) if is_sharded else None)
        else:
            super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            # The caller has gathered sharded weights; adapters are never sharded.
            gathered = None if isinstance(self._bare_model, PeftModel) else state_dict
            self._save_to(Path(output_dir or self._folder), self._bare_model, gathered)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            needed = checkpoint_bytes(self._bare_model, deepspeed=self.is_deepspeed_enabled, fsdp=self.is_fsdp_enabled)
            refuse_full_disk(self._folder, needed)
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        checkpoint = self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        self.processes.wait()
        if self.args.local_process_index == 0:
            sync(checkpoint)  # each machine has the files of its own processes in its cache
        self.processes.wait()
        if self.args.should_save:
            mark_whole(checkpoint, self.settings, step, sizes=True)
            keep_newest(self._folder, self._checkpoints_to_keep)

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        """Initialise the state with the run's own `save_steps`, `logging_steps` and `eval_steps`.

        The stock trainer takes the checkpoint's, and warns.
        """
        trained: tuple[int, int] = super()._init_training_state(*arguments, **named)
        self.state.compute_steps(self.args, self.state.max_steps)
        return trained

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Run an epoch, unless all steps are taken: the stock trainer takes one more if a run ends within its epoch."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*arguments, **named)
        else:
            self.control.should_training_stop = True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # each process loads its own shard
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(self._bare_model, resume_from_checkpoint)


def _ignore_signals(initialise: Callable[[int], None] | None, worker: int) -> None:
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    if initialise is not None:
        initialise(worker)


def load_weights(model: PreTrainedModel | PeftModel, folder: str | Path) -> None:
    """Load a checkpoint's weights into a model of the same architecture, bit by bit.

    Raises:
        UserError: The checkpoint's weights are damaged, or some are missing, unknown, of another shape or not finite.
    """
    if isinstance(model, PeftModel):
        state = read_adapter(Path(folder))
        check_adapter(model, state, Path(folder))
        set_peft_model_state_dict(model, state)
        return
    # from_pretrained, and not the raw file: names on the disk differ from names in memory
    dtypes = {parameter.dtype for parameter in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # a frozen part in half precision is cast exactly
    kind: Any = type(model)  # its types lack the pair that it returns with its report
    try:
        loaded, report = kind.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except UNLOADABLE as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())[:400]}") from error
    check_names(str(folder), report)
    check_finite(str(folder), loaded)
    state, expected = loaded.state_dict(), model.state_dict()
    found, needed = ({(name, tensor.shape) for name, tensor in tensors.items()} for tensors in (state, expected))
    if found != needed:  # its config is of another architecture
        differing = {name for name, _ in found ^ needed}
        raise UserError(f"{folder} does not hold this model's weights; differing: {first_few(differing)}")
    model.load_state_dict(state)


def checkpoint_bytes(model: nn.Module, *, deepspeed: bool, fsdp: bool) -> int:
    """Estimate the bytes of a checkpoint: the weights (or adapters), and the two moments of trained weights.

    DeepSpeed and FSDP write the weights a second time, and DeepSpeed master weights in fp32.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    saved = sum(
        parameter_count(p) * p.element_size() for p in (trained if isinstance(model, PeftModel) else model.parameters())
    )
    moments = 2 * sum(parameter_count(p) * 4 for p in trained)
    again = saved if deepspeed or fsdp else 0
    masters = moments // 2 if deepspeed else 0
    return saved + moments + again + masters + 2**24  # and the tokenizer
