"""`adagp compare`: methods and seeds on one model and data set, at equal batches and at equal seconds.

entries.py      the methods to compare, from text to configurations
comparison.py   what is asked for, its folder, the runs that it consists of
calibrate.py    what a batch of each kind costs, and how many batches fit into a time
execute.py      runs as processes of their own, several at a time
alignment.py    what a method's gradients have to do with the true ones
statistics.py   means and intervals
gather.py       from finished runs to figures
report.py       tables, Markdown, CSV;  pareto.py: the picture
carry_out.py    all of it in order
"""
