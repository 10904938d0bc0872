"""Login, password, and the account page with the user's API tokens and secrets."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.views import LoginView, LogoutView, PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from frontend.forms import LoginForm, PasswordForm, SecretForm, TokenForm
from frontend.views.changes import errors_add, person
from frontend.views.oidc import may_link
from jobs import nudges
from jobs.exceptions import ControlPlaneError
from jobs.models import ApiToken, AuditAction, Secret
from jobs.selectors.limits import limits_for
from jobs.selectors.users import stored_bytes_of, user_with_use
from jobs.services.cluster.accounts import failure_audit, login_audit, password_confirm
from jobs.services.cluster.api_tokens import api_token_create, api_token_revoke
from jobs.services.cluster.identities import identity_of
from jobs.services.cluster.secrets import secret_delete, secret_store
from jobs.services.lifecycle.audit import audit_add

_SHOWN_TOKENS = 100
#: Fields of the form that show the errors of fields of the service.
_SHOWN_AT = {"lifetime_days": "days", "scopes": "may_read"}


class Login(LoginView):
    """The login, each with an audit entry."""

    template_name = "frontend/login.html"
    form_class = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        is_for_superusers = not settings.HAS_PASSWORD_LOGIN
        is_asked_for = "superuser" in self.request.GET or self.request.method == "POST"
        return super().get_context_data(
            provider=settings.OIDC_TITLE if settings.OIDC_ISSUER else "",
            is_for_superusers=is_for_superusers,
            has_form=is_asked_for or not is_for_superusers,
            **more,
        )

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        login_audit(form.get_user().get_username())
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        failure_audit(self.request, form.data.get("username", ""))
        return super().form_invalid(form)


class Logout(LogoutView):
    """The end of a session, with an audit entry."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            audit_add(AuditAction.LOGOUT)
        return super().post(request, *args, **kwargs)


class PasswordChange(PasswordChangeView):
    """Change of the own password; all other sessions and all API tokens end with it."""

    template_name = "frontend/password.html"
    form_class = PasswordForm
    success_url = reverse_lazy("account")

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "request": self.request}

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        text = "The password is changed. Other sessions and all API tokens have ended."
        messages.success(self.request, text)
        return super().form_valid(form)


log_in = Login.as_view()
log_out = Logout.as_view()
password = PasswordChange.as_view()


@require_safe
def account(request: HttpRequest) -> HttpResponse:
    """Show the user's API tokens, an example of their use, and the names of secrets."""
    return _page(request, _token_form(request))


@require_POST
def tokens(request: HttpRequest) -> HttpResponse:
    """Create a token and show it once, in this response."""
    form = _token_form(request, request.POST)
    if not form.is_valid():
        return _page(request, form)
    wanted = form.cleaned_data
    try:
        password_confirm(request, person(request), wanted.get("password", ""))
        row, secret = api_token_create(
            person(request),
            wanted["name"],
            timezone.now(),
            scopes=form.scopes(),
            lifetime_days=wanted["days"],
        )
    except ControlPlaneError as error:
        for name, texts in error.fields.items():
            shown_at = _SHOWN_AT.get(name, name)
            form.add_error(shown_at if shown_at in form.fields else None, list(texts))
        if not error.fields:
            form.add_error(None, error.detail)
        return _page(request, form)
    response = _page(request, _token_form(request), new_token={"name": row.name, "secret": secret})
    response.headers["Cache-Control"] = "no-store"
    return response


@require_POST
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """Revoke one of the user's own tokens."""
    row = api_token_revoke(person(request), token_id, timezone.now())
    messages.success(request, f"The token “{row.name}” is revoked.")
    return redirect("account")


@sensitive_post_parameters("value")
@require_POST
def secrets(request: HttpRequest) -> HttpResponse:
    """Store a secret, or replace its value."""
    form = SecretForm(request.POST)
    if not form.is_valid():
        return _page(request, _token_form(request), secret_form=form)
    # As typed: browsers send other ends of lines.
    value = form.cleaned_data["value"].replace("\r\n", "\n")
    try:
        row, _ = secret_store(person(request), form.cleaned_data["name"], value, timezone.now())
    except ControlPlaneError as error:
        errors_add(form, error)
        return _page(request, _token_form(request), secret_form=form)
    messages.success(request, f"The secret “{row.name}” is stored.")
    return redirect("account")


@require_POST
def secret_remove(request: HttpRequest, name: str) -> HttpResponse:
    """Delete one of the user's own secrets."""
    secret_delete(person(request), name)
    nudges.jobs_changed(orders=True)
    messages.success(request, f"The secret “{name}” is deleted.")
    return redirect("account")


def _token_form(request: HttpRequest, *data: Any) -> TokenForm:
    return TokenForm(*data, has_password=person(request).has_usable_password())


def _page(request: HttpRequest, form: TokenForm, **more: Any) -> HttpResponse:
    own = ApiToken.objects.filter(user=person(request), revoked_at=None)
    used = user_with_use(person(request).get_username())
    context = {
        "form": form,
        "used": used,
        "stored_bytes": stored_bytes_of(used),
        "limits": limits_for(request.user),
        "tokens": own.order_by("-id")[:_SHOWN_TOKENS],
        "curl": _curl_example(request),
        "provider": settings.OIDC_TITLE if settings.OIDC_ISSUER else "",
        "identity": identity_of(person(request)),
        "may_link": may_link(request),
        "secret_form": SecretForm(),
        "secrets": Secret.objects.filter(owner=person(request)),
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
