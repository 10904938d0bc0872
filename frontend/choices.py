"""Choices of a browser, kept in its cookies: the theme, the time zone."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

#: Cookies of the choices, and how long a browser keeps them.
THEME_COOKIE, ZONE_COOKIE, COOKIE_S = "virtualflow_theme", "virtualflow_zone", 366 * 86_400
#: Zones in which the page's script shows times: name -> label. Without the script it is UTC.
ZONES = {"browser": "Your zone", "utc": "UTC"}


@dataclass(frozen=True, slots=True)
class Theme:
    """A theme.

    Attributes:
        scheme: what the browser's own controls look like.
        dark_media: for which screens the dark colours count.
    """

    name: str
    label: str
    scheme: str
    dark_media: str

    @property
    def all(self) -> tuple[Theme, ...]:
        """All themes, in the order of the menu."""
        return tuple(THEMES.values())


SYSTEM = Theme("system", "System", "light dark", "screen and (prefers-color-scheme: dark)")
THEMES = {
    theme.name: theme
    for theme in (
        SYSTEM,
        Theme("light", "Light", "light", "not all"),
        Theme("dark", "Dark", "dark", "screen"),
    )
}


def theme_of(request: HttpRequest) -> Theme:
    """Return the theme that a browser has chosen; the system's without a known choice."""
    return THEMES.get(request.COOKIES.get(THEME_COOKIE, ""), SYSTEM)


def zone_of(request: HttpRequest) -> str:
    """Return the name of the zone that a browser has chosen; its own without a known choice."""
    name = request.COOKIES.get(ZONE_COOKIE, "")
    return name if name in ZONES else "browser"
