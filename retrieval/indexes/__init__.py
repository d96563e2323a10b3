"""Indexes of a knowledge base: vectors in a store with a manifest."""
