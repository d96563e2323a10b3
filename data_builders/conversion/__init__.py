"""Conversion of public and own data into a data set folder: streamed, on all cores, resumable."""
