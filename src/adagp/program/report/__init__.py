"""One self-contained page about runs: read (run.record), compare (groups, verdict), draw (charts), write (page)."""
