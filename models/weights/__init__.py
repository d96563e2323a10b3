"""Weights as transformers loads them, quantised if wanted, and the rows of new tokens."""
