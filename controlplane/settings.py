"""All settings, in one file. Each variable is described in docs/settings.md."""

from __future__ import annotations

import datetime
import hashlib
from importlib.metadata import version
from pathlib import Path

from django.contrib.messages import constants as messages
from django.core.exceptions import ImproperlyConfigured

from controlplane import environment
from controlplane.core import policies
from controlplane.core.log_format import ACCESS, LOG_FORMATS
from controlplane.core.protocol import code_archive
from controlplane.core.values.lifecycle import JobStatus, ValidationStatus
from controlplane.core.values.tiers import Tier

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = Path(environment.text("VIRTUALFLOW_STATE_DIR", str(BASE_DIR / "var")))

DEBUG = environment.flag("VIRTUALFLOW_DEBUG")
SECRET_KEY = environment.secret("VIRTUALFLOW_SECRET_KEY", may_be_random=DEBUG)
#: Encrypts the secrets of jobs (jobs.sealing).
SECRETS_KEY = environment.secret("VIRTUALFLOW_SECRETS_KEY", SECRET_KEY)
#: Its former values: what is encrypted with one is read, and encrypted anew by `prepare`.
OLD_SECRETS_KEYS = environment.words("VIRTUALFLOW_OLD_SECRETS_KEYS")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ALLOWED_HOSTS = environment.hosts("VIRTUALFLOW_HOSTS", _LOOPBACK)
if DEBUG and not set(ALLOWED_HOSTS) <= {*_LOOPBACK}:
    raise ImproperlyConfigured(
        "VIRTUALFLOW_DEBUG shows code to every visitor, so with it VIRTUALFLOW_HOSTS may name only "
        f"{', '.join(_LOOPBACK)}; unset one of them."
    )
#: Of Prometheus, for `/metrics`; empty: only admins read it.
METRICS_TOKEN = environment.text("VIRTUALFLOW_METRICS_TOKEN", "")
if METRICS_TOKEN:
    environment.secret("VIRTUALFLOW_METRICS_TOKEN")
CSRF_TRUSTED_ORIGINS = environment.origins("VIRTUALFLOW_ORIGINS")
IS_BEHIND_TLS = environment.flag("VIRTUALFLOW_TLS")
#: Nodes without isolation may serve several users (services.cluster.nodes).
USERS_TRUST_EACH_OTHER = environment.flag("VIRTUALFLOW_USERS_TRUST_EACH_OTHER")

# --- applications and requests ---------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "jobs",
    "frontend",
    "django.contrib.admin.apps.SimpleAdminConfig",  # after frontend, whose templates come first
]
MIDDLEWARE = [
    "jobs.request_counts.requests_counted",
    "jobs.origins.request_kept",
    "controlplane.middleware.PagesGZipMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.middleware.response_headers",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "jobs.api.addresses.SlashMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.middleware.PagesMessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "jobs.api.addresses.AddressPartsMiddleware",
    "jobs.api.addresses.QueryParametersMiddleware",
    "axes.middleware.AxesMiddleware",  # last: it replaces the answer to a login that is locked
]
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "frontend.live.refreshes.messages_left",
            ]
        },
    }
]
#: Classes of messages on pages.
MESSAGE_TAGS = {messages.INFO: "warn", messages.SUCCESS: "good", messages.ERROR: "bad error"}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"

# --- accounts --------------------------------------------------------------------------------

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",  # first: refuses locked logins before any hashing
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
] + [{"NAME": "jobs.services.cluster.accounts.TokenRevocation"}]

SESSION_COOKIE_AGE = int(environment.number("VIRTUALFLOW_SESSION_H", 12, low=0.1, high=720) * 3600)
# Cookies belong to a host with all its ports, where other applications may be.
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "virtualflow_session", "virtualflow_csrf"

#: Proxies in front, each of which appends its client to `X-Forwarded-For`.
NUM_PROXIES = int(environment.number("VIRTUALFLOW_PROXIES", 0, low=0, high=10))
#: Failed logins of one user name, or from one address, until both are locked for a time.
AXES_FAILURE_LIMIT = int(environment.number("VIRTUALFLOW_LOGIN_FAILURES", 10, low=1, high=1000))
AXES_COOLOFF_TIME = datetime.timedelta(
    seconds=environment.number("VIRTUALFLOW_LOGIN_LOCK_S", 300, low=1, high=86400)
)
AXES_LOCKOUT_PARAMETERS = "jobs.services.cluster.accounts.lockout_parameters"
AXES_CLIENT_IP_CALLABLE = "jobs.origins.client_network"
AXES_LOCKOUT_CALLABLE = "jobs.api.authentication.lockout_response"
# A locked login counts no further, or a stranger could keep somebody out for ever; and no success
# forgets failures, or a user could clear the count of his address between two guesses.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = False
AXES_SENSITIVE_PARAMETERS = [
    "password", "old_password", "new_password1", "new_password2", "code", "state",
]  # fmt: skip
AXES_DISABLE_ACCESS_LOG = True  # the audit log has it
AXES_VERBOSE = AXES_ENABLE_ADMIN = False

