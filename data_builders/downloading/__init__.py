"""The public files that a reproduction reads: lists of them, what of them is there, and fetching them."""
