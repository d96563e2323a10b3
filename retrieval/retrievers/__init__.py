"""Retrievers of entries and passages, by images and texts, in one or several knowledge bases."""
