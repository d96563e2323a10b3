"""What a person wants to know of derived labels: counts, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel


def label_statistics(
    ret: Sequence[RetLabel], srt: Sequence[SrtLabel], mct: Sequence[MctLabel], without_summary: int = 0
) -> dict[str, Any]:
    """Counts over derived labels.

    Args:
        ret: RET labels.
        srt: SRT labels.
        mct: MCT labels.
        without_summary: Questions that Algorithm 3 would take, but for which there is no summary.

    Returns:
        Of each task the number of examples and of each label; of MCT also how many irrelevant documents τ asked for,
        how many were mixed in, and in how many examples they were fewer.
    """
    needed = sum(label.retrieve for label in ret)
    relevant = sum(label.relevant for label in srt)
    return {
        "ret": {"examples": len(ret), "[Ret]": needed, "[NoRet]": len(ret) - needed},
        "srt": {
            "examples": len(srt),
            "[Rel]": relevant,
            "[NoRel]": len(srt) - relevant,
            "questions": len({label.question_id for label in srt}),
        },
        "mct": {
            "examples": len(mct),
            "relevant": sum(len(label.keep) for label in mct),
            "irrelevant_wanted": sum(label.wanted for label in mct),
            "irrelevant_mixed_in": sum(label.mixed_in for label in mct),
            "with_fewer_than_wanted": sum(label.mixed_in < label.wanted for label in mct),
            "without_summary": without_summary,
        },
    }
