"""API tokens, secrets, idempotency keys, cluster-wide settings, and the state of policies."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.core.values.tiers import Tier
from jobs.models.choices import choices


class ApiToken(models.Model):
    """A program's credentials, acting for a user. Only the digest is stored."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=60)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.name


class Secret(models.Model):
    """A value that a user's jobs find in their environment by its name. Only encrypted is stored.

    Attributes:
        sealed: the value, encrypted (jobs.sealing).
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="secrets"
    )
    name = models.CharField(max_length=64)
    sealed = models.TextField()
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (models.UniqueConstraint(name="secret_name_once", fields=("owner", "name")),)

    def __str__(self) -> str:
        return self.name


class UserLimits(models.Model):
    """Limits of a user that an admin has chosen; None: the site's own.

    Attributes:
        priority_ceiling: highest priority that the user may give jobs.
        tier_ceiling: highest tier that the user may give jobs.
        share_factor: factor of the user's claim on a share, for policies that share by user.
        live_jobs_limit: most jobs of the user that have not ended.
        storage_limit_bytes: most that the files of the user's jobs may take; 0: no limit.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="limits",
    )
    priority_ceiling = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    tier_ceiling = models.CharField(
        max_length=10, choices=choices(Tier), null=True, blank=True, default=None
    )
    share_factor = models.FloatField(
        default=1.0, validators=[MinValueValidator(0.1), MaxValueValidator(10.0)]
    )
    live_jobs_limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(100_000)]
    )
    storage_limit_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MaxValueValidator(2**60)]
    )

    class Meta:
        verbose_name_plural = "user limits"
        constraints = (
            models.CheckConstraint(
                name="user_limits_in_range",
                condition=(
                    (Q(priority_ceiling=None) | Q(priority_ceiling__range=(1, 1000)))
                    & (Q(tier_ceiling=None) | Q(tier_ceiling__in=[tier.value for tier in Tier]))
                    & Q(share_factor__range=(0.1, 10.0))
                    & (Q(live_jobs_limit=None) | Q(live_jobs_limit__range=(1, 100_000)))
                    & (Q(storage_limit_bytes=None) | Q(storage_limit_bytes__lte=2**60))
                ),
            ),
        )

    def __str__(self) -> str:
        names = (
            "priority_ceiling",
            "tier_ceiling",
            "share_factor",
            "live_jobs_limit",
            "storage_limit_bytes",
        )
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)


class ExternalIdentity(models.Model):
    """An account of an OpenID Connect provider that logs a user in.

    Attributes:
        issuer: address of the provider.
        subject: the account there; neither its name nor its e-mail address identify it.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="external_identities"
    )
    issuer = models.CharField(max_length=500)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "external identities"
        constraints = (
            models.UniqueConstraint(name="identity_of_one_user", fields=("issuer", "subject")),
            models.UniqueConstraint(name="one_identity_per_issuer", fields=("issuer", "user")),
        )

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class IdempotencyKey(models.Model):
    """A completed POST: the same key with the same body returns the same job."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="idempotency_keys"
    )
    key = models.CharField(max_length=120)
    body_sha256 = models.CharField(max_length=64)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="idempotency_key_once", fields=("user", "key")),
        )

    def __str__(self) -> str:
        return self.key


class ClusterSetting(models.Model):
    """Settings that an admin can change at run time; exactly one row.

    `watched_at` and `watch_since` are the time of the last liveness check and the start of the
    liveness window without a gap (services.failures.watch). `cycle_failed_at` is the time of the
    first failed scheduling cycle since one succeeded, `cycle_failure` the error of the last one.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    policy = models.CharField(max_length=40)
    version = models.PositiveIntegerField(default=1)
    changed_by = models.CharField(max_length=160, blank=True)
    changed_at = models.DateTimeField(auto_now=True)
    watched_at = models.DateTimeField(null=True, blank=True)
    watch_since = models.DateTimeField(null=True, blank=True)
    cycle_failed_at = models.DateTimeField(null=True, blank=True)
    cycle_failure = models.TextField(blank=True)

    class Meta:
        constraints = (models.CheckConstraint(name="one_cluster_setting", condition=Q(id=1)),)

    def __str__(self) -> str:
        return f"policy {self.policy}"


class PolicyState(models.Model):
    """State that a policy carries from one cycle to the next: one of `POLICY_STATES`, encoded."""

    policy = models.CharField(max_length=40, primary_key=True)
    state = models.JSONField()

    def __str__(self) -> str:
        return f"state of {self.policy}"
