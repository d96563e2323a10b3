"""Whose pictures are fetched, where to, and how politely."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.data_builders.readers.registry import WITH_ADDRESSES


def _agent(value: str) -> str:
    """Whether this can stand in a request's header."""
    if not value.strip():
        return "is empty; say who fetches, and how you are reached"
    return "" if value.isascii() and value.isprintable() else "must be one line of ASCII"


@dataclass
class PictureConfig:
    """Settings of fetching a knowledge base's pictures."""

    knowledge: str = setting("evqa", "reader of the knowledge base", choices=WITH_ADDRESSES)
    root: str = setting("", "folder that `knowledge_source` starts from")
    knowledge_source: str = setting("", "the knowledge base's file")
    output: str = setting("", "folder for the pictures: `knowledge_images` of a conversion", check=checks.output_folder)
    limit: int = setting(0, "only so many addresses, the first ones; 0: all", low=0, says="can't be negative")
    concurrency: int = setting(4, "requests under way at a time", low=1, high=256)
    requests_per_second: float = setting(20.0, "most requests that begin in a second", above=0)
    user_agent: str = setting(
        "reflectune (pictures of a research data set; set user_agent to say how you are reached)",
        "what a server is told of who asks; Wikimedia wants an address in it",
        check=_agent,
    )
    timeout: float = setting(60.0, "seconds that one picture may take", above=0)
    retries: int = setting(4, "how often a request is sent again after a failure that may pass", low=0)
    backoff: float = setting(1.0, "seconds before the first retry, doubled for each further", above=0)
    most_mib: float = setting(32.0, "MiB of the largest picture that is taken", above=0)
    allow_private: bool = setting(
        False, "also fetch from this machine and from private networks, where an address leads there"
    )
    dry_run: bool = setting(False, "say what would be fetched, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [f"`{name}` is needed" for name in ("knowledge_source", "output") if not getattr(self, name)]
        issues += bound_problems(self, PictureConfig)
        if self.root and not Path(self.root).expanduser().is_dir():
            issues.append(f"`root`: {checks.short(self.root)} is not a folder")
        elif self.knowledge_source and not self.source().is_file():
            issues.append(f"`knowledge_source`: there is no file {checks.short(str(self.source()))}")
        return issues

    def source(self) -> Path:
        """The knowledge base's file."""
        return Path(self.root).expanduser() / Path(self.knowledge_source).expanduser()
