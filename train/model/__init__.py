"""The model that is trained: loaded, and prepared by what of it trains."""
