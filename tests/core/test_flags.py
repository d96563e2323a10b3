from typing import Literal

from reflectune.core.config import Settings, setting
from reflectune.core.flags import help_text
from reflectune.core.values import Share


class Bounded(Settings):
    """Settings with bounds.

    More about them.
    """

    share: Share = setting(0.5, "a share, 50% of all")
    weights: list[Share] = setting([0.5, 1], "weights")
    dry_run: bool = setting(False, "say what would be done, and stop")


class Everything(Bounded):
    """Settings of everything."""

    address: str = setting("http://me:hidden@host", "a server", secret=True)
    method: Literal["full", "lora"] = setting("full", "weights to train")
    limit: int | None = setting(None, "maximum number of rows", ge=1)
    output: str = setting("", "folder to write", needed="a folder")


def test_help_names_every_key_below_the_class_that_declares_it() -> None:
    text = help_text(Everything, "reflectune everything", "Do everything.\n\n    At once.")
    assert text.startswith("usage: reflectune everything [--config FILE.yaml] [--key value ...]\n\nDo everything.\n\n")
    assert "hidden" not in text
    assert "More about them" not in text
    assert "a share, 50% of all (default: 0.5)" in text
    assert "weights (default: 0.5 1)" in text
    assert "--method full|lora\n" in text
    assert "maximum number of rows\n" in text
    words = [
        "Main keys:",
        "--output",
        "Keys of this command:",
        "--address",
        "--method",
        "--limit",
        "Settings with bounds.",
        "--share",
        "--dry_run",
    ]
    positions = [text.index(word) for word in words]
    assert positions == sorted(positions)
