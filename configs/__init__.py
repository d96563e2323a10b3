"""YAML recipes: accelerate/ to launch, and one folder per recipe."""
