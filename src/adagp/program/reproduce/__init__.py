"""The papers' tables and figures, made again: experiments by name, their parts, and a verdict on every published number."""
