"""A trainer whose checkpoints are either complete or ignored, and whose weights are restored bit by bit."""

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
from reflectune.train.weights.checkpoints import keep_newest, mark_complete, refuse_full_disk
from reflectune.train.weights.parameters import are_finite, parameter_count

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals after which a training saves a checkpoint and ends."""
SAME_SIGNAL: Final = 3.0
"""Seconds in which repeated SIGINTs count as one: torchrun forwards a Ctrl-C that the terminal has already sent."""
Save = Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None]
"""Writes model, processor and scheme into a folder, from gathered weights if there are any."""


@dataclass(frozen=True, eq=False)
class Run:
    """The part of a run that all trainers share.

    Attributes:
        model: The model, with frozen weights frozen.
        args: Arguments of the trainer. `save_total_limit` is applied only after a checkpoint is complete.
        save: Writes a checkpoint.
        settings: Everything that determines the weights, recorded in each checkpoint.
    """

    model: PreTrainedModel | PeftModel
    args: Any
    save: Save
    settings: Mapping[str, Any]


class CheckpointedTrainer(Trainer):
    """A trainer with our own content, completion marks and loading of checkpoints.

    The stock trainer resumes a full fine-tuning of a vision-language model without its weights, and only warns:
    https://github.com/huggingface/transformers/issues/43701. `_load_from_checkpoint` can go once that is closed. List
    this class before other trainers: `class Ours(CheckpointedTrainer, GRPOTrainer)`.
    """

    patience: int | None = None
    """Validations without a better metric before training stops; None for any number."""
    _stopped_by: int | None = None
    """The first stop signal that this process received."""
    _ends_early = False
    """True once all processes have agreed to stop after a signal."""

    def keep_checkpoints(self, run: Run) -> None:
        """Replace the stock trainer's checkpoints and progress line; called before training."""
        # `_save_checkpoint` applies `save_total_limit`, after a checkpoint is complete
        self._checkpoints_to_keep, self.args.save_total_limit = self.args.save_total_limit or 1, None
        self._bare_model, self._save_to, self.settings = run.model, run.save, run.settings
        self._folder = Path(str(self.args.output_dir))
        self.processes = launch_processes()
        self.step_losses: list[tuple[Tensor, Sequence[str]]] = []
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(ProgressWithSpeed())

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train. If a process gets SIGTERM or Ctrl-C, save a checkpoint after that step and exit.

        The exit status is 143 or 130. A second Ctrl-C ends the process at once. transformers' `enable_jit_checkpoint`
        (5.23) doesn't do this: each process would save at a different step, and the run would look finished.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()  # signal handlers only work there
        before = {number: signal.signal(number, self._note_signal) for number in STOPS} if in_main_thread else {}
        try:
            output = super().train(*arguments, **named)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        if self._ends_early and self.state.global_step < self.state.max_steps:
            self.processes.wait()  # the first process has marked the checkpoint
            if self.processes.index == 0:
                print(f"stopped after step {self.state.global_step}; run the same command again to resume", flush=True)
            sys.exit(128 + (self._stopped_by or signal.SIGTERM))
        return output

    def _note_signal(self, number: int, *_: Any) -> None:
        if self._stopped_by is None:
            self._stopped_by, self._stopped_at = number, time.monotonic()
            if number == signal.SIGINT and self.processes.index == 0:
                print("stopping after this step, with a checkpoint; Ctrl-C again stops at once", flush=True)
        elif number == signal.SIGINT and time.monotonic() > self._stopped_at + SAME_SIGNAL:
            raise KeyboardInterrupt

    def get_train_dataloader(self) -> DataLoader:
        """Make the stock loader with workers that ignore stop signals, which a scheduler sends to all processes."""
        loader: Any = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)
        inner.worker_init_fn = functools.partial(_ignore_signals, inner.worker_init_fn)
        return loader

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of a step's gradient, after all processes agree to continue.

        DDP and FSDP have not changed the weights yet. DeepSpeed has, unless the norm is not finite.

        Raises:
            UserError: The norm, or a loss in any process, is not finite.
        """
        norm = super()._get_grad_norm(model, grad_norm)
        step_losses, self.step_losses = self.step_losses, []
        losses = torch.stack([loss for loss, _ in step_losses]).tolist() if step_losses else []  # one device sync
        is_finite = all(map(math.isfinite, [*losses, *([] if norm is None else [norm])]))
        any_not_finite, self._ends_early = any_process(not is_finite, self._stopped_by is not None)
        if any_not_finite:
            raise not_finite(
                self.state.global_step + 1,
                float(norm or 0.0),
                gather_object([*zip(losses, (ids for _, ids in step_losses), strict=True)]),
            )
        if self._ends_early:
            self.control.should_save = self.control.should_training_stop = True
        return norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights. Under ZeRO-1 and ZeRO-2 the first process writes its own tensors.

        There, the stock trainer (5.23) would make each process copy all weights to its memory.

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
            sync(checkpoint)  # on each machine, for the files of its processes
        self.processes.wait()
        if self.args.should_save:
            mark_complete(checkpoint, self.settings, step, sizes=True)
            keep_newest(self._folder, self._checkpoints_to_keep)

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        """Initialise the state with this run's `save_steps`, `logging_steps` and `eval_steps`.

        The stock trainer uses those of the checkpoint, and warns.
        """
        trained: tuple[int, int] = super()._init_training_state(*arguments, **named)
        self.state.compute_steps(self.args, self.state.max_steps)
        return trained

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Run an epoch unless all steps are done: the stock trainer takes an extra one if a run ends mid-epoch."""
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
    """Load a checkpoint's weights into a model of the same architecture, bit-identical.

    Raises:
        UserError: The checkpoint's weights are damaged, or some are missing, unknown, of another shape or not finite.
    """
    if isinstance(model, PeftModel):
        state = read_adapter(Path(folder))
        check_adapter(model, state, Path(folder))
        set_peft_model_state_dict(model, state)
        return
    # with from_pretrained, since weight names on the disk differ from those in memory
    dtypes = {parameter.dtype for parameter in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # casting a frozen half-precision part is exact
    kind: Any = type(model)  # its type hints lack the returned loading info
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
    if found != needed:  # the config has a different architecture
        differing = {name for name, _ in found ^ needed}
        raise UserError(f"{folder} does not hold this model's weights; differing: {first_few(differing)}")
    model.load_state_dict(state)


def checkpoint_bytes(model: nn.Module, *, deepspeed: bool, fsdp: bool) -> int:
    """Estimate the bytes of a checkpoint: the weights (or adapters), and AdamW's two moments of trained weights.

    DeepSpeed and FSDP write the weights twice, and DeepSpeed also writes fp32 master weights.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    saved = sum(
        parameter_count(p) * p.element_size() for p in (trained if isinstance(model, PeftModel) else model.parameters())
    )
    moments = 2 * sum(parameter_count(p) * 4 for p in trained)
    second_copy = saved if deepspeed or fsdp else 0
    masters = moments // 2 if deepspeed else 0
    tokenizer = 2**24
    return saved + moments + second_copy + masters + tokenizer
