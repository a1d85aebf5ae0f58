"""What people run: training, comparisons, reports, experiments."""
