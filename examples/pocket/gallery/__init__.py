"""The gallery: a data set of real pictures, real Wikipedia summaries and real facts, built from published packages."""
