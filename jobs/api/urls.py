"""Routes of the REST API, version 1."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from jobs.api.cluster import views as cluster
from jobs.api.cluster.maintenance_views import MaintenanceWindowCancel, MaintenanceWindows
from jobs.api.cluster.utilisation_views import NodeUtilisation
from jobs.api.index import Index
from jobs.api.jobs import action_views as actions
from jobs.api.jobs import compare_views as compare
from jobs.api.jobs import data_views as data
from jobs.api.jobs import views as jobs
from jobs.api.notifications import views as notifications
from jobs.api.openapi import ApiPages
from jobs.api.projects import views as projects
from jobs.api.projects.usage_views import Usage
from jobs.api.replays import views as replays
from jobs.api.saved_filters import views as saved_filters
from jobs.api.secrets import views as secrets
from jobs.api.sweeps import views as sweeps
from jobs.api.users import views as users
from jobs.api.validations import views as validations

urlpatterns = [
    path("", Index.as_view(), name="index"),
    path("jobs/", jobs.JobList.as_view(), name="job-list"),
    path("jobs/compare/", compare.JobComparison.as_view(), name="job-compare"),
    path("jobs/actions/", actions.JobActions.as_view(), name="job-actions"),
    path("jobs/actions/preview/", actions.JobsActionPreview.as_view(), name="job-actions-preview"),
    path("jobs/<int:job_id>/", jobs.JobDetail.as_view(), name="job-detail"),
    path("jobs/<int:job_id>/cancel/", jobs.JobCancel.as_view(), name="job-cancel"),
    path("jobs/<int:job_id>/pause/", jobs.JobPause.as_view(), name="job-pause"),
    path("jobs/<int:job_id>/resume/", jobs.JobResume.as_view(), name="job-resume"),
    path(
        "jobs/<int:job_id>/reprioritise/", jobs.JobReprioritise.as_view(), name="job-reprioritise"
    ),
    path("jobs/<int:job_id>/clone/", jobs.JobClone.as_view(), name="job-clone"),
    path("jobs/<int:job_id>/fork/", jobs.JobFork.as_view(), name="job-fork"),
    path("jobs/<int:job_id>/events/", data.JobEvents.as_view(), name="job-events"),
    path("jobs/<int:job_id>/generations/", data.JobGenerations.as_view(), name="job-generations"),
    path("jobs/<int:job_id>/allocations/", data.JobAllocations.as_view(), name="job-allocations"),
    path("jobs/<int:job_id>/metrics/", data.JobMetrics.as_view(), name="job-metrics"),
    path("jobs/<int:job_id>/logs/", data.JobLogs.as_view(), name="job-logs"),
    path("jobs/<int:job_id>/code/", data.JobCode.as_view(), name="job-code"),
    path(
        "jobs/<int:job_id>/examples/<int:place>/image/",
        data.JobExampleImage.as_view(),
        name="job-example-image",
    ),
    path("jobs/<int:job_id>/files/", data.JobFiles.as_view(), name="job-files"),
    path("jobs/<int:job_id>/files/<str:name>/", data.JobFile.as_view(), name="job-file"),
    path("saved-filters/", saved_filters.SavedFilterList.as_view(), name="saved-filter-list"),
    path(
        "saved-filters/<int:filter_id>/",
        saved_filters.SavedFilterDetail.as_view(),
        name="saved-filter-detail",
    ),
    path("sweeps/", sweeps.SweepList.as_view(), name="sweep-list"),
    path("sweeps/<int:sweep_id>/", sweeps.SweepDetail.as_view(), name="sweep-detail"),
    path("sweeps/<int:sweep_id>/cancel/", sweeps.SweepCancel.as_view(), name="sweep-cancel"),
    path("sweeps/<int:sweep_id>/pause/", sweeps.SweepPause.as_view(), name="sweep-pause"),
    path("sweeps/<int:sweep_id>/resume/", sweeps.SweepResume.as_view(), name="sweep-resume"),
    path("validations/", validations.ValidationList.as_view(), name="validation-list"),
    path(
        "validations/<int:validation_id>/",
        validations.ValidationDetail.as_view(),
        name="validation-detail",
    ),
    path("nodes/", cluster.NodeList.as_view(), name="node-list"),
    path("nodes/<int:node_id>/", cluster.NodeDetail.as_view(), name="node-detail"),
    path("nodes/<int:node_id>/utilisation/", NodeUtilisation.as_view(), name="node-utilisation"),
    path("nodes/<int:node_id>/cordon/", cluster.NodeCordon.as_view(), name="node-cordon"),
    path(
        "nodes/<int:node_id>/drain/",
        cluster.NodeDrain.as_view(),
        name="node-drain",
    ),
    path(
        "nodes/<int:node_id>/uncordon/",
        cluster.NodeUncordon.as_view(),
        name="node-uncordon",
    ),
    path(
        "nodes/<int:node_id>/unquarantine/",
        cluster.NodeUnquarantine.as_view(),
        name="node-unquarantine",
    ),
    path(
        "nodes/<int:node_id>/accept-shape/",
        cluster.NodeAcceptShape.as_view(),
        name="node-accept-shape",
    ),
    path("maintenance-windows/", MaintenanceWindows.as_view(), name="maintenance-window-list"),
    path(
        "maintenance-windows/<int:window_id>/cancel/",
        MaintenanceWindowCancel.as_view(),
        name="maintenance-window-cancel",
    ),
    path("nodes/<int:node_id>/new-token/", cluster.NodeNewToken.as_view(), name="node-new-token"),
    path("enrolment-tokens/", cluster.EnrolmentTokens.as_view(), name="enrolment-tokens"),
    path(
        "enrolment-tokens/<int:token_id>/",
        cluster.EnrolmentTokenDetail.as_view(),
        name="enrolment-token-detail",
    ),
    path("channels/", notifications.ChannelList.as_view(), name="channel-list"),
    path(
        "channels/<int:channel_id>/", notifications.ChannelDetail.as_view(), name="channel-detail"
    ),
    path(
        "channels/<int:channel_id>/test/", notifications.ChannelTest.as_view(), name="channel-test"
    ),
    path(
        "channels/<int:channel_id>/deliveries/",
        notifications.ChannelDeliveries.as_view(),
        name="channel-deliveries",
    ),
    path("audit/", cluster.Audit.as_view(), name="audit"),
    path("cluster/", cluster.Cluster.as_view(), name="cluster"),
    path("policy/", cluster.Policy.as_view(), name="policy"),
    path("prices/", projects.Prices.as_view(), name="prices"),
    path("projects/", projects.ProjectList.as_view(), name="project-list"),
    path("projects/<int:project_id>/", projects.ProjectDetail.as_view(), name="project-detail"),
    path(
        "projects/<int:project_id>/members/<str:name>/",
        projects.ProjectMember.as_view(),
        name="project-member",
    ),
    path("replays/", replays.ReplayList.as_view(), name="replay-list"),
    path("replays/<int:replay_id>/", replays.ReplayDetail.as_view(), name="replay-detail"),
    path(
        "replays/<int:replay_id>/comparison/",
        replays.ReplayComparison.as_view(),
        name="replay-comparison",
    ),
    path("secrets/", secrets.SecretList.as_view(), name="secret-list"),
    path("secrets/<str:name>/", secrets.SecretDetail.as_view(), name="secret-detail"),
    path("tokens/", cluster.Tokens.as_view(), name="token-list"),
    path("tokens/<int:token_id>/", cluster.TokenDetail.as_view(), name="token-detail"),
    path("usage/", Usage.as_view(), name="usage"),
    path("users/", users.UserList.as_view(), name="user-list"),
    path("users/<str:name>/", users.UserDetail.as_view(), name="user-detail"),
    path("account/", users.Account.as_view(), name="account"),
    path("templates/", cluster.Templates.as_view(), name="template-list"),
    path("templates/<str:name>/", cluster.TemplateCode.as_view(), name="template-code"),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", ApiPages.as_view(url_name="api:schema"), name="docs"),
]
