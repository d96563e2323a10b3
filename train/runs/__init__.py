"""A training run: its launch, its trainer, and the skeleton that every training shares."""
