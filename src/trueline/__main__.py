"""`python -m trueline` is `trueline`."""

from trueline.cli import main

main()
