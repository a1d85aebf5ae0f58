"""The same run in several processes: data parallel, or as a pipeline of stages."""