#: Provider of logins by OpenID Connect (jobs.oidc); empty: there are none.
OIDC_ISSUER = environment.https_address("VIRTUALFLOW_OIDC_ISSUER")
OIDC_CLIENT_ID = environment.text("VIRTUALFLOW_OIDC_CLIENT_ID", None if OIDC_ISSUER else "")
OIDC_CLIENT_SECRET = (
    environment.text_or_file("VIRTUALFLOW_OIDC_CLIENT_SECRET") if OIDC_ISSUER else ""
)
OIDC_TITLE = environment.text("VIRTUALFLOW_OIDC_TITLE", "single sign-on")
OIDC_SCOPES = environment.text("VIRTUALFLOW_OIDC_SCOPES", "openid profile")
OIDC_NAME_CLAIM = environment.text("VIRTUALFLOW_OIDC_NAME_CLAIM", "preferred_username")
#: Answer to people without an account: a refusal, an inactive account, or an active one.
OIDC_USERS = environment.choice("VIRTUALFLOW_OIDC_USERS", ("known", "ask", "any"), "ask")
OIDC_GROUPS_CLAIM = environment.text("VIRTUALFLOW_OIDC_GROUPS_CLAIM", "groups")
#: Only this group logs in; empty: everybody.
OIDC_USER_GROUP = environment.text("VIRTUALFLOW_OIDC_USER_GROUP", "")
#: This group, and no other account of the provider, is made an admin; empty: nobody is.
OIDC_ADMIN_GROUP = environment.text("VIRTUALFLOW_OIDC_ADMIN_GROUP", "")
OIDC_CA_FILE = environment.existing_file("VIRTUALFLOW_OIDC_CA_FILE")
OIDC_TIMEOUT_S = environment.number("VIRTUALFLOW_OIDC_TIMEOUT_S", 5, low=0.5, high=30)
#: Without it passwords let superusers in alone, so that a broken provider locks nobody out.
HAS_PASSWORD_LOGIN = environment.flag("VIRTUALFLOW_PASSWORD_LOGIN", default=True)
if not (HAS_PASSWORD_LOGIN or OIDC_ISSUER):
    raise ImproperlyConfigured("VIRTUALFLOW_PASSWORD_LOGIN=0 needs VIRTUALFLOW_OIDC_ISSUER.")

AUDIT_DAYS = int(environment.number("VIRTUALFLOW_AUDIT_DAYS", 365, low=30, high=36500))

# --- database, Redis, tasks ------------------------------------------------------------------

DATABASES = {
    "default": environment.database(
        environment.text("DATABASE_URL", f"sqlite:///{STATE_DIR}/controlplane.sqlite3"),
        connection_age_s=environment.number("VIRTUALFLOW_DATABASE_AGE_S", 60, low=0, high=3600),
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

#: Empty in a debug run: no wake-ups and no queue, waits end by their own limit.
REDIS_URL = environment.text("REDIS_URL", "" if DEBUG else None)

CELERY_BROKER_URL = environment.celery_broker(REDIS_URL) if REDIS_URL else "memory://"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_SOFT_TIME_LIMIT = 50
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
#: Workers and beat outlast any outage of Redis; by default they would end after 100 tries.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
#: A request tries once to reach Redis: a task that it cannot send waits for its beat.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_timeout": 10, "socket_connect_timeout": 5, "max_retries": 0,
}  # fmt: skip

#: Counters of requests by node, token and address, of each process: the least used are forgotten.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 20_000},
    }
}

# --- files -----------------------------------------------------------------------------------

MEDIA_ROOT = environment.folder("VIRTUALFLOW_FILES_DIR", str(STATE_DIR / "files"))


def _static_version() -> str:
    """Return a digest of the static files, the project's own and those of packages."""
    digest = hashlib.sha256(f"{version('django')} {version('drf-spectacular-sidecar')}".encode())
    for path in sorted((BASE_DIR / "frontend/static").rglob("*")):
        if path.is_file() and path.suffix not in (".br", ".gz"):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


