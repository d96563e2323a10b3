"""Conversion of BEM, the answer-equivalence model of Encyclopedic-VQA, from TensorFlow to PyTorch."""
