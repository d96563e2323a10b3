"""Knowledge bases, passages, encoders, indexes, retrievers."""
