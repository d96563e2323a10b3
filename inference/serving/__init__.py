"""A server that answers questions about pictures and searches a knowledge base."""
