"""What everything else stands on: options, plans, methods, files. Nothing here imports torch or a paper."""
