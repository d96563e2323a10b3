"""The weights of a training: loaded, chosen to train, kept in checkpoints, merged and published."""
