"""The training program: a run from its configuration to a trained model, around the engine for single batches."""
