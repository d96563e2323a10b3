"""Inputs of a model from pictures and text: image fitting and its settings, and a record of the tokenizer."""
