"""Routes of the pages, each served with the pages' content security policy."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, path

from frontend.live.streams import stream
from frontend.policy import View, with_policy
from frontend.views import (
    account,
    actions,
    admin,
    compare,
    copy,
    job,
    job_list,
    pages,
    replays,
    submit,
)


def _page(route: str, view: View | Any, name: str) -> URLPattern:
    return path(route, with_policy(view), name=name)


urlpatterns = [
    _page("", pages.overview, "overview"),
    _page("figures/", pages.overview_figures, "overview_figures"),
    _page("jobs/", job_list.jobs, "jobs"),
    _page("jobs/actions/", job_list.job_actions, "jobs_act"),
    _page("jobs/compare/", compare.compare, "compare"),
    _page("jobs/compare/figures/", compare.compare_figures, "compare_figures"),
    _page("jobs/new/", submit.submit, "submit"),
    _page("jobs/new/validations/<int:validation_id>/", submit.validation, "validation"),
    _page("jobs/<int:job_id>/", job.job, "job"),
    _page("jobs/<int:job_id>/figures/", job.job_figures, "job_figures"),
    _page("jobs/<int:job_id>/log/", job.job_log, "job_log"),
    _page("jobs/<int:job_id>/log/file/", job.job_log_file, "job_log_file"),
    _page("jobs/<int:job_id>/code/", job.job_code, "job_code"),
    _page("jobs/<int:job_id>/files/<str:name>/", job.job_file, "job_file"),
    _page("jobs/<int:job_id>/delete-files/", actions.job_files_delete, "job_files_delete"),
    _page("jobs/<int:job_id>/copy/", copy.job_copy, "job_copy"),
    _page("jobs/<int:job_id>/describe/", actions.job_describe, "job_describe"),
    _page("jobs/<int:job_id>/cancel/", actions.job_cancel, "job_cancel"),
    _page("jobs/<int:job_id>/pause/", actions.job_pause, "job_pause"),
    _page("jobs/<int:job_id>/resume/", actions.job_resume, "job_resume"),
    _page("jobs/<int:job_id>/priority/", actions.job_priority, "job_reprioritise"),
    _page("queue/", admin.queue, "queue"),
    _page("queue/policy/", admin.policy, "policy"),
    _page("what-if/", replays.what_if, "what_if"),
    _page("what-if/ask/", replays.ask, "what_if_ask"),
    _page("what-if/<int:replay_id>/", replays.replay, "replay"),
    _page("what-if/<int:replay_id>/figures/", replays.replay_figures, "replay_figures"),
    _page("what-if/<int:replay_id>/cancel/", replays.cancel, "replay_cancel"),
    _page("nodes/", admin.nodes, "nodes"),
    _page("nodes/tokens/", admin.node_token, "node_token"),
    _page("nodes/tokens/<int:token_id>/revoke/", admin.node_token_revoke, "node_token_revoke"),
    _page("nodes/<int:node_id>/cordon/", admin.cordon, "node_cordon"),
    _page("nodes/<int:node_id>/unquarantine/", admin.unquarantine, "node_unquarantine"),
    _page("audit/", admin.audit, "audit"),
    _page("account/", account.account, "account"),
    _page("account/password/", account.password, "password"),
    _page("account/tokens/", account.tokens, "tokens"),
    _page("account/tokens/<int:token_id>/revoke/", account.token_revoke, "token_revoke"),
    _page("account/secrets/", account.secrets, "secrets"),
    _page("account/secrets/<str:name>/delete/", account.secret_remove, "secret_delete"),
    _page("login/", account.log_in, "login"),
    _page("logout/", account.log_out, "logout"),
    path("stream/", stream, name="stream"),
]
