"""Grid studies: how often training succeeds over a grid of hyperparameters."""
