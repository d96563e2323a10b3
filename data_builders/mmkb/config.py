"""The settings of `derive_labels.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from reflectune.core.addresses import shown_options
from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.values import Device, Seed, output_of
from reflectune.data_builders.mmkb.labels import LabelLimits
from reflectune.data_builders.mmkb.mct import Mixing, Noise
from reflectune.data_builders.probing.labels import Rule, RuleName
from reflectune.metrics.scoring.registry import MetricChoice, metric_problems
from reflectune.models.names import BemName
from reflectune.models.remote.endpoint import RemoteConfig


class DeriveConfig(RemoteConfig):
    """Derive MMKB-RAG's training data from probes; no model is needed."""

    probes: str = setting("", "folder that probe.py wrote", needed="")
    dataset: str = setting("", "data set folder that was probed", needed="")
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the reflection data", needed="")
    labeller: Literal["probes", "string"] = setting(
        "probes", "who labels documents: the model's own answers, or whether one states an accepted answer"
    )
    metric: Literal[MetricChoice, "judge"] = setting(
        "", "judge the answers again: evqa needs `bem`, judge a remote model; the probes' own if unset"
    )
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `metric: evqa`")
    device: Device = setting("cpu", "where BEM computes")
    judge: Literal["pmsr", "mrag"] = setting(
        "pmsr", "for `metric: judge`: whose protocol; the model is `llm_model` at `llm_url`"
    )
    rule: RuleName = setting("paper", "paper, outcome, rate or margin; see labels.py")
    right_from: float = setting(0.5, "an answer worth this much is right", ge=0, le=1)
    change: float = setting(0.5, "for `rate`: least change of the rate of correctness", ge=0, le=1)
    margin: float = setting(1.0, "for `margin`: least change of the log-probability, in nats", ge=0)
    srt_visual: bool = setting(True, "label the documents of visual-dependent questions too; they are all [NoRel]")
    tau: float = setting(50.0, "percentage of irrelevant documents in the mixed lists of MCT", ge=0, le=100)
    noise: Noise = setting("unhelpful", "what is mixed in: no_rel, or unhelpful: all with a wrong answer")
    ret_balance: float | None = setting(None, "most of the frequent label per rare one; RET", gt=0)
    srt_balance: float | None = setting(None, "most of the frequent label per rare one; SRT", gt=0)
    ret_limit: int | None = setting(None, "most examples of RET, drawn by seed", ge=0)
    srt_limit: int | None = setting(None, "most examples of SRT, drawn by seed", ge=0)
    mct_limit: int | None = setting(None, "most examples of MCT, drawn by seed", ge=0)
    rel_scores: str = setting(
        "", "Parquet or JSONL of question_id, passage_id, score: trained [Rel], orders MCT's reply"
    )
    answer_model: Literal["separate", "shared"] = setting(
        "separate", "shared: train to answer too, from no or from the relevant documents"
    )
    proofread: int = setting(50, "random questions in the page for proof-reading; 0: no page", ge=0)
    seed: Seed = setting(0, "seed of every draw")

    @cross_check
    def derive_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        for name, marker, maker in (
            ("probes", "probes.json", "probe.py"),
            ("dataset", "dataset.json", "build_world or convert"),
        ):
            folder = getattr(self, name)
            if folder and not Path(folder, marker).is_file():
                issues.append(f"`{name}`: {folder} has no {marker}; give a folder that {maker} wrote to its end")
        if self.rel_scores and not Path(self.rel_scores).is_file():
            issues.append(f"`rel_scores`: {self.rel_scores} is not there")
        if self.metric == "judge":
            issues += self.llm_problems()
            if "temperature" in self.llm_options:
                issues.append("`llm_options` can't set the temperature of a judge: it is 0")
        elif self.metric:
            issues += metric_problems(self.metric, self.bem)
        elif self.bem:
            issues.append("`bem` is read by `metric: evqa` alone: set it, or leave `bem` out")
        for make in (self.how, self.mixing, self.choices):
            try:
                make()
            except UserError as error:
                issues.append(str(error))
        return issues

    def how(self) -> Rule:
        """When a document counts as relevant."""
        return Rule(self.rule, self.right_from, self.change, self.margin)

    def mixing(self) -> Mixing:
        """What MCT's lists hold."""
        return Mixing(self.tau, self.noise, self.seed)

    def choices(self) -> tuple[LabelLimits, LabelLimits, LabelLimits]:
        """Which labels of RET, SRT and MCT are taken."""
        return (
            LabelLimits(self.ret_balance, self.ret_limit, self.seed),
            LabelLimits(self.srt_balance, self.srt_limit, self.seed),
            LabelLimits(None, self.mct_limit, self.seed),
        )

    def what_decides(self) -> dict[str, Any]:
        """The settings that decide what is derived; the probes, the scores and BEM's weights are hashed apart."""
        elsewhere = {"probes", "dataset", "output", "rel_scores", "proofread", "bem", "device"}
        remote = set(RemoteConfig.model_fields)
        elsewhere |= (remote - {"llm_model", "llm_options"}) if self.metric == "judge" else {*remote, "judge"}
        settings = {name: value for name, value in self.model_dump().items() if name not in elsewhere}
        return {name: shown_options(value) if name == "llm_options" else value for name, value in settings.items()}
