"""Tokens, schemes, loading, the shared-prefix engine, and the miniature models."""
