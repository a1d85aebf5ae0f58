"""matplotlib figures of runs, simulations and pipelines."""
