"""The embeddable library: one batch after the other under its plan, for a model and an optimizer of your own."""
