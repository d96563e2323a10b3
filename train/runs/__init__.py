"""One skeleton of training: launch, model, data, train, save."""
