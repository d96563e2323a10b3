"""Checkpoints of a training: found again, merged, assembled from published parts, and uploaded."""
