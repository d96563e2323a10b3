"""Pipelines over questions: sharded and resumable, one at a time, both ways."""
