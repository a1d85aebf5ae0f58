"""The numbers of the word pieces that every vocabulary has. No torch here."""

PAD, BEGIN, END = 0, 1, 2
"""Fills up short sentences; stands before the first piece; stands after the last."""
BYTES = 256
"""How many different bytes there are: the tokens of language modelling."""
