"""Traces on the disk: JSONL of small runs, Parquet of large ones, and how either is read."""
