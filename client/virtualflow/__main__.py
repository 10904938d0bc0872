"""`python -m virtualflow`: the command line, where its program is not on the path."""

from virtualflow.cli.main import main

main()
