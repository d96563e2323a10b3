"""Rerankers: which of some passages answer a question, by words, by a bi-encoder or by a cross-encoder."""
