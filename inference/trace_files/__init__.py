"""Traces on disk: JSONL for small runs, Parquet for large ones."""
