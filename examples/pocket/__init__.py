"""The pocket model: published weights, real pictures and Wikipedia text."""
