"""The page for proof-reading training data."""
