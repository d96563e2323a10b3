"""What a model reads, made from pictures and text: image fitting and its settings, and a record of it."""
