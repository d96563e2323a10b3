"""The pocket model: published weights, real images and Wikipedia text."""
