"""mR²AG-IT: questions, passages and evidence labels (arXiv 2411.15041, section 3.3), and plain data made from it."""
