"""People and clients of the jobs app, and agents with their control plane."""

from __future__ import annotations

from tests.agents.conftest import drive as drive
from tests.agents.conftest import plane as plane
from tests.agents.conftest import state_dir as state_dir
from tests.jobs.conftest import _documented_answers as _documented_answers
from tests.jobs.conftest import _own_files as _own_files
from tests.jobs.conftest import _static_directory as _static_directory
from tests.jobs.conftest import ada as ada
from tests.jobs.conftest import admin as admin
from tests.jobs.conftest import bob as bob
from tests.jobs.conftest import client_of as client_of
from tests.support.oidc_login import provider as provider
from tests.support.oidc_login import running_provider as running_provider
