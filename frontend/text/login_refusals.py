"""Words about a refused login by OpenID Connect: what happened, and what to do."""

from __future__ import annotations

from django.conf import settings

from jobs.oidc import LEEWAY_S, PENDING_S, LoginRefusedError

#: Reason -> title, text. `{provider}` is the provider's title, `{name}` the name that it gives.
_WORDS = {
    "state": (
        "This login is over",
        f"It was used already, is older than {PENDING_S // 60} minutes, or began in another "
        "browser. Begin again.",
    ),
    "denied": (
        "{provider} did not log you in",
        "You or {provider} ended the login there. Begin again, or ask whoever runs {provider} "
        "whether your account may use this site.",
    ),
    "code": (
        "{provider} does not know this login",
        "It was used already or took too long. Begin again.",
    ),
    "token": (
        "The answer of {provider} is not valid",
        "It is not meant for this login or this site, so it was refused. Begin again; if that "
        "does not help, tell an admin of this site the time of this page.",
    ),
    "clock": (
        "The clocks do not agree",
        f"By the clock of this site the answer of {{provider}} has expired or is from the future. "
        f"Begin again; if that does not help, an admin has to set the clocks of both: they may "
        f"differ by {LEEWAY_S} s.",
    ),
    "unavailable": (
        "{provider} cannot be reached",
        "This site got no answer in time. Try again in a minute.",
    ),
    "misconfigured": (
        "Login with {provider} is not set up correctly",
        "Trying again will not help. Tell an admin of this site: its log has the cause.",
    ),
    "busy": (
        "Too many logins at once",
        "Many begin at your address, or {provider} is slow to answer. Try again in a minute.",
    ),
    "unknown": (
        "No account on this site",
        "{provider} knows you as “{name}”, but no account here is linked to that. If you have one, "
        "log in with its password and link it on the account page; otherwise ask an admin.",
    ),
    "waiting": (
        "Your account waits for an admin",
        "The account “{name}” was made for you. Log in again once an admin has activated it.",
    ),
    "full": (
        "Too many accounts wait for an admin",
        "No account was made for you. Ask an admin to go through those that wait.",
    ),
    "inactive": (
        "This account is deactivated",
        "Ask an admin if you need the account “{name}” again.",
    ),
    "group": (
        "Your account may not use this site",
        "{provider} knows you as “{name}”, but not as a member of the group that this site serves.",
    ),
    "name_taken": (
        "The name “{name}” is taken",
        "There is an account of this name already. If it is yours, log in with its password and "
        "link it on the account page; otherwise ask an admin.",
    ),
    "name_invalid": (
        "No account was made",
        "{provider} gave no name that this site can use: letters, digits and @ . + - _ alone. An "
        "admin chooses with VIRTUALFLOW_OIDC_NAME_CLAIM which of its values is the name.",
    ),
    "linked": (
        "The accounts were not linked",
        "This account of {provider} belongs to another account here, or yours is linked to another "
        "one there. An admin can remove the former link.",
    ),
    "other_user": (
        "The accounts were not linked",
        "You are not logged in as when you began. Begin again on the account page.",
    ),
}


def refusal_words(error: LoginRefusedError) -> tuple[str, str]:
    """Return title and text about a refusal."""
    title, text = _WORDS[error.reason]
    values = {"provider": settings.OIDC_TITLE, "name": error.name}
    title, text = title.format(**values), text.format(**values)
    return title[:1].upper() + title[1:], text[:1].upper() + text[1:]
