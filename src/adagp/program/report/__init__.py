"""One self-contained HTML page about runs: grouped (run_groups), ranked (ranking), drawn (charts, curves, tables)."""
