"""Routes of the REST API, version 1."""

from __future__ import annotations

from django.urls import URLPattern, path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.views import APIView

from jobs.api.cluster import views as cluster
from jobs.api.cluster.maintenance_views import MaintenanceWindowCancel, MaintenanceWindows
from jobs.api.cluster.policy_views import Policy
from jobs.api.cluster.utilisation_views import NodeUtilisation
from jobs.api.index import Index
from jobs.api.jobs import action_views as actions
from jobs.api.jobs import compare_views as compare
from jobs.api.jobs import data_views as data
from jobs.api.jobs import views as jobs
from jobs.api.notifications import views as notifications
from jobs.api.openapi import ApiPages, DocumentGenerator
from jobs.api.projects import views as projects
from jobs.api.projects.usage_views import UsageReport
from jobs.api.replays import views as replays
from jobs.api.saved_filters import views as saved_filters
from jobs.api.secrets import views as secrets
from jobs.api.sweeps import views as sweeps
from jobs.api.users import views as users
from jobs.api.validations import views as validations


def _route(route: str, view: type[APIView], name: str) -> URLPattern:
    return path(route, view.as_view(), name=name)


urlpatterns = [
    _route("", Index, "index"),
    _route("jobs/", jobs.JobList, "job-list"),
    _route("jobs/compare/", compare.JobComparison, "job-compare"),
    _route("jobs/actions/", actions.JobActions, "job-actions"),
    _route("jobs/actions/preview/", actions.JobsActionPreview, "job-actions-preview"),
    _route("jobs/<int:job_id>/", jobs.JobDetail, "job-detail"),
    _route("jobs/<int:job_id>/cancel/", jobs.JobCancel, "job-cancel"),
    _route("jobs/<int:job_id>/pause/", jobs.JobPause, "job-pause"),
    _route("jobs/<int:job_id>/resume/", jobs.JobResume, "job-resume"),
    _route("jobs/<int:job_id>/reprioritise/", jobs.JobReprioritise, "job-reprioritise"),
    _route("jobs/<int:job_id>/clone/", jobs.JobClone, "job-clone"),
    _route("jobs/<int:job_id>/fork/", jobs.JobFork, "job-fork"),
    _route("jobs/<int:job_id>/events/", data.JobEvents, "job-events"),
    _route("jobs/<int:job_id>/generations/", data.JobGenerations, "job-generations"),
    _route("jobs/<int:job_id>/allocations/", data.JobAllocations, "job-allocations"),
    _route("jobs/<int:job_id>/metrics/", data.JobMetrics, "job-metrics"),
    _route("jobs/<int:job_id>/logs/", data.JobLogs, "job-logs"),
    _route("jobs/<int:job_id>/code/", data.JobCode, "job-code"),
    _route(
        "jobs/<int:job_id>/examples/<int:place>/image/", data.JobExampleImage, "job-example-image"
    ),
    _route("jobs/<int:job_id>/files/", data.JobFiles, "job-files"),
    _route("jobs/<int:job_id>/files/<str:name>/", data.JobFile, "job-file"),
    _route("saved-filters/", saved_filters.SavedFilterList, "saved-filter-list"),
    _route(
        "saved-filters/<int:filter_id>/", saved_filters.SavedFilterDetail, "saved-filter-detail"
    ),
    _route("sweeps/", sweeps.SweepList, "sweep-list"),
    _route("sweeps/<int:sweep_id>/", sweeps.SweepDetail, "sweep-detail"),
    _route("sweeps/<int:sweep_id>/cancel/", sweeps.SweepCancel, "sweep-cancel"),
    _route("sweeps/<int:sweep_id>/pause/", sweeps.SweepPause, "sweep-pause"),
    _route("sweeps/<int:sweep_id>/resume/", sweeps.SweepResume, "sweep-resume"),
    _route("validations/", validations.ValidationList, "validation-list"),
    _route("validations/<int:validation_id>/", validations.ValidationDetail, "validation-detail"),
    _route("nodes/", cluster.NodeList, "node-list"),
    _route("nodes/<int:node_id>/", cluster.NodeDetail, "node-detail"),
    _route("nodes/<int:node_id>/utilisation/", NodeUtilisation, "node-utilisation"),
    _route("nodes/<int:node_id>/cordon/", cluster.NodeCordon, "node-cordon"),
    _route("nodes/<int:node_id>/drain/", cluster.NodeDrain, "node-drain"),
    _route("nodes/<int:node_id>/uncordon/", cluster.NodeUncordon, "node-uncordon"),
    _route("nodes/<int:node_id>/unquarantine/", cluster.NodeUnquarantine, "node-unquarantine"),
    _route("nodes/<int:node_id>/accept-shape/", cluster.NodeAcceptShape, "node-accept-shape"),
    _route("maintenance-windows/", MaintenanceWindows, "maintenance-window-list"),
    _route(
        "maintenance-windows/<int:window_id>/cancel/",
        MaintenanceWindowCancel,
        "maintenance-window-cancel",
    ),
    _route("nodes/<int:node_id>/new-token/", cluster.NodeNewToken, "node-new-token"),
    _route("enrolment-tokens/", cluster.EnrolmentTokens, "enrolment-tokens"),
    _route(
        "enrolment-tokens/<int:token_id>/", cluster.EnrolmentTokenDetail, "enrolment-token-detail"
    ),
    _route("channels/", notifications.ChannelList, "channel-list"),
    _route("channels/<int:channel_id>/", notifications.ChannelDetail, "channel-detail"),
    _route("channels/<int:channel_id>/test/", notifications.ChannelTest, "channel-test"),
    _route("channels/<int:channel_id>/confirm/", notifications.ChannelConfirm, "channel-confirm"),
    _route(
        "channels/<int:channel_id>/deliveries/",
        notifications.ChannelDeliveries,
        "channel-deliveries",
    ),
    _route("audit/", cluster.Audit, "audit"),
    _route("cluster/", cluster.ClusterSeries, "cluster"),
    _route("policy/", Policy, "policy"),
    _route("prices/", projects.Prices, "prices"),
    _route("projects/", projects.ProjectList, "project-list"),
    _route("projects/<int:project_id>/", projects.ProjectDetail, "project-detail"),
    _route(
        "projects/<int:project_id>/members/<str:name>/", projects.ProjectMember, "project-member"
    ),
    _route("replays/", replays.ReplayList, "replay-list"),
    _route("replays/<int:replay_id>/", replays.ReplayDetail, "replay-detail"),
    _route("replays/<int:replay_id>/comparison/", replays.ReplayComparison, "replay-comparison"),
    _route("secrets/", secrets.SecretList, "secret-list"),
    _route("secrets/<str:name>/", secrets.SecretDetail, "secret-detail"),
    _route("tokens/", cluster.Tokens, "token-list"),
    _route("tokens/<int:token_id>/", cluster.TokenDetail, "token-detail"),
    _route("usage/", UsageReport, "usage"),
    _route("users/", users.UserList, "user-list"),
    _route("users/<str:name>/", users.UserDetail, "user-detail"),
    _route("account/", users.Account, "account"),
    _route("templates/", cluster.Templates, "template-list"),
    _route("templates/<str:name>/", cluster.TemplateCode, "template-code"),
    path("schema/", SpectacularAPIView.as_view(generator_class=DocumentGenerator), name="schema"),
    path("docs/", ApiPages.as_view(url_name="api:schema"), name="docs"),
]
