"""Interface of engines: `PrefixEngine` computes in this process, `ServedEngine` sends requests to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.schemes.calibration import GateScaling

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

    from reflectune.models.prefix.image_prefix import ImagePrefixCache
    from reflectune.models.prefix.state import Generation


class ReadPrefixes(Protocol):
    """Prefixes opened by an engine."""

    def __len__(self) -> int:
        """Return the number of prefixes."""
        ...

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each token to come next, full softmax: (questions, tokens)."""
        ...


class ReadBranches(Protocol):
    """Branches that continue opened prefixes."""

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Return the probability of each token to come next, full softmax: (branches, tokens) for each question."""
        ...


class Engine(Protocol):
    """Reads prefixes and branches given as token ids, and answers from them. See `PrefixEngine` for each method."""

    @property
    def renderer(self) -> Renderer:
        """Renderer of the model."""
        ...

    @property
    def calibration(self) -> Mapping[str, GateScaling]:
        """Calibration of the gates, by their names."""
        ...

    @property
    def max_length(self) -> int:
        """Maximum tokens of a sequence."""
        ...

    @property
    def image_prefixes(self) -> ImagePrefixCache[Any]:
        """Cache of image prefixes."""
        ...

    def read(self, prefixes: Sequence[Rendered]) -> ReadPrefixes:
        """Open prefixes."""
        ...

    def branch(self, prefixes: Any, branches: Sequence[Sequence[Sequence[int]]]) -> ReadBranches:
        """Continue prefixes with branches."""
        ...

    def generate(
        self, state: Any, rows: Sequence[tuple[int, int]], forced: Sequence[int] = (), max_new_tokens: int = 32
    ) -> list[Generation]:
        """Answer greedily from rows of prefixes or branches."""
        ...

    def check_numbers(self, *values: float) -> None:
        """Raise a `UserError` if a value is NaN."""
        ...
