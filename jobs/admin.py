"""Admin site: user accounts, and the records of the control plane to look up.

Records are read-only here: jobs, nodes and allocations change through services alone.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import AdminPasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from jobs.models import (
    Accelerator,
    Allocation,
    ApiToken,
    AuditAction,
    AuditEntry,
    Event,
    ExternalIdentity,
    Generation,
    Job,
    Node,
    Replay,
    UserLimits,
)
from jobs.services.cluster.accounts import TokenRevocation
from jobs.services.cluster.api_tokens import api_token_revoke
from jobs.services.lifecycle.audit import audit_add, read_audit
from jobs.services.lifecycle.events import user_actor

#: Nodes that a warning names, at most.
_NAMED_NODES = 5


class ControlPlaneAdmin(admin.AdminSite):
    """Admin site whose login, logout and change of the own password are those of the pages."""

    site_header = site_title = "VirtualFlow"
    index_title = "Users and records"

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the login page.

        Raises:
            PermissionDenied: the user is logged in and not an admin.
        """
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next", "") or "/admin/")

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Redirect to the logout of the pages, which the audit log has."""
        return redirect("logout", preserve_request=True)

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Redirect to the page, where a wrong password counts like one of a login."""
        return redirect("password")


class RecordAdmin(admin.ModelAdmin):
    """Read-only list and detail page for every admin."""

    show_full_result_count = False
    list_per_page = 50

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_module_permission = has_view_permission
    has_change_permission = has_delete_permission = has_add_permission


class JobAdmin(RecordAdmin):
    list_display = ("id", "name", "owner", "status", "tier", "priority", "step", "submitted_at")
    list_filter = ("status", "template")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")
    ordering = ("-id",)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Job | None:
        """Return the job of a detail page, and note in the audit log that it is read."""
        job: Job | None = super().get_object(request, object_id, from_field)
        if job is not None:
            read_audit(request.user, job, "record")
        return job


class NodeAdmin(RecordAdmin):
    list_display = ("name", "host", "shown_status", "last_seen_at", "removed_at")
    search_fields = ("name", "host")
    exclude = ("agent_token_digest", "next_agent_token_digest")


class AcceleratorAdmin(RecordAdmin):
    list_display = ("id", "node", "index", "kind", "name", "is_present")
    list_filter = ("kind", "is_present")
    list_select_related = ("node",)


class GenerationAdmin(RecordAdmin):
    list_display = ("job", "number", "phase", "num_members", "switched_at", "closed_at")
    list_filter = ("phase",)
    list_select_related = ("job",)
    search_fields = ("job__name",)
    ordering = ("-id",)


class AllocationAdmin(RecordAdmin):
    list_display = ("job", "slot", "accelerator", "granted_at", "released_at", "lost_code")
    list_select_related = ("job", "accelerator")
    search_fields = ("job__name",)
    ordering = ("-id",)


class EventAdmin(RecordAdmin):
    list_display = ("at", "kind", "job", "node", "actor", "message")
    list_filter = ("kind",)
    list_select_related = ("job", "node")
    search_fields = ("message", "actor", "job__name")


class ReplayAdmin(RecordAdmin):
    list_display = ("id", "__str__", "status")


class ApiTokenAdmin(RecordAdmin):
    """API tokens of all users, with an action that revokes them."""

    list_display = ("id", "name", "user", "scopes", "expires_at", "revoked_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Revoke selected tokens")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        """Revoke tokens of any user."""
        now = timezone.now()
        for token in queryset.select_related("user"):
            api_token_revoke(token.user, token.pk, now)
        self.message_user(request, "The selected tokens are revoked.", messages.SUCCESS)


class AuditEntryAdmin(RecordAdmin):
    list_display = ("at", "actor", "action", "object", "address")
    list_filter = ("action",)
    search_fields = ("actor", "object", "address")


class UserLimitsInline(admin.StackedInline):
    model = UserLimits
    can_delete = True


