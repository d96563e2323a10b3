"""Probing: what a model answers by itself and from each document, and whether that is right."""
