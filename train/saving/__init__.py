"""Checkpoints: written, found, the best one kept, adapters merged."""
