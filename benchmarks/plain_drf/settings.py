"""Settings of the site with the addresses of `benchmarks.plain_drf.urls`."""

from controlplane.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.plain_drf.urls"
