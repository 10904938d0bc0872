"""Runs workloads through the production policies without a cluster. Pure: imports the core only."""

from controlplane.core.policies import BatchMode
from controlplane.simulator.engine.report import JobOutcome, Report
from controlplane.simulator.engine.run import StuckError
from controlplane.simulator.engine.simulate import simulate
from controlplane.simulator.published.workload_files import pollux_workload
from controlplane.simulator.settings import (
    FLAT_30,
    FREE,
    MEASURED,
    Failures,
    Knowledge,
    ResizeCosts,
    Rules,
)
from controlplane.simulator.version import code_version
from controlplane.simulator.workloads.profiles import profiles_read
from controlplane.simulator.workloads.workloads import (
    Cluster,
    NodeGroup,
    TuningPlan,
    Workload,
    WorkloadJob,
    cluster_build,
    cluster_make,
)
