"""Whether an upload to the Hub can work, said before a run begins and not when it ends."""

from __future__ import annotations

import re

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def hub_problems(repository: str) -> list[str]:
    """What is wrong with uploading to a repository, one sentence each; the Hub itself isn't asked."""
    from huggingface_hub import constants, get_token  # slow to import: only if something is to be uploaded

    issues = []
    if not _REPOSITORY.fullmatch(repository):
        issues.append(f"`push_to_hub` must be owner/name, found {repository}")
    if constants.HF_HUB_OFFLINE:
        issues.append("`push_to_hub` needs the Hub, and $HF_HUB_OFFLINE is set; unset it")
    elif get_token() is None:
        issues.append("`push_to_hub` needs a token: `hf auth login`, or set $HF_TOKEN")
    return issues
