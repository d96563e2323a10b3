"""Weights as transformers loads them, quantised if wanted."""
