"""Rerankers of passages: BM25, a bi-encoder, a cross-encoder, or models that also read the question's image."""
