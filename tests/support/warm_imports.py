"""Imported by the fork server of `warm_trainers` before it forks: the whole engine."""

from agents.trainer.__main__ import _with_tensorflow

_with_tensorflow("agents.trainer.engine.trainer")