class ExternalIdentityInline(admin.TabularInline):
    """Accounts of an OpenID Connect provider that log the user in: to be removed, not changed."""

    model = ExternalIdentity
    extra = 0
    readonly_fields = ("issuer", "subject", "created_at")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class AccountPasswordForm(AdminPasswordChangeForm):
    """A new password of a user, or none; both end the user's sessions and API tokens."""

    def save(self, commit: bool = True) -> User:
        user: User = super().save(commit)
        if not user.has_usable_password():
            TokenRevocation().password_changed("", user)  # Django calls it for new ones alone
        return user


class AccountAdmin(UserAdmin):
    """User accounts; what is done to them is in the audit log as well."""

    list_display = (
        "username", "is_active", "is_staff", "is_superuser", "chosen", "last_login",
    )  # fmt: skip
    list_select_related = ("limits",)
    inlines = (UserLimitsInline, ExternalIdentityInline)
    change_password_form = AccountPasswordForm

    @admin.display(description="limits chosen")
    def chosen(self, user: User) -> str:
        """Return the limits that an admin chose, in a line."""
        return str(getattr(user, "limits", ""))

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Fields that are read only: own rights, of which the last superuser could leave none."""
        is_own = obj is not None and obj.pk == request.user.pk
        return ("is_active", "is_staff", "is_superuser") if is_own else ()

    def add_view(self, request: HttpRequest, *arguments: Any, **more: Any) -> HttpResponse:
        """Show or take the form, with a warning if nodes will be closed to several accounts."""
        shared = Node.objects.filter(isolation="none", removed_at=None).order_by("name")
        names = [] if settings.USERS_TRUST_EACH_OTHER else [*shared.values_list("name", flat=True)]
        if names and request.method == "GET":
            shown = ", ".join(names[:_NAMED_NODES]) + (" ..." if len(names) > _NAMED_NODES else "")
            text = (
                "Jobs of all users run as one user of the machine on these nodes, which take no "
                f"new work while the site has several active accounts: {shown}. Start their agents "
                "with --isolation uid, or, if all users trust each other, the site with "
                "VIRTUALFLOW_USERS_TRUST_EACH_OTHER=1."
            )
            self.message_user(request, text, messages.WARNING)
        return super().add_view(request, *arguments, **more)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """List what is deleted with accounts, and those that are not deleted.

        Accounts with jobs are kept as these are: they are deactivated. Nobody deletes the own one.
        """
        found, counts, _lacking, protected = super().get_deleted_objects(objs, request)
        kept = [
            f"{user.username}: has submitted jobs, which are kept. Untick “Active” instead."
            for user in User.objects.filter(Exists(Job.objects.filter(owner=OuterRef("pk"))))
            .filter(pk__in=[user.pk for user in objs])
            .order_by("username")
        ]
        if request.user.pk in [user.pk for user in objs]:
            kept.append(f"{request.user.get_username()}: is your own account.")
        return found, counts, set(), kept or protected

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        audit_add(AuditAction.USER_MADE, user_actor(obj))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        audit_add(
            AuditAction.USER_CHANGED,
            user_actor(obj),
            is_active=obj.is_active,
            is_staff=obj.is_staff,
            changes=message,
        )
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for user in queryset:
            audit_add(AuditAction.USER_DELETED, user_actor(user))
        return super().log_deletions(request, queryset)


site = ControlPlaneAdmin(name="admin")
site.register(User, AccountAdmin)
for model, page in (
    (Job, JobAdmin),
    (Node, NodeAdmin),
    (Accelerator, AcceleratorAdmin),
    (Generation, GenerationAdmin),
    (Allocation, AllocationAdmin),
    (Event, EventAdmin),
    (Replay, ReplayAdmin),
    (ApiToken, ApiTokenAdmin),
    (AuditEntry, AuditEntryAdmin),
):
    site.register(model, page)
