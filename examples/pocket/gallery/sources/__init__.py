"""Sources of the gallery's pictures, articles and facts, one module each."""
