"""Attention over shared prefixes and trees: key-value levels, tree masks, and positions."""
