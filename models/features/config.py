"""Settings of the cache of a frozen vision tower's features."""

from __future__ import annotations

from reflectune.core.config import Settings, setting
from reflectune.core.values import OutputFolder


class FeatureKeys(Settings):
    """Settings of the cache of vision features."""

    cache_features: OutputFolder = setting(
        "",
        "folder for the features of a frozen vision tower, which then reads each image once; shared by runs",
        hashed=False,
    )

    def feature_problems(self, trained_towers: frozenset[str]) -> list[str]:
        """Return the problems of caching while these towers train, one sentence each."""
        if self.cache_features and "vision_tower" in trained_towers:
            return [
                "`cache_features` needs a vision tower that stays as it is, and it trains: leave vision_tower out of "
                "`train_towers`, or set `freeze_vision: true`"
            ]
        return []
