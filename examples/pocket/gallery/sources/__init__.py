"""Where the gallery's pictures, articles and facts come from: one module for each source."""
