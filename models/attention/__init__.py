"""Attention over shared prefixes: key-value levels, tree masks, positions, and the trees that training packs."""
