"""One self-contained page about runs: read (collect), compare (groups, verdict), draw (charts), write (page)."""
