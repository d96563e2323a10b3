"""Settings of the cache of a frozen vision tower's features."""

from __future__ import annotations

from typing import Literal

from reflectune.core.config import Settings, setting
from reflectune.core.values import OutputFolder

CacheDtype = Literal["auto", "float32", "bfloat16", "float16"]


class FeatureKeys(Settings):
    """Settings of the cache of vision features."""

    cache_features: OutputFolder = setting(
        "",
        "folder for the features of a frozen vision tower, which then reads each picture once; shared by runs",
        hashed=False,
    )
    cache_dtype: CacheDtype = setting("auto", "precision of the cached features; auto: the tower's output dtype")

    def feature_problems(self, trained_towers: frozenset[str]) -> list[str]:
        """Return the problems of caching while these towers train, one sentence each."""
        if self.cache_dtype != "auto" and not self.cache_features:
            return ["`cache_dtype` needs `cache_features`: a folder for the features"]
        if self.cache_features and "vision_tower" in trained_towers:
            return [
                "`cache_features` needs a vision tower that stays as it is, and it trains: leave vision_tower out of "
                "`train_towers`, or set `freeze_vision: true`"
            ]
        return []
