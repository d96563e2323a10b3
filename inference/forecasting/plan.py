"""Hours of each stage: what a question takes of the model, times the questions, over the rate of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from reflectune.core.devices import find_device
from reflectune.core.durable import read_json
from reflectune.core.progress import duration
from reflectune.inference.forecasting.config import InferenceEstimateConfig
from reflectune.models.loading import shapes_file
from reflectune.models.weights.pretrained import as_dtype
from reflectune.train.estimates.architecture import Architecture, image_patches, image_tokens, is_qwen
from reflectune.train.estimates.rates import Rates, given_rates, measure_rates
from reflectune.train.estimates.work import Work, decoder_weights, flop

_GIB = 2**30


@dataclass(frozen=True)
class Stage:
    """What a stage takes.

    Attributes:
        name: Of the stage.
        works: What one question takes of the model, reading by reading.
        operations: Floating-point operations of one question.
        seconds: Of one question on one device.
        rates: That they come from.
    """

    name: str
    works: Sequence[Work]
    operations: float
    seconds: float
    rates: Sequence[Rates]


def report(config: InferenceEstimateConfig) -> str:
    """The table of all stages, and what it was computed from."""
    model = model_config(config)
    shapes = Architecture.of(model)
    stages = [plan_stage(name, config, model) for name in config.stages]
    lines = [
        f"{config.questions:,} questions, {config.processes} devices, {config.dtype}; {_memory(config, shapes)}",
        f"{'stage':<12} {'read':>10} {'written':>9} {'TFLOP':>9} {'time':>12}  tokens and operations of a question",
    ]
    for stage in stages:
        read, written = sum(work.read for work in stage.works), sum(work.written for work in stage.works)
        whole = stage.seconds * config.questions / config.processes
        lines.append(
            f"{stage.name:<12} {read:>10,.0f} {written:>9,.0f} {stage.operations / 1e12:>9,.3g} {duration(whole):>12}"
        )
    total = sum(stage.seconds for stage in stages) * config.questions / config.processes
    lines.append(f"{'all':<12} {'':>30} {duration(total):>12}")
    lines += dict.fromkeys(f"rate, {stage.name}: {rates.how}" for stage in stages for rates in stage.rates)
    return "\n".join(lines)


def model_config(config: InferenceEstimateConfig) -> PreTrainedConfig:
    """The shapes of the config's model.

    Raises:
        UserError: There is no such model, or its file is damaged.
    """
    file = Path(config.architecture) if config.architecture else shapes_file(config.model)
    facts = read_json(file, "the model's shapes")
    return AutoConfig.for_model(**facts.get("config", facts))


def plan_stage(name: str, config: InferenceEstimateConfig, model: PreTrainedConfig) -> Stage:
    """What one stage takes: each of its works by rates of its own."""
    shapes, works = Architecture.of(model), works_of(name, config, model)
    operations = [flop(shapes, work) for work in works]
    rates = [rates_for(work, config, model) for work in works]
    seconds = sum(rate.seconds(each) for rate, each in zip(rates, operations, strict=True))
    seconds += config.preparing_ms / 1000
    return Stage(name, works, sum(each.total for each in operations), seconds, rates)


def rates_for(work: Work, config: InferenceEstimateConfig, model: PreTrainedConfig) -> Rates:
    """The machine's rates for passes like these: given, or measured here."""
    dtype = as_dtype(config.dtype)
    if config.tflops is not None:
        rows = max(1.0, work.rows * config.batch_questions)
        return given_rates(Architecture.of(model), config.tflops, config.bandwidth, rows, dtype.itemsize)
    device = str(find_device(config.device))
    return measure_rates(model, work, batch=config.batch_questions, dtype=dtype, device=device)


def works_of(name: str, config: InferenceEstimateConfig, model: PreTrainedConfig) -> Sequence[Work]:
    """What one question takes of the model in a stage."""
    return list(_WORKS[name](config, _opened(config, model)))


