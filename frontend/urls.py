"""Routes of the pages, each served with the pages' content security policy."""

from __future__ import annotations

from functools import wraps
from http import HTTPStatus
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import URLPattern, path

from frontend.live.streams import stream
from frontend.policy import View, with_policy
from frontend.unsent import with_typed_kept
from frontend.views import (
    account,
    actions,
    admin,
    choices,
    compare,
    copy,
    job,
    job_list,
    job_log,
    maintenance,
    nodes,
    notifications,
    oidc,
    pages,
    projects,
    queue,
    replays,
    submit,
    sweeps,
    timeline,
)


def _page(route: str, view: View | Any, name: str) -> URLPattern:
    """Route to a page; all but the open ones need a login, without which a form is kept."""
    is_open = name in ("login", "logout", "oidc_start", "oidc_callback")
    kept = view if is_open else with_typed_kept(login_required(view))
    return path(route, with_policy(_with_page_of_refusal(kept)), name=name)


def _with_page_of_refusal(view: View | Any) -> View:
    """Answer a method that an address does not take with a page: browsers show nothing else."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response: HttpResponseBase = view(request, *args, **kwargs)
        if response.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
            return response
        is_read = request.method in ("GET", "HEAD")
        context = {"refused": "read" if is_read else "change"}
        page = render(request, "404.html", context, status=response.status_code)
        page.headers["Allow"] = response.headers["Allow"]
        return page

    return answer


urlpatterns = [
    _page("", pages.overview, "overview"),
    _page("figures/", pages.overview_figures, "overview_figures"),
    _page("timeline/", timeline.timeline, "timeline"),
    _page("timeline/figures/", timeline.timeline_figures, "timeline_figures"),
    _page("jobs/", job_list.jobs, "jobs"),
    _page("jobs/actions/", job_list.job_actions, "jobs_act"),
    _page("jobs/filters/", job_list.saved_filter, "saved_filter"),
    _page("jobs/compare/", compare.compare, "compare"),
    _page("jobs/compare/figures/", compare.compare_figures, "compare_figures"),
    _page("jobs/new/", submit.submit, "submit"),
    _page("jobs/new/validations/<int:validation_id>/", submit.validation, "validation"),
    _page("jobs/<int:job_id>/", job.job, "job"),
    _page("jobs/<int:job_id>/figures/", job.job_figures, "job_figures"),
    _page("jobs/<int:job_id>/log/", job_log.job_log, "job_log"),
    _page("jobs/<int:job_id>/log/file/", job_log.job_log_file, "job_log_file"),
    _page("jobs/<int:job_id>/code/", job.job_code, "job_code"),
    _page("jobs/<int:job_id>/files/<str:name>/", job.job_file, "job_file"),
    _page("jobs/<int:job_id>/delete-files/", actions.job_files_delete, "job_files_delete"),
    _page("jobs/<int:job_id>/copy/", copy.job_copy, "job_copy"),
    _page("jobs/<int:job_id>/describe/", actions.job_describe, "job_describe"),
    _page("jobs/<int:job_id>/cancel/", actions.job_cancel, "job_cancel"),
    _page("jobs/<int:job_id>/pause/", actions.job_pause, "job_pause"),
    _page("jobs/<int:job_id>/resume/", actions.job_resume, "job_resume"),
    _page("jobs/<int:job_id>/priority/", actions.job_priority, "job_reprioritise"),
    _page("sweeps/", sweeps.sweeps, "sweeps"),
    _page("sweeps/<int:sweep_id>/", sweeps.sweep, "sweep"),
    _page("sweeps/<int:sweep_id>/figures/", sweeps.sweep_figures, "sweep_figures"),
    _page("sweeps/<int:sweep_id>/act/", sweeps.sweep_act, "sweep_act"),
    _page("queue/", queue.queue, "queue"),
    _page("queue/policy/", queue.policy, "policy"),
    _page("what-if/", replays.what_if, "what_if"),
    _page("what-if/ask/", replays.ask, "what_if_ask"),
    _page("what-if/<int:replay_id>/", replays.replay, "replay"),
    _page("what-if/<int:replay_id>/figures/", replays.replay_figures, "replay_figures"),
    _page("what-if/<int:replay_id>/cancel/", replays.cancel, "replay_cancel"),
    _page("nodes/", admin.nodes, "nodes"),
    _page("nodes/tokens/", admin.node_token, "node_token"),
    _page("nodes/tokens/<int:token_id>/revoke/", admin.node_token_revoke, "node_token_revoke"),
    _page("nodes/maintenance/", maintenance.maintenance, "maintenance"),
    _page(
        "nodes/maintenance/<int:window_id>/cancel/",
        maintenance.maintenance_cancel,
        "maintenance_cancel",
    ),
    _page("nodes/<int:node_id>/", nodes.node, "node"),
    _page("nodes/<int:node_id>/figures/", nodes.node_figures, "node_figures"),
    _page("nodes/<int:node_id>/cordon/", admin.cordon, "node_cordon"),
    _page("nodes/<int:node_id>/new-token/", admin.node_new_token, "node_new_token"),
    _page("nodes/<int:node_id>/shape/", admin.shape, "node_shape"),
    _page("nodes/<int:node_id>/unquarantine/", admin.unquarantine, "node_unquarantine"),
    _page("projects/", projects.projects, "projects"),
    _page("projects/new/", projects.project_new, "project_new"),
    _page("projects/<int:project_id>/", projects.project, "project"),
    _page("projects/<int:project_id>/edit/", projects.project_edit, "project_edit"),
    _page("projects/<int:project_id>/members/", projects.project_member, "project_member"),
    _page("projects/<int:project_id>/delete/", projects.project_delete_now, "project_delete"),
    _page(
        "projects/<int:project_id>/members/remove/",
        projects.project_member_remove,
        "project_member_remove",
    ),
    _page("usage/", projects.usage, "usage"),
    _page("usage/prices/", projects.prices, "prices"),
    _page("audit/", admin.audit, "audit"),
    _page("account/", account.account, "account"),
    _page("account/theme/", choices.theme, "theme"),
    _page("account/zone/", choices.zone, "zone"),
    _page("account/password/", account.password, "password"),
    _page("account/tokens/", account.tokens, "tokens"),
    _page("account/tokens/<int:token_id>/revoke/", account.token_revoke, "token_revoke"),
    _page("account/secrets/", account.secrets, "secrets"),
    _page("account/secrets/<str:name>/delete/", account.secret_remove, "secret_delete"),
    _page("account/notifications/", notifications.channels, "channels"),
    _page(
        "account/notifications/<int:channel_id>/", notifications.deliveries, "channel_deliveries"
    ),
    _page("account/notifications/<int:channel_id>/test/", notifications.test, "channel_test"),
    _page("account/notifications/<int:channel_id>/pause/", notifications.pause, "channel_pause"),
    _page(
        "account/notifications/<int:channel_id>/confirm/", notifications.confirm, "channel_confirm"
    ),
    _page("account/notifications/<int:channel_id>/delete/", notifications.delete, "channel_delete"),
    _page("login/", account.log_in, "login"),
    _page("login/oidc/", oidc.oidc_start, "oidc_start"),
    _page("login/oidc/callback/", oidc.oidc_callback, "oidc_callback"),
    _page("account/link/", oidc.oidc_link, "oidc_link"),
    _page("logout/", account.log_out, "logout"),
    path("stream/", stream, name="stream"),
]
