from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.train.runs.preview import mark_supervised


class Letters:
    """Decodes 0 as `a`, 1 as `b`, …"""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


def test_supervised_spans_are_marked_and_branches_stand_on_their_own_lines() -> None:
    prefix = Segment.of((0, 9, 9, 9, 9, 9, 1, 2), (IGNORE,) * 7 + (2,))
    branches = (Segment.of((3, 4, 5), (IGNORE, 4, 5)), Segment.of((6, 6), (IGNORE, IGNORE)))

    text = mark_supervised(Tree(prefix, branches, {}), Letters())  # type: ignore[arg-type]

    assert text == "aj×5b⟦c⟧\n  ├ d⟦ef⟧\n  ├ gg"
