"""Retrievers of entries and passages for images and texts, in one knowledge base or several."""
