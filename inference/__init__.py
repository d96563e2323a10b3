"""Pipelines, traces, evaluation, reports, single answers."""
