"""What a conversion reads, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed, SplitName, output_of, split_problem
from reflectune.data_builders.readers.files import several_splits
from reflectune.data_builders.readers.registry import KNOWLEDGE, METRIC_OF, QUESTIONS, option_problems
from reflectune.metrics.scoring.registry import MetricChoice


class ConvertConfig(Settings):
    """Settings of a conversion. At least one of `questions` and `knowledge` is set."""

    output: Annotated[str, output_of("dataset.json", "kb.json")] = setting(
        "", "data set folder to write", needed="the data set folder to write"
    )
    name: str = setting("", "name of the data set; that of the output folder if unset")
    root: str = setting("", "folder that the paths below start from")
    questions: str = setting("", "reader of the questions, e.g. infoseek, evqa, own")
    splits: dict[str, Any] = setting({}, "for each split its file, or a mapping of what a file is to the file")
    options: dict[str, Any] = setting({}, "the reader's own options")
    metric: MetricChoice = setting("", "what answers are scored by, for dataset.json; the reader's own if unset")
    images: str = setting("", "folder of the questions' images; unset: no images are wanted")
    knowledge: str = setting("", "reader of the knowledge base, e.g. wiki6m, evqa, own")
    knowledge_source: str = setting("", "the knowledge base's file or folder")
    knowledge_images: str = setting("", "folder of the knowledge base's images")
    split: list[SplitName] = setting([], "convert these of `splits` only")
    limit: int = setting(0, "read that many rows of each source only; 0: all", ge=0)
    sample: int = setting(0, "keep that many questions of each of `splits`, drawn by seed; 0: all", ge=0)
    sample_knowledge: int = setting(
        -1, "keep the questions' own articles and that many others, drawn by seed; -1: all", ge=-1
    )
    seed: Seed = setting(0, "seed of what is drawn")
    on_error: Literal["stop", "skip"] = setting(
        "stop", "stop at a bad row, or leave it out, list it in rejected.jsonl and exit with 3"
    )
    verify_images: Literal["none", "header", "decode"] = setting(
        "header", "of the questions' images: trust the files, read their headers, or decode them whole"
    )
    workers: int = setting(0, "processes; 0: one for each core", ge=0, le=4096)
    check: bool = setting(False, "read and validate everything, write nothing")
    dry_run: bool = setting(False, "say what would be read and written, and stop")

    @cross_check
    def convert_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        if not (self.questions or self.knowledge):
            issues.append("one of `questions` and `knowledge` is needed: the name of a reader")
        issues += [f"`splits`: the name {told}" for name in self.splits if (told := split_problem(name))]
        if "" in self.splits:
            issues.append("`splits`: a split needs a name")
        if self.sample and not self.questions:
            issues.append("`sample` is of questions; a knowledge base alone is sampled by `sample_knowledge`")
        if self.root and not self.path("").is_dir():
            issues.append(f"`root`: {self.path('')} is not a folder")
        if self.images and not self.path(self.images).is_dir():
            issues.append(f"`images`: {self.path(self.images)} is not a folder")
        if self.knowledge_images and not self.path(self.knowledge_images).is_dir():
            issues.append(f"`knowledge_images`: {self.path(self.knowledge_images)} is not a folder")
        issues += self._question_problems() + self._knowledge_problems()
        return issues or self._output_problems()

    def path(self, value: str) -> Path:
        """A path of the config, with `root` before it unless it is absolute; `~` is the home folder."""
        return Path(self.root).expanduser() / Path(value).expanduser()

    def source(self, split: str) -> Any:
        """What a split's reader is given: a path, or a mapping of paths (`load_dataset` is passed on as it is)."""
        value = self.splits[split]
        if not isinstance(value, dict):
            return self.path(str(value))
        if "load_dataset" in value:
            return value
        return {key: self.path(str(path)) for key, path in value.items()}

    def chosen(self) -> list[str]:
        """The splits to convert."""
        return self.split or list(self.splits)

    def question_files(self, split: str) -> list[Path]:
        """The files and folders that a split is read from."""
        source = self.source(split)
        if isinstance(source, Path):
            return [source]
        return [] if "load_dataset" in source else list(source.values())

    def question_paths(self) -> list[Path]:
        """The files and folders of all chosen splits."""
        return [path for split in self.chosen() for path in self.question_files(split)]

    def what_decides(self) -> dict[str, Any]:
        """The settings that the output depends on."""
        names = "root questions splits options images knowledge knowledge_source knowledge_images split limit sample"
        kept = {name: getattr(self, name) for name in (*names.split(), "sample_knowledge", "on_error", "verify_images")}
        seed = self.seed if self.sample or self.sample_knowledge >= 0 else 0
        return {**kept, **({"metric": self.metric} if self.metric else {}), "seed": seed}

    def scored_by(self) -> str:
        """The metric for dataset.json; "" if neither the config nor the reader says one."""
        return self.metric or METRIC_OF.get(self.questions, "")

    def _output_problems(self) -> list[str]:
        """Says where a second conversion would read what the first one wrote, or lose what it should read."""
        output = Path(self.output).expanduser().resolve()
        read = self.question_paths() if self.questions else []
        read += [self.path(self.knowledge_source)] if self.knowledge else []
        named = [self.path(folder) for folder in (self.images, self.knowledge_images) if folder]
        sources = {path.resolve() for path in read}
        if output in sources or any(folder.is_dir() for folder in sources & set(output.parents)):
            return [f"`output`: {self.output} lies in a folder that is read; choose another folder"]
        inside = sorted(
            path for path in sources | {path.resolve() for path in named} if output in {path, *path.parents}
        )
        return [f"`output`: {self.output} holds {inside[0]}, which is read; choose another folder"] if inside else []

    def _question_problems(self) -> list[str]:
        if not self.questions:
            return ["`splits` is set and `questions` is not: name the reader"] if self.splits else []
        if self.questions not in QUESTIONS:
            return [f"`questions`: there is no reader {self.questions!r}; there are {', '.join(QUESTIONS)}"]
        issues = option_problems(self.questions, self.options)
        if not self.splits:
            issues.append("`splits` is needed: for each split its file")
        unknown = [name for name in self.split if name not in self.splits]
        if unknown:
            issues.append(f"`split`: {', '.join(unknown)} is not among the splits {', '.join(self.splits)}")
            return issues
        for split in self.chosen():
            missing = [path for path in self.question_files(split) if not path.exists()]
            issues += [f"`splits`: {split}: not found: {path}" for path in missing]
            issues += [
                f"`splits`: {split}: {path} holds the files of {names}; name one file, or a folder of one split's"
                for path in self.question_files(split)
                if (names := several_splits(path))
            ]
        return issues

    def _knowledge_problems(self) -> list[str]:
        if not self.knowledge:
            lonely = [name for name in ("knowledge_source", "knowledge_images") if getattr(self, name)]
            return [f"`{name}` is set and `knowledge` is not: name the reader" for name in lonely]
        if self.knowledge not in KNOWLEDGE:
            return [f"`knowledge`: there is no reader {self.knowledge!r}; there are {', '.join(KNOWLEDGE)}"]
        if not self.knowledge_source:
            return ["`knowledge_source` is needed: the knowledge base's file"]
        source = self.path(self.knowledge_source)
        return [] if source.exists() else [f"`knowledge_source`: not found: {source}"]
