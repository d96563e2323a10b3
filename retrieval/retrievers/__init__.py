"""Retrievers of entries and passages for pictures and texts, in one knowledge base or several."""
