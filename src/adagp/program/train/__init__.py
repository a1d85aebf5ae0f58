"""Training under plans: the engine for one batch, and all that goes around it."""
