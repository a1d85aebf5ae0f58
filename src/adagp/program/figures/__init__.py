"""Pictures of runs, of simulations and of pipelines, by matplotlib."""