# Changed files have other addresses, so browsers keep those of a version for good.
STATIC_URL = "static/" if DEBUG else f"static/{_static_version()}/"
WHITENOISE_IMMUTABLE_FILE_TEST = "$^" if DEBUG else ""
STATIC_ROOT = STATE_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "jobs.files.WholeFiles"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedStaticFilesStorage",
        # The web server may be another user than the one that collected them.
        "OPTIONS": {"file_permissions_mode": 0o644, "directory_permissions_mode": 0o755},
    },
}
# Without the files of `manage.py prepare`, as in a demo: served directly from the packages.
WHITENOISE_USE_FINDERS = not STATIC_ROOT.is_dir()
# As by default; said here, so that a test's client does not list all files again.
WHITENOISE_AUTOREFRESH = DEBUG
CODE_LIMIT_BYTES = code_archive.UPLOAD_LIMIT_BYTES
ARTIFACT_LIMIT_BYTES = 4 * 1024**3
LOG_LIMIT_BYTES = 16 * 1024**2  # of one trainer: a quarter of it is its beginning, the rest its end
AGENT_BATCH_LIMIT_BYTES = 8 * 1024**2
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024**2  # of a form without its files
FILE_UPLOAD_PERMISSIONS = 0o600
FILE_UPLOAD_HANDLERS = [
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "jobs.files.UnnamedUploads",
]

# --- security --------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
CSRF_FAILURE_VIEW = "frontend.unsent.csrf_failed"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_BEHIND_TLS
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
if IS_BEHIND_TLS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 30 * 24 * 3600
    SECURE_SSL_REDIRECT = True
    # Health checks and agents connect directly, not through the proxy that terminates TLS.
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^api/v1/agent/"]
# Other names below the same domain are outside this project's control.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# --- the product -----------------------------------------------------------------------------

