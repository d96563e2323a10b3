"""Settings of a conversion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed, SplitName, output_of, split_problem
from reflectune.data_builders.readers.files import several_splits
from reflectune.data_builders.readers.registry import KNOWLEDGE, METRIC_OF, QUESTIONS, option_problems
from reflectune.metrics.scoring.registry import MetricChoice


class ConvertConfig(Settings):
    """Settings of a conversion; `questions`, `knowledge` or both must be set."""

    output: Annotated[str, output_of("dataset.json", "kb.json")] = setting(
        "", "data set folder to write", needed="the data set folder to write", hashed=False
    )
    name: str = setting("", "name of the data set; that of the output folder if unset")
    root: str = setting("", "folder that the paths below are relative to")
    questions: str = setting("", "reader of the questions, e.g. infoseek, evqa, own")
    splits: dict[str, Any] = setting({}, "file of each split, or a mapping of roles to its files")
    options: dict[str, Any] = setting({}, "the reader's own options")
    metric: MetricChoice = setting("", "metric that scores answers, for dataset.json; the reader's own if unset")
    images: str = setting(
        "", "folder of the questions' images; unset: the questions' own folder for `own`, else no images"
    )
    knowledge: str = setting("", "reader of the knowledge base, e.g. wiki6m, evqa, own")
    knowledge_source: str = setting("", "the knowledge base's file or folder")
    knowledge_images: str = setting("", "folder of the knowledge base's images")
    split: list[SplitName] = setting([], "convert only these of `splits`")
    limit: int | None = setting(
        None, "take the first good questions of each file, and the first articles; all if unset", ge=1
    )
    sample: int | None = setting(
        None, "number of questions to keep of each of `splits`, drawn by seed; all if unset", ge=1
    )
    sample_knowledge: int | None = setting(
        None,
        "number of articles to draw by seed, in addition to those of the questions; with `knowledge_images` only "
        "articles with an image are drawn; all if unset",
        ge=0,
    )
    seed: Seed = setting(0, "seed of `sample` and `sample_knowledge`")
    on_error: Literal["stop", "skip"] = setting(
        "stop", "stop at a bad row, or skip it, list it in rejected.jsonl and exit with 3"
    )
    verify_images: Literal["header", "decode"] = setting(
        "header", "for the questions' images: read their headers, or decode them"
    )
    workers: int = setting(0, "processes; 0: one for each core", ge=0, le=4096, hashed=False)
    check: bool = setting(False, "read and validate everything, write nothing", hashed=False)
    dry_run: bool = setting(False, "print what would be read and written, and stop", hashed=False)

    @cross_check
    def reader_problems(self) -> Iterator[str]:
        """Yield the problem of a missing source."""
        if not (self.questions or self.knowledge):
            yield "one of `questions` and `knowledge` is needed: the name of a reader"
        if self.sample and not self.questions:
            yield "`sample` draws questions; `sample_knowledge` draws articles"

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the problems of the splits' names."""
        yield from (f"`splits`: the name {problem}" for name in self.splits if (problem := split_problem(name)))
        if "" in self.splits:
            yield "`splits`: a split needs a name"

    @cross_check
    def folder_problems(self) -> Iterator[str]:
        """Yield the folders that are missing."""
        if self.root and not self.path("").is_dir():
            yield f"`root`: {self.path('')} is not a folder (looked in {Path.cwd()})"
        if self.images and not self.path(self.images).is_dir():
            yield f"`images`: {self.path(self.images)} is not a folder"
        if self.knowledge_images and not self.path(self.knowledge_images).is_dir():
            yield f"`knowledge_images`: {self.path(self.knowledge_images)} is not a folder"
        if self.questions == "own" and not self.images and len(folders := self.question_folders()) > 1:
            yield f"`images` is needed: image paths are relative to one folder, but the splits are in {len(folders)}"

    @property
    def writes_nothing(self) -> bool:
        """True if rows are only read and checked."""
        return self.dry_run or self.check

    def path(self, value: str) -> Path:
        """Return a path of the config below `root`, unless it is absolute; `~` is the home folder."""
        return Path(self.root).expanduser() / Path(value).expanduser()

    def source(self, split: str) -> Any:
        """Return the source of a split for its reader: a path, a mapping of paths, or a mapping with `load_dataset`."""
        value = self.splits[split]
        if not isinstance(value, dict):
            return self.path(str(value))
        if "load_dataset" in value:
            return value
        return {key: self.path(str(path)) for key, path in value.items()}

    def chosen(self) -> list[str]:
        """Return the splits to convert."""
        return self.split or list(self.splits)

    def question_files(self, split: str) -> list[Path]:
        """Return the files and folders of a split."""
        source = self.source(split)
        if isinstance(source, Path):
            return [source]
        return [] if "load_dataset" in source else list(source.values())

    def question_folders(self) -> list[Path]:
        """Return the folders of the chosen splits' files."""
        files = [file for split in self.chosen() if split in self.splits for file in self.question_files(split)]
        return list(dict.fromkeys((file if file.is_dir() else file.parent).resolve() for file in files))

    def question_paths(self) -> list[Path]:
        """Return the files and folders of all chosen splits, and the local ones that `datasets` loads."""
        sources = [self.source(split) for split in self.chosen()]
        loaded = [Path(str(source.get("load_dataset", ""))) for source in sources if isinstance(source, dict)]
        files = [path for split in self.chosen() for path in self.question_files(split)]
        return files + [path for path in loaded if path.name and path.exists()]

    def hashed(self) -> dict[str, Any]:
        """Return the settings that determine the output. The seed is one of them only if anything is drawn."""
        return super().hashed() | ({} if self.sample or self.sample_knowledge is not None else {"seed": 0})

    def scored_by(self) -> str:
        """Return the metric for dataset.json; "" if neither the config nor the reader has one."""
        return self.metric or METRIC_OF.get(self.questions, "")

    @cross_check
    def output_problems(self) -> list[str]:
        """Return the problem of an output folder that overlaps with the inputs."""
        if self.question_problems() or self.knowledge_problems() or not self.output:
            return []
        output = Path(self.output).expanduser().resolve()
        read = self.question_paths() if self.questions else []
        read += [self.path(self.knowledge_source)] if self.knowledge else []
        named = [self.path(folder) for folder in (self.images, self.knowledge_images) if folder]
        sources = {path.resolve() for path in read}
        if output in sources or any(folder.is_dir() for folder in sources & set(output.parents)):
            return [f"`output`: {self.output} lies in an input folder; choose a different one"]
        inside = sorted(
            path for path in sources | {path.resolve() for path in named} if output in {path, *path.parents}
        )
        return [
            f"`output`: {self.output} holds {path}, which is an input; choose a different one" for path in inside[:1]
        ]

    @cross_check
    def question_problems(self) -> list[str]:
        """Return the problems of the questions' reader and files."""
        if not self.questions:
            return ["`splits` is set and `questions` is not: name the reader"] if self.splits else []
        if self.questions not in QUESTIONS:
            return [f"`questions`: unknown reader {self.questions!r}; there are {', '.join(QUESTIONS)}"]
        issues = option_problems(self.questions, self.options)
        if not self.splits:
            issues.append("`splits` is needed: a file for each split")
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

    @cross_check
    def knowledge_problems(self) -> list[str]:
        """Return the problems of the knowledge base's reader and file."""
        if not self.knowledge:
            unused = [name for name in ("knowledge_source", "knowledge_images") if getattr(self, name)]
            return [f"`{name}` is set and `knowledge` is not: name the reader" for name in unused]
        if self.knowledge not in KNOWLEDGE:
            return [f"`knowledge`: unknown reader {self.knowledge!r}; there are {', '.join(KNOWLEDGE)}"]
        if not self.knowledge_source:
            return ["`knowledge_source` is needed: the knowledge base's file"]
        source = self.path(self.knowledge_source)
        return [] if source.exists() else [f"`knowledge_source`: not found: {source}"]
