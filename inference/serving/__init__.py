"""A server that answers questions about images and searches a knowledge base."""
