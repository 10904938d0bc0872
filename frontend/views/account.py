"""Login, and the account page with the user's API tokens."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from frontend.forms import TokenForm
from frontend.views.changes import person
from jobs.exceptions import ControlPlaneError, NotFoundError
from jobs.models import ApiToken
from jobs.services.cluster.api_tokens import api_token_create, api_token_revoke

_SHOWN_TOKENS = 100

log_in = LoginView.as_view(template_name="frontend/login.html", redirect_authenticated_user=True)
log_out = LogoutView.as_view()


@login_required
@require_safe
def account(request: HttpRequest) -> HttpResponse:
    """Show the user's API tokens and an example of their use."""
    return _page(request, TokenForm())


@login_required
@require_POST
def tokens(request: HttpRequest) -> HttpResponse:
    """Create a token and show it once, in this response."""
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, form)
    wanted = form.cleaned_data
    scopes = ["read", "write"] if wanted["may_write"] else ["read"]
    try:
        row, secret = api_token_create(
            person(request),
            wanted["name"],
            timezone.now(),
            scopes=scopes,
            lifetime_days=wanted["days"],
        )
    except ControlPlaneError as error:
        for name, texts in error.fields.items():
            form.add_error({"lifetime_days": "days"}.get(name, name), list(texts))
        if not error.fields:
            form.add_error(None, error.detail)
        return _page(request, form)
    response = _page(request, TokenForm(), new_token={"name": row.name, "secret": secret})
    response.headers["Cache-Control"] = "no-store"
    return response


@login_required
@require_POST
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """Revoke one of the user's own tokens."""
    try:
        row = api_token_revoke(person(request), token_id, timezone.now())
    except (NotFoundError, OverflowError):
        raise Http404("No such token.") from None
    messages.success(request, f"The token “{row.name}” is revoked.", extra_tags="good")
    return redirect("account")


def _page(request: HttpRequest, form: TokenForm, **more: Any) -> HttpResponse:
    own = ApiToken.objects.filter(user=person(request), revoked_at=None)
    context = {
        "form": form,
        "tokens": own.order_by("-id")[:_SHOWN_TOKENS],
        "curl": _curl_example(request),
        **more,
    }
    return render(request, "frontend/account.html", context)


def _curl_example(request: HttpRequest) -> str:
    """Return commands that submit a template and list the jobs."""
    jobs = request.build_absolute_uri("/api/v1/jobs/")
    return (
        "export TOKEN=…   # one of yours\n"
        f'curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\\n'
        f'  -d \'{{"template": "digits_cnn", "name": "from curl"}}\' {jobs}\n'
        f'curl -H "Authorization: Bearer $TOKEN" {jobs}'
    )
