"""Measurements, each a program: `python -m benchmarks.NAME`; docs/development.md lists them."""

import os

# As in controlplane/environment.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
