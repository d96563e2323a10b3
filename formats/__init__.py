"""Files that a person can open: data set folders, reflection data, knowledge bases, passages, hits."""
