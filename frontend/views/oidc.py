"""Logins by OpenID Connect: the way to the provider and back, and links of accounts to it."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from frontend.text.login_refusals import refusal_words
from frontend.views.changes import person, words
from jobs.api.throttles import times_this_minute
from jobs.exceptions import InvalidInputError
from jobs.oidc import (
    Answer,
    LoginPurpose,
    LoginRefusedError,
    authorization_finish,
    authorization_start,
)
from jobs.origins import client_network
from jobs.services.cluster.accounts import (
    CONFIRMED_S,
    OIDC_LOGIN_AT,
    failure_audit,
    failure_count,
    is_address_locked,
    login_audit,
    password_confirm,
)
from jobs.services.cluster.identities import BY, identity_link, user_of_login

#: Key of a session: until when it may link an account of the provider.
_LINKS_UNTIL = "oidc_links_until"
#: Logins that one network begins in a process in a minute. Each stores a session for hours.
STARTS_A_MINUTE = 120
_BACKEND = "django.contrib.auth.backends.ModelBackend"


@require_safe
def oidc_start(request: HttpRequest) -> HttpResponse:
    """Send a visitor to the provider, to log in, once `again`, or to `link` the own account."""
    _configured_or_404()
    next_address = _safe_address(request, request.GET.get("next", ""))
    links_user = None
    if "link" in request.GET:
        if request.session.get(_LINKS_UNTIL, 0) < time.time() or not request.user.is_authenticated:
            messages.error(request, "Confirm your password first.")
            return redirect("account")
        links_user = request.user.pk
    is_repeated = "again" in request.GET
    if request.user.is_authenticated and not is_repeated and links_user is None:
        return redirect(next_address)
    if is_address_locked(request):
        return _locked(request)
    if times_this_minute(f"logins:{client_network(request)}", 1) > STARTS_A_MINUTE:
        return _refused(request, LoginRefusedError("busy"))
    callback = request.build_absolute_uri(reverse("oidc_callback"))
    try:
        start = LoginPurpose(next_address, links_user, is_repeated)
        return redirect(authorization_start(request, callback, start))
    except LoginRefusedError as error:
        return _refused(request, error)


@require_safe
def oidc_callback(request: HttpRequest) -> HttpResponse:
    """Log in the person whom the provider has sent back, or link the account."""
    _configured_or_404()
    if is_address_locked(request):
        return _locked(request)
    try:
        answer = authorization_finish(request)
        if answer.start.links_user is not None:
            return _linked(request, answer)
        user = user_of_login(answer, timezone.now())
    except LoginRefusedError as error:
        return _refused(request, error)
    login(request, user, backend=_BACKEND)
    request.session[OIDC_LOGIN_AT] = answer.authenticated_at
    login_audit(user.get_username(), by=BY, subject=answer.subject)
    return redirect(answer.start.next_address)


@sensitive_post_parameters("password")
@require_POST
def oidc_link(request: HttpRequest) -> HttpResponse:
    """Confirm the password before the own account is linked to one of the provider.

    The way there is a link on the account page: the pages' policy lets no form lead elsewhere.
    """
    _configured_or_404()
    try:
        password_confirm(request, person(request), request.POST.get("password", "")[:4096])
    except InvalidInputError as error:
        messages.error(request, words(error))
    else:
        request.session[_LINKS_UNTIL] = time.time() + CONFIRMED_S
    return redirect(reverse("account") + "#identity-title")


def may_link(request: HttpRequest) -> bool:
    """Tell whether this session has confirmed the password a short time ago."""
    return bool(request.session.get(_LINKS_UNTIL, 0) >= time.time())


def _linked(request: HttpRequest, answer: Answer) -> HttpResponse:
    user: Any = request.user
    if not isinstance(user, User) or user.pk != answer.start.links_user:
        raise LoginRefusedError("other_user", subject=answer.subject)
    request.session.pop(_LINKS_UNTIL, None)
    identity_link(user, answer, timezone.now())
    text = f"{settings.OIDC_TITLE} logs you in from now on."
    messages.success(request, text[:1].upper() + text[1:])
    return redirect("account")


def _configured_or_404() -> None:
    if not settings.OIDC_ISSUER:
        raise Http404("No login by OpenID Connect here.")


def _safe_address(request: HttpRequest, address: str) -> str:
    """Return an address of this site, else that of the overview; a name alone is none."""
    hosts = {request.get_host()}
    is_ours = url_has_allowed_host_and_scheme(address, hosts, require_https=request.is_secure())
    if is_ours and "/" in address:
        return address
    return resolve_url(settings.LOGIN_REDIRECT_URL)


def _locked(request: HttpRequest) -> HttpResponse:
    """Note the attempt; the answer becomes the one of the lock (AxesMiddleware)."""
    failure_audit(request, "", by=BY)
    return HttpResponse(status=429)


def _refused(request: HttpRequest, error: LoginRefusedError) -> HttpResponse:
    if error.is_guess:
        failure_count(request)
    if not error.is_fault:
        details = {"by": BY, "reason": error.reason}
        if error.subject:
            details["subject"] = error.subject
        failure_audit(request, error.name, is_once=not error.is_guess, **details)
    title, text = refusal_words(error)
    context = {"title": title, "text": text, "reason": error.reason}
    return render(request, "frontend/login_refused.html", context, status=error.status)
