"""The gallery: a data set of real images, real Wikipedia summaries and real facts, built from published packages."""
