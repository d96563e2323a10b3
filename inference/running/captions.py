"""Caption a knowledge base's images by a model, for the entry modality C of mRAG (arXiv 2505.24073, §3.1)."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import launch_processes
from reflectune.core.types import Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.config import EngineSettings
from reflectune.inference.operators.budget import was_raised
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, write
from reflectune.inference.pipelines.iterative import reading_models
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.requirements import SERVER
from reflectune.inference.running.config import CaptionConfig
from reflectune.inference.running.loading import open_engine
from reflectune.inference.running.parts import hash_server, open_servers
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.models.loading import load
from reflectune.retrieval.indexes.captions import CAPTION_FILE

NAME: Final = "captions"
"""Name of the traces."""
CAPTION: Final = "Generate an image caption that provides the essential clues within three sentences."
"""Figure 5, without its "Given the image", since the prompt begins with the image."""


def run(config: CaptionConfig) -> int:
    """Write the captions; an interrupted run resumes.

    Returns:
        The number of images left out, by `on_error: skip` or because a budget was spent.

    Raises:
        UserError: The knowledge base has no images, or one can't be used and `on_error` is `stop`.
    """
    kb = KnowledgeBase(config.knowledge)
    images = [Question(entry.id, str(kb.image_path(entry)), CAPTION) for entry in kb if entry.images]
    if not images:
        raise UserError(f"the knowledge base {kb.folder} has no images to caption")
    if config.dry_run:
        writer = config.llm_model if config.reader == SERVER else config.base_model
        print(f"would caption {len(images):,} of {len(kb):,} entries' images with {writer}, into {config.output}")
        return 0
    processes = launch_processes(config.output)
    traces = _run_captioning(config, kb, images)
    if processes.index:
        return 0
    captions = {image.id: traces[image.id].answer.strip() for image in images}
    path = Path(config.output, CAPTION_FILE)
    rows = [{"entry_id": entry_id, "caption": caption} for entry_id, caption in captions.items() if caption]
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    left_out = [image.id for image in images if traces[image.id].error or traces[image.id].limit]
    print(f"{path}: {len(rows):,} captions of {len(kb):,} entries; {len(left_out):,} images were left out")
    return len(left_out)


def _run_captioning(config: CaptionConfig, kb: KnowledgeBase, images: list[Question]) -> StoredTraces:
    """Caption all images that have no caption yet; return the traces of all images."""
    is_served, output = config.reader == SERVER, Path(config.output)
    use = ModelUse(None if is_served else "base_model", is_served=is_served)
    parts = PipelineParts(kb, use=use, batch_questions=config.batch_questions)
    model_key: tuple[Any, ...] = hash_server(config) if is_served else ()
    with open_servers(config, parts, output, remote=is_served, pages=False) as ready:
        if not is_served:
            loaded = load(
                config.base_model,
                dtype=config.precision,
                device=config.device,
                images=config.image_settings(),
                device_map=config.device_map,
            )
            ready = dataclasses.replace(ready, engine=open_engine(EngineSettings.of(config), loaded))
            model_key = (loaded.fingerprint, config.precision, config.batch_questions)

        def start(question: Question) -> Steps[TrajectoryResult]:
            slots = {"question": question.text}
            reply = yield from write("caption", 0, "{question}", slots, max_tokens=config.max_new_tokens, form="text")
            return TrajectoryResult(reply.text, "captioned", reply.score)

        return run_pipeline(
            NAME,
            lambda: TrajectoryPipeline(NAME, start, Tools(reading_models(ready), budget=ready.budget)),
            images,
            image_root=kb.image_root,
            folder=output / "traces",
            fingerprint=fingerprint([kb.fingerprint, CAPTION, config.max_new_tokens, model_key]),
            batch_questions=None if is_served else config.batch_questions,
            on_error=config.on_error,
            form=config.traces,
            reopen=functools.partial(was_raised, now=ready.budget.limits),
        )
