"""`python -m adagp` is `adagp`."""

from adagp.cli import main

main()
