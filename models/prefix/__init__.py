"""The prefix engine: image and question are read once; passages and answers go on from cached keys and values."""
