"""Indexes: vectors of a knowledge base in a store with their manifest, and how they are built."""
