"""The foundation of everything else: options, plans, methods, files. Nothing here imports torch or a paper."""
