"""Subsets of a data set's questions that are unlike each other, as MI-RAG's ablations use (appendix G)."""
