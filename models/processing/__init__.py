"""What a model reads, made from pictures and text: image fitting, processors, safe tokenisation."""
