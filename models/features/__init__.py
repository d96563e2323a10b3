"""Features of a frozen vision tower: cached on disk, and fed to the model in place of pixels."""
