"""Readers: one module per public data set or knowledge base, each a stream of `Question`s or `Entry`s."""
