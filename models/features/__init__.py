"""Features of a frozen vision tower: cached on disk, and read by a model in the place of pixels."""
