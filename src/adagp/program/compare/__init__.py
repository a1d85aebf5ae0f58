"""`adagp compare`: methods and seeds on one model and data set, at equal batches and at equal cost.

contenders.py         the methods to compare, from text to configurations
comparison.py         what is asked for, its folder, the runs that it consists of
work.py               a comparison under way
calibrate.py          what a batch of each kind costs in measured seconds
accelerator_cost.py   what it costs in cycles of the modelled accelerator;  pipeline_cost.py: of a pipeline of them
lengths.py            how many batches fit into a cost
regime_costs.py       what every method's runs cost in each regime
tuning_choice.py, tuning.py   each method's own learning rate, by held-out training data
alignment.py          what a method's gradients have to do with the true ones
records.py            from finished runs to figures
tables.py             tables, Markdown, CSV;  pareto.py: the picture
workflow.py           all of it in order
finished.py           a finished comparison, read again
"""
