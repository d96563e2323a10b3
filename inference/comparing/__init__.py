"""Comparison of evaluations: one table of scores and costs."""
