"""Measurements, each a program: `python -m benchmarks.NAME`. The heads say what is measured."""

import os

# As in controlplane/environment.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
