"""Settings of `build_mr2ag`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, one_of, output_of
from reflectune.data_builders.annotators.llm import LlmAnnotator
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.annotators.string import by_gold, by_string
from reflectune.data_builders.mr2ag.builder import ExampleSettings
from reflectune.data_builders.mr2ag.selection import QuestionSettings
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig

NAMES = ("string", "gold", "llm")


class BuildConfig(ExampleSettings, QuestionSettings, RemoteConfig, RetrieverConfig):
    """Build one split of reflection data. The `llm_…` keys name the model of `annotator: llm`."""

    output: Annotated[str, output_of("reflection.json")] = setting(
        "", "folder for the reflection data", needed="", hashed=False
    )
    device: Device = setting("auto", "device of the encoder: cpu, cuda, or auto", hashed=False)
    annotator: Annotated[str, one_of(*NAMES)] = setting(
        "string", "source of evidence labels: string (the answer occurs), gold (the data set names evidence), or llm"
    )
    dry_run: bool = setting(False, "describe the build, show one example, and stop", hashed=False)

    @cross_check
    def retrieval_problems(self) -> Iterator[str]:
        """Yield the problem of a missing index for retrieved negatives."""
        if self.negatives_retrieved and not self.finds_entries:
            yield (
                "`negatives_retrieved` needs an `index`, or `ranked_entities`; build one with build_index, or set it "
                "to 0"
            )

    @cross_check
    def annotator_problems(self) -> Iterator[str]:
        """Yield the problems of the server that annotates."""
        if self.annotator == "llm":
            yield from self.llm_problems()

    def replies_file(self) -> Path:
        """Return the file that caches the replies of `annotator: llm`."""
        return Path(self.llm_cache or Path(self.output, "llm_replies.jsonl"))

    @contextmanager
    def open_annotator(self) -> Iterator[Annotator]:
        """Open the annotator; `llm` keeps its file of replies open in this block."""
        if self.annotator != "llm":
            yield {"string": by_string, "gold": by_gold}[self.annotator]
            return
        with RemoteModel(self.endpoint(), self.replies_file()) as model:
            yield LlmAnnotator(model)

    def hashed(self) -> dict[str, Any]:
        """Return the settings that determine the data. Those of the server are among them only if it annotates."""
        unused = () if self.annotator == "llm" else RemoteConfig.model_fields
        return {name: value for name, value in super().hashed().items() if name not in unused}