HEARTBEAT_S = environment.number("VIRTUALFLOW_HEARTBEAT_S", 2, low=0.1, high=60)
LEASE_S = environment.number("VIRTUALFLOW_LEASE_S", 20, low=0.5, high=600)
WAIT_LIMIT_S = 30  # longest long-poll
#: REST requests that may wait at once in one process. Each holds a thread of a WSGI server.
WAITS_LIMIT = int(environment.number("VIRTUALFLOW_WAITS", 3, low=0, high=10_000))
#: Request bodies that are read at once in one process. Each holds a thread of a WSGI server.
BODIES_LIMIT = int(environment.number("VIRTUALFLOW_BODIES", 4, low=1, high=10_000))
#: Downloads that are sent at once in one process. Each holds a thread of a WSGI server.
DOWNLOADS_LIMIT = int(environment.number("VIRTUALFLOW_DOWNLOADS", 4, low=1, high=10_000))
#: Files of agents that are received at once in one process. Each may take ARTIFACT_LIMIT_BYTES.
UPLOADS_LIMIT = int(environment.number("VIRTUALFLOW_UPLOADS", 16, low=1, high=10_000))
#: When all nodes are silent, the fault is more likely on this side; the expiry then waits for so
#: many leases. Nothing could run elsewhere meanwhile anyway.
ALL_SILENT_LEASES = 6
CYCLE_PERIOD_S = environment.number("VIRTUALFLOW_CYCLE_S", 5, low=0.5, high=60)
#: Leases are checked more often, so that a lost node is noticed soon after its lease expires.
EXPIRE_PERIOD_S = min(CYCLE_PERIOD_S, max(LEASE_S / 10, 0.5))
PREPARE_LIMIT_S = environment.number("VIRTUALFLOW_PREPARE_LIMIT_S", 180, low=5, high=3600)
SWITCH_LIMIT_S = environment.number("VIRTUALFLOW_SWITCH_LIMIT_S", 300, low=5, high=3600)
#: A recovery continues without survivors that have not reported within this time.
RECOVER_LIMIT_S = environment.number("VIRTUALFLOW_RECOVER_LIMIT_S", 60, low=2, high=3600)
#: Seconds after a loss for which accelerators are kept for a job below its minimum.
REPLACE_LIMIT_S = environment.number("VIRTUALFLOW_REPLACE_LIMIT_S", 60, low=0, high=3600)
#: Seconds for which stalled trainers wait for news of the others.
STALL_GRACE_S = environment.number("VIRTUALFLOW_STALL_GRACE_S", 2, low=0, high=60)
#: Interval of a training job's checkpoints, for the case that all trainers are lost.
CHECKPOINT_EVERY_S = environment.number("VIRTUALFLOW_CHECKPOINT_EVERY_S", 300, low=0, high=86400)
#: Checkpoints kept of a job, the newest included; other jobs may start from each.
KEPT_CHECKPOINTS = int(environment.number("VIRTUALFLOW_KEPT_CHECKPOINTS", 3, low=1, high=100))
#: Seconds for which a fork waits for the state of a running job.
FORK_WAIT_S = environment.number("VIRTUALFLOW_FORK_WAIT_S", 120, low=1, high=3600)
#: Seconds before maintenance of a node from which on it takes no new work.
MAINTENANCE_LEAD_S = environment.number("VIRTUALFLOW_MAINTENANCE_LEAD_S", 300, low=0, high=86400)
LEAVE_LIMIT_S = environment.number("VIRTUALFLOW_LEAVE_LIMIT_S", 60, low=1, high=600)
VALIDATION_TIMEOUT_S = environment.number("VIRTUALFLOW_VALIDATION_S", 120, low=1, high=3600)
VALIDATION_ATTEMPTS_LIMIT = 3
#: Tries without a new step, after which a job is failed (restarts, crashes) or restarted.
RESTART_LIMIT = 5
CRASH_LIMIT = 5
RECOVERY_LIMIT = 10
#: Seconds for which an accelerator on which a job's trainer did not come up is excluded for the
#: job; twice as long each further time.
START_COOL_DOWN_S, START_COOL_DOWN_LIMIT_S = 10, 1800
#: Deaths of trainers within the window (of two jobs at least, or while they started) after which a
#: node is quarantined; twice as long each further time. 0: never.
QUARANTINE_DEATHS = int(environment.number("VIRTUALFLOW_QUARANTINE_DEATHS", 3, low=0, high=1000))
QUARANTINE_WINDOW_S = environment.number("VIRTUALFLOW_QUARANTINE_WINDOW_S", 600, low=1, high=86400)
QUARANTINE_S = environment.number("VIRTUALFLOW_QUARANTINE_S", 300, low=1, high=86400)
QUARANTINE_LIMIT_S = 86400
#: Of one user.
LIVE_JOBS_LIMIT = int(environment.number("VIRTUALFLOW_LIVE_JOBS", 1000, low=1, high=100_000))
#: Bytes of the files of one user's jobs; 0: no limit.
STORAGE_LIMIT_BYTES = int(
    environment.number("VIRTUALFLOW_STORAGE_GIB", 0, low=0, high=1_000_000) * 1024**3
)
#: Days after the end of a job until its files are deleted; 0: never.
RETENTION_DAYS = environment.number("VIRTUALFLOW_RETENTION_DAYS", 0, low=0, high=36_500)
#: Readings of accelerators: days for which means of a minute, and of an hour, are kept.
READING_MINUTE_DAYS = environment.number("VIRTUALFLOW_READING_MINUTE_DAYS", 2, low=0.1, high=365)
READING_HOUR_DAYS = environment.number("VIRTUALFLOW_READING_HOUR_DAYS", 90, low=1, high=3650)
#: An accelerator is idle but held if its job used less than so many percent of it for so long.
IDLE_PERCENT = environment.number("VIRTUALFLOW_IDLE_PERCENT", 5, low=0, high=100)
IDLE_MINUTES = environment.number("VIRTUALFLOW_IDLE_MINUTES", 10, low=1, high=1440)
#: Highest priority that users who are no admins may give jobs, unless an admin chose another.
PRIORITY_CEILING = int(environment.number("VIRTUALFLOW_PRIORITY_CEILING", 100, low=1, high=1000))
#: Highest tier that users who are no admins may give jobs, unless an admin chose another.
TIER_CEILING = environment.choice("VIRTUALFLOW_TIER_CEILING", list(Tier), Tier.NORMAL.value)
#: Shown beside prices of accelerator-hours, as EUR.
CURRENCY = environment.text("VIRTUALFLOW_CURRENCY", "")[:12]
#: Age at which an agent is given a new token; 0: never.
AGENT_TOKEN_DAYS = environment.number("VIRTUALFLOW_AGENT_TOKEN_DAYS", 30, low=0, high=3650)
DEFAULT_POLICY = environment.choice(
    "VIRTUALFLOW_POLICY", policies.POLICIES, policies.DEFAULT_POLICY
)
#: Address under which people reach the site, for links in notifications.
PUBLIC_URL = environment.web_address("VIRTUALFLOW_PUBLIC_URL").rstrip("/")
#: Where agents and event streams connect, when streams have a server of their own.
STREAM_URL = environment.web_address("VIRTUALFLOW_STREAM_URL")

# --- notifications ---------------------------------------------------------------------------

