"""Operators of iterative pipelines, and the loop that executes them."""