def _opened(config: InferenceEstimateConfig, model: PreTrainedConfig) -> Work:
    """A picture and a question, read once."""
    tokens = config.image_tokens or image_tokens(model)
    patches = image_patches(model, tokens)
    tile = patches if is_qwen(model) else (model.vision_config.image_size // model.vision_config.patch_size) ** 2
    return Work(patches=patches, tile=tile, prefix=tokens + config.question_tokens)


def _one_prompt(config: InferenceEstimateConfig, opened: Work, tokens: float) -> Iterator[Work]:
    """A prompt of its own, in one turn, and an answer."""
    whole = opened.prefix + tokens + config.prompt_tokens
    yield replace(opened, prefix=whole, rows=1, row_tokens=config.answer_tokens, longest=config.longest_answer)


def _branched(
    config: InferenceEstimateConfig, opened: Work, branches: float, branch_tokens: float, rows: float
) -> Work:
    """Branches of so many tokens behind what is opened, and answers in so many of them."""
    answers = {"rows": rows, "row_tokens": config.answer_tokens, "longest": config.longest_answer}
    return replace(opened, branches=branches, branch_tokens=branch_tokens, **answers)


def _mr2ag(config: InferenceEstimateConfig, opened: Work) -> Iterator[Work]:
    """The gate; of questions that retrieve all passages, and answers from those that are relevant."""
    direct = 1 - config.retrieved
    branches = config.retrieved * config.passages + direct
    tokens = config.prompt_tokens + config.retrieved * config.passages / max(branches, 1e-9) * config.passage_tokens
    rows = config.retrieved * config.relevant + direct
    yield _branched(config, opened, branches, tokens, rows)


def _mmkb_rag(config: InferenceEstimateConfig, opened: Work) -> Iterator[Work]:
    """RET and SRT of the tuned model, then MCT over what SRT keeps, then the base model's answer."""
    asked = config.passage_tokens + config.prompt_tokens
    yield replace(opened, branches=config.documents, branch_tokens=asked)
    chosen = config.kept * config.passage_tokens + config.prompt_tokens
    reading = Work(seen=opened.prefix)
    if config.kept >= 2:
        yield replace(reading, branches=1, branch_tokens=chosen, rows=1, row_tokens=config.reply_tokens)
    yield from _one_prompt(config, opened, config.kept * config.passage_tokens)


def _probe(config: InferenceEstimateConfig, opened: Work) -> Iterator[Work]:
    """The question alone and with each document, and answers to each prompt."""
    prompts = 1 + config.documents
    tokens = config.prompt_tokens + config.documents / prompts * config.passage_tokens
    rows = prompts * (1 + config.samples)
    yield _branched(config, opened, prompts, tokens, rows)


def _annotate(config: InferenceEstimateConfig, opened: Work) -> Iterator[Work]:
    """A model that reads text alone judges passages, one request each, behind an instruction that is kept."""
    tokens = config.passage_tokens + config.question_tokens
    yield Work(
        branches=config.annotated,
        branch_tokens=tokens,
        rows=config.annotated,
        row_tokens=config.reply_tokens,
        seen=config.instruction_tokens,
    )


_WORKS: Mapping[str, Callable[[InferenceEstimateConfig, Work], Iterator[Work]]] = {
    "annotate": _annotate,
    "probe": _probe,
    "closed_book": lambda config, opened: _one_prompt(config, opened, 0),
    "naive_rag": lambda config, opened: _one_prompt(config, opened, config.context_tokens),
    "oracle": lambda config, opened: _one_prompt(config, opened, config.context_tokens),
    "mr2ag": _mr2ag,
    "mmkb_rag": _mmkb_rag,
}


def _memory(config: InferenceEstimateConfig, shapes: Architecture) -> str:
    """What weights and keys and values take, in words."""
    size = as_dtype(config.dtype).itemsize
    weights = size * (decoder_weights(shapes) + 2 * shapes.vocabulary * shapes.width)
    token = 2 * size * shapes.layers * shapes.key_width
    return f"decoder {weights / _GIB:,.1f} GiB, keys and values {token / 1024:,.0f} KiB a token"
