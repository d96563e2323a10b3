"""Readers: models as pipelines call them."""
