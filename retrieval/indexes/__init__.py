"""Indexes: vectors of a knowledge base in a store, tied to what they are of, and how they are built."""