EMAIL_HOST = environment.text("VIRTUALFLOW_EMAIL_HOST", "")
EMAIL_PORT = int(environment.number("VIRTUALFLOW_EMAIL_PORT", 587, low=1, high=65535))
EMAIL_HOST_USER = environment.text("VIRTUALFLOW_EMAIL_USER", "")
EMAIL_HOST_PASSWORD = environment.text("VIRTUALFLOW_EMAIL_PASSWORD", "")
_EMAIL_SECURITY = environment.choice(
    "VIRTUALFLOW_EMAIL_SECURITY", ("starttls", "tls", "none"), "starttls"
)
EMAIL_USE_TLS, EMAIL_USE_SSL = _EMAIL_SECURITY == "starttls", _EMAIL_SECURITY == "tls"
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = environment.text("VIRTUALFLOW_EMAIL_FROM", "virtualflow@localhost")
#: Domains to whose addresses notifications may be mailed; `*` for any.
EMAIL_DOMAINS = environment.words("VIRTUALFLOW_EMAIL_DOMAINS")
#: Hosts to which webhooks may be sent though their addresses are private.
WEBHOOK_PRIVATE_HOSTS = environment.words("VIRTUALFLOW_WEBHOOK_PRIVATE_HOSTS")
#: Schemes of chat addresses; those of the default reach the service's own hosts alone.
CHAT_SERVICES = environment.words(
    "VIRTUALFLOW_CHAT_SERVICES", ("discord", "gchat", "slack", "tgram", "wxteams")
)
#: Days for which messages are kept after their end.
NOTIFICATION_DAYS = environment.number("VIRTUALFLOW_NOTIFICATION_DAYS", 30, low=1, high=3650)

# --- REST ------------------------------------------------------------------------------------

#: Dry runs and previews of one user, each of which runs the policy in a web process.
PREVIEWS_PER_MINUTE = environment.number("VIRTUALFLOW_PREVIEWS_PER_MINUTE", 60, low=1, high=100_000)
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "jobs.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["jobs.api.permissions.ScopePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "jobs.api.negotiation.ShortNegotiation",
    "DEFAULT_PARSER_CLASSES": ["jobs.api.parsers.BoundedJsonParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "jobs.api.pagination.NewestFirst",
    "DEFAULT_THROTTLE_CLASSES": ["jobs.api.throttles.IdentityThrottle"],
    "DEFAULT_THROTTLE_RATES": {
        "identity": environment.rate("VIRTUALFLOW_API_RATE", "6000/min"),
    },
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "jobs.exceptions.problem_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "VirtualFlow control plane",
    "DESCRIPTION": "Submit TensorFlow jobs, watch them, resize them live.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    # The document is long, so it is not public.
    "SERVE_PERMISSIONS": ["jobs.api.permissions.ScopePermission"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "jobs.api.openapi.problems_documented",
        "jobs.api.openapi.etags_documented",
        "jobs.api.openapi.requests_bounded",
        "jobs.api.openapi.values_required",
        "jobs.api.openapi.submissions_optional",
        "jobs.api.openapi.summaries_added",
    ],
    "ENUM_NAME_OVERRIDES": {
        enum.__name__: [(member.value, member.value) for member in enum]
        for enum in (JobStatus, Tier, ValidationStatus)
    },
}
#: File that a Celery worker touches for its health check; empty for none.
WORKER_HEARTBEAT_FILE = environment.text("VIRTUALFLOW_WORKER_HEARTBEAT_FILE", "")
LOG_FORMAT = environment.choice("VIRTUALFLOW_LOG_FORMAT", LOG_FORMATS, LOG_FORMATS[0])
#: With JSON the web server's loggers, which have handlers of their own, use this site's.
_SERVER_LOGGERS = {
    name: {"handlers": ["console"], "level": "INFO", "propagate": False}
    for name in (("_granian", ACCESS) if LOG_FORMAT == "json" else ())
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "controlplane.core.log_format.JsonFormatter"},
    },
    "filters": {"outages": {"()": "controlplane.outages.OutageFilter"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": LOG_FORMAT,
            "filters": ["outages"],
        }
    },
    "loggers": {
        "axes": {"level": "WARNING"},
        # Celery's and Django's own handlers have no filter of this site.
        "celery.app.trace": {"filters": ["outages"]},
        "django.request": {"filters": ["outages"]},
        **_SERVER_LOGGERS,
    },
    "root": {
        "handlers": ["console"],
        "level": environment.choice(
            "VIRTUALFLOW_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "INFO"
        ),
    },
}
