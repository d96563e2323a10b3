import pytest

from reflectune.models.prefix import decoding, forward, packed


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines for the user, printed once a process elsewhere."""
    lines: list[str] = []
    for module in (decoding, forward, packed):
        monkeypatch.setattr(module, "say", lines.append)
    return lines
