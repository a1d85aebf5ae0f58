"""`adagp compare`: methods and seeds on one model and data set, at equal batches and at equal cost.

methods.py         the methods to compare: text, configurations, plans
grid.py            the options and values that are tuned
comparison.py      the options of a comparison, its folder, its runs
work.py            the state of a comparison while it runs
modelled_cost.py   cycles of runs on a modelled accelerator, or on a pipeline of them
cluster.py         cycles of runs on data-parallel accelerators;  exchange.py: the bytes that they exchange
costs.py           measured seconds of batches; the cost and the length of runs in each regime
tuning.py          tunes options for each method on held-out training data
alignment.py       compares a method's gradients with the true ones, in batches and for single samples; how noisy they are
records.py         statistics over finished runs
tables.py          tables for the terminal, Markdown and CSV;  plots.py: pictures
worth.py           what a GP batch is worth in BP batches, and where that pays
worth_map.py       what comparisons have measured, in the plane of quality and price
workflow.py        all of it in order
"""
