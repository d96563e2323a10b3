"""Schemes: their tokens, prompts and replies, and how tokens enter a tokenizer and a model."""
