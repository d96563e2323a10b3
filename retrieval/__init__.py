"""Encoders, vector stores, indexes, retrievers and rerankers."""
