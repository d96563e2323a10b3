"""Sources of the gallery's images, articles and facts, one module each."""
