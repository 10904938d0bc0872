"""Routes of the REST API, version 1."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from jobs.api.cluster import views as cluster
from jobs.api.index import Index
from jobs.api.jobs import action_views as actions
from jobs.api.jobs import compare_views as compare
from jobs.api.jobs import data_views as data
from jobs.api.jobs import views as jobs
from jobs.api.openapi import ApiPages
from jobs.api.replays import views as replays
from jobs.api.secrets import views as secrets
from jobs.api.users import views as users
from jobs.api.validations import views as validations
from jobs.services.cluster.nodes import Cordon

urlpatterns = [
    path("", Index.as_view(), name="index"),
    path("jobs/", jobs.JobList.as_view(), name="job-list"),
    path("jobs/compare/", compare.JobComparison.as_view(), name="job-compare"),
    path("jobs/actions/", actions.JobActions.as_view(), name="job-actions"),
    path("jobs/<int:job_id>/", jobs.JobDetail.as_view(), name="job-detail"),
    path("jobs/<int:job_id>/cancel/", jobs.JobCancel.as_view(), name="job-cancel"),
    path("jobs/<int:job_id>/pause/", jobs.JobPause.as_view(), name="job-pause"),
    path("jobs/<int:job_id>/resume/", jobs.JobResume.as_view(), name="job-resume"),
    path(
        "jobs/<int:job_id>/reprioritise/", jobs.JobReprioritise.as_view(), name="job-reprioritise"
    ),
    path("jobs/<int:job_id>/clone/", jobs.JobClone.as_view(), name="job-clone"),
    path("jobs/<int:job_id>/events/", data.JobEvents.as_view(), name="job-events"),
    path("jobs/<int:job_id>/generations/", data.JobGenerations.as_view(), name="job-generations"),
    path("jobs/<int:job_id>/allocations/", data.JobAllocations.as_view(), name="job-allocations"),
    path("jobs/<int:job_id>/metrics/", data.JobMetrics.as_view(), name="job-metrics"),
    path("jobs/<int:job_id>/logs/", data.JobLogs.as_view(), name="job-logs"),
    path("jobs/<int:job_id>/code/", data.JobCode.as_view(), name="job-code"),
    path("jobs/<int:job_id>/files/", data.JobFiles.as_view(), name="job-files"),
    path("jobs/<int:job_id>/files/<str:name>/", data.JobFile.as_view(), name="job-file"),
    path("validations/", validations.ValidationList.as_view(), name="validation-list"),
    path(
        "validations/<int:validation_id>/",
        validations.ValidationDetail.as_view(),
        name="validation-detail",
    ),
    path("nodes/", cluster.NodeList.as_view(), name="node-list"),
    path("nodes/<int:node_id>/", cluster.NodeDetail.as_view(), name="node-detail"),
    path("nodes/<int:node_id>/cordon/", cluster.NodeCordon.as_view(), name="node-cordon"),
    path(
        "nodes/<int:node_id>/drain/",
        cluster.NodeCordon.as_view(change=Cordon.DRAIN),
        name="node-drain",
    ),
    path(
        "nodes/<int:node_id>/uncordon/",
        cluster.NodeCordon.as_view(change=Cordon.UNCORDON),
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
    path("nodes/<int:node_id>/new-token/", cluster.NodeNewToken.as_view(), name="node-new-token"),
    path("enrolment-tokens/", cluster.EnrolmentTokens.as_view(), name="enrolment-tokens"),
    path(
        "enrolment-tokens/<int:token_id>/",
        cluster.EnrolmentTokenDetail.as_view(),
        name="enrolment-token-detail",
    ),
    path("audit/", cluster.Audit.as_view(), name="audit"),
    path("cluster/", cluster.Cluster.as_view(), name="cluster"),
    path("policy/", cluster.Policy.as_view(), name="policy"),
    path("replays/", replays.ReplayList.as_view(), name="replay-list"),
    path("replays/<int:replay_id>/", replays.ReplayDetail.as_view(), name="replay-detail"),
    path("secrets/", secrets.SecretList.as_view(), name="secret-list"),
    path("secrets/<str:name>/", secrets.SecretDetail.as_view(), name="secret-detail"),
    path("tokens/", cluster.Tokens.as_view(), name="token-list"),
    path("tokens/<int:token_id>/", cluster.TokenDetail.as_view(), name="token-detail"),
    path("users/", users.UserList.as_view(), name="user-list"),
    path("users/<str:name>/", users.UserDetail.as_view(), name="user-detail"),
    path("account/", users.Account.as_view(), name="account"),
    path("templates/", cluster.Templates.as_view(), name="template-list"),
    path("templates/<str:name>/", cluster.TemplateCode.as_view(), name="template-code"),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", ApiPages.as_view(url_name="api:schema"), name="docs"),
]
