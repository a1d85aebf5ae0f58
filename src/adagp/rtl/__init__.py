"""The accelerator as hardware: written in Amaranth, simulated cycle by cycle, synthesised. Needs `pip install '.[rtl]'`."""
