"""Metrics of traces: scores, gates, rankings, recall and notices."""
