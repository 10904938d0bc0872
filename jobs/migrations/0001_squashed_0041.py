import datetime

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import jobs.models.jobs
import jobs.models.resizes

#: The migrations that this one stands for: a database that has all of them has this one too.
REPLACED = """
0001_squashed_0029
0030_maintenance_windows
0031_usage_days
0032_parallel_tuning
0033_quotas_by_kind
0034_resize_costs_and_ends
0035_cordon_reasons
0036_example_previews
0037_deleted_projects
0038_overtaken_trials
0039_job_forecasts
0040_analysed_steps
0041_job_attempts
"""

_GUARD = """
CREATE FUNCTION jobs_audit_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are never changed, and kept for 30 days at least';
END $$;
CREATE TRIGGER jobs_audit_entry_update BEFORE UPDATE ON jobs_auditentry
    FOR EACH ROW EXECUTE FUNCTION jobs_audit_entry_refuse();
CREATE TRIGGER jobs_audit_entry_delete BEFORE DELETE ON jobs_auditentry
    FOR EACH ROW WHEN (OLD.at > now() - interval '30 days')
    EXECUTE FUNCTION jobs_audit_entry_refuse();
"""


def guard(_apps, schema_editor):
    """Refuse changes of the audit in the database as well; SQLite is for one person."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(_GUARD)


def unguard(_apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION jobs_audit_entry_refuse CASCADE")


class Migration(migrations.Migration):
    initial = True

    replaces = [("jobs", name) for name in REPLACED.split()]

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("template", models.CharField(blank=True, max_length=60)),
                ("tags", models.JSONField(blank=True, default=list)),
                ("note", models.CharField(blank=True, max_length=1000)),
                ("colour", models.PositiveSmallIntegerField(default=0)),
                (
                    "task",
                    models.CharField(
                        choices=[("train", "train"), ("predict", "predict")],
                        default="train",
                        max_length=10,
                    ),
                ),
                ("source_sha256", models.CharField(blank=True, max_length=64)),
                ("fork", models.JSONField(blank=True, default=dict)),
                ("code", models.FileField(max_length=200, upload_to=jobs.models.jobs.code_path)),
                ("code_name", models.CharField(max_length=120)),
                ("code_sha256", models.CharField(max_length=64)),
                ("code_bytes", models.PositiveBigIntegerField(default=0)),
                ("entry_file", models.CharField(max_length=200)),
                ("settings", models.JSONField(blank=True, default=dict)),
                ("secrets", models.JSONField(blank=True, default=list)),
                ("global_batch_size", models.PositiveIntegerField()),
                ("batch_size_min", models.PositiveIntegerField(blank=True, null=True)),
                ("batch_size_max", models.PositiveIntegerField(blank=True, null=True)),
                ("num_virtual_nodes", models.PositiveIntegerField()),
                ("seed", models.BigIntegerField(default=0)),
                (
                    "reduction",
                    models.CharField(
                        choices=[("exact", "exact"), ("fast", "fast")],
                        default="exact",
                        max_length=10,
                    ),
                ),
                ("shuffle", models.BooleanField(default=True)),
                (
                    "on_nonfinite",
                    models.CharField(
                        choices=[("stop", "stop"), ("continue", "continue")],
                        default="stop",
                        max_length=10,
                    ),
                ),
                ("selection", models.JSONField(blank=True, default=dict)),
                ("most_chosen", models.JSONField(blank=True, default=list, editable=False)),
                ("selection_ended", models.JSONField(blank=True, default=dict, editable=False)),
                ("tuning", models.JSONField(blank=True, default=dict)),
                ("adoption", models.JSONField(blank=True, default=dict, editable=False)),
                ("adopted", models.PositiveIntegerField(default=0)),
                (
                    "stop_kind",
                    models.CharField(
                        choices=[("steps", "steps"), ("epochs", "epochs"), ("metric", "metric")],
                        max_length=10,
                    ),
                ),
                ("stop_limit", models.PositiveIntegerField()),
                ("stop_metric", models.CharField(blank=True, max_length=100)),
                ("stop_target", models.FloatField(blank=True, null=True)),
                ("stop_higher_is_better", models.BooleanField(default=True)),
                ("min_accelerators", models.PositiveIntegerField(default=1)),
                ("max_accelerators", models.PositiveIntegerField()),
                ("accepted_kinds", models.JSONField(blank=True, default=list)),
                ("allow_mixed_kinds", models.BooleanField(default=False)),
                (
                    "tier",
                    models.CharField(
                        choices=[("urgent", "urgent"), ("normal", "normal"), ("idle", "idle")],
                        default="normal",
                        max_length=10,
                    ),
                ),
                ("priority", models.PositiveSmallIntegerField(default=100)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("validating", "validating"),
                            ("invalid", "invalid"),
                            ("pending", "pending"),
                            ("starting", "starting"),
                            ("running", "running"),
                            ("preempting", "preempting"),
                            ("paused", "paused"),
                            ("finished", "finished"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="validating",
                        max_length=12,
                    ),
                ),
                ("status_code", models.CharField(blank=True, max_length=40)),
                ("status_reason", models.TextField(blank=True)),
                ("policy_reason", models.TextField(blank=True)),
                ("error_field", models.CharField(blank=True, max_length=60)),
                ("error_traceback", models.TextField(blank=True)),
                ("version", models.PositiveIntegerField(default=1)),
                ("revision", models.PositiveIntegerField(default=1)),
                ("generation", models.PositiveIntegerField(default=0)),
                ("next_slot", models.PositiveIntegerField(default=0)),
                ("restarts", models.PositiveSmallIntegerField(default=0)),
                ("pause_requested", models.BooleanField(default=False)),
                ("save_request", models.PositiveBigIntegerField(default=0)),
                ("fork_deadline_at", models.DateTimeField(blank=True, null=True)),
                ("submitted_at", models.DateTimeField()),
                ("pending_since", models.DateTimeField(blank=True, null=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("duration_s", models.FloatField(default=0.0)),
                ("files_deleted_at", models.DateTimeField(blank=True, null=True)),
                ("results_claimed_at", models.DateTimeField(blank=True, null=True)),
                ("facts", models.JSONField(blank=True, default=dict)),
                ("step", models.PositiveBigIntegerField(default=0)),
                ("epoch", models.PositiveIntegerField(default=0)),
                ("loss", models.FloatField(blank=True, null=True)),
                ("examples_per_s", models.FloatField(blank=True, null=True)),
                ("metrics", models.JSONField(blank=True, default=dict)),
                ("nonfinite", models.JSONField(blank=True, default=dict)),
                ("digest", models.CharField(blank=True, max_length=64)),
                ("mix_finding", models.CharField(blank=True, max_length=200)),
                ("throughput_by_count", models.JSONField(blank=True, default=dict)),
                ("report_clock", models.JSONField(blank=True, default=dict)),
                ("batch_size", models.PositiveIntegerField(blank=True, null=True)),
                ("moves", models.JSONField(blank=True, default=dict)),
                ("noise", models.JSONField(blank=True, default=dict)),
                ("attained_accelerator_s", models.FloatField(default=0.0)),
                (
                    "forked_from",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="forks",
                        to="jobs.job",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "source_job",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="used_by",
                        to="jobs.job",
                    ),
                ),
                (
                    "trial_of",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="trial_jobs",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["owner", "-id"], name="job_by_owner"),
                    models.Index(fields=["owner", "status", "-id"], name="job_by_owner_status"),
                    models.Index(fields=["status", "id"], name="job_by_status"),
                    models.Index(fields=["priority", "id"], name="job_by_priority"),
                    models.Index(fields=["tier", "id"], name="job_by_tier"),
                    models.Index(fields=["name", "id"], name="job_by_name"),
                    models.Index(fields=["duration_s", "id"], name="job_by_duration"),
                    models.Index(fields=["submitted_at", "id"], name="job_by_submission"),
                    models.Index(fields=["template", "id"], name="job_by_template"),
                    models.Index(
                        condition=models.Q(("fork_deadline_at__isnull", False)),
                        fields=["forked_from"],
                        name="job_awaits_state",
                    ),
                    models.Index(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "paused",
                                    "pending",
                                    "preempting",
                                    "running",
                                    "starting",
                                    "validating",
                                ],
                            )
                        ),
                        fields=["id"],
                        name="job_live",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "cancelled",
                                    "failed",
                                    "finished",
                                    "invalid",
                                    "paused",
                                    "pending",
                                    "preempting",
                                    "running",
                                    "starting",
                                    "validating",
                                ],
                            )
                        ),
                        name="job_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("global_batch_size__gte", models.F("num_virtual_nodes")),
                            ("num_virtual_nodes__gte", 1),
                        ),
                        name="job_batch_holds_virtual_nodes",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("batch_size_max__isnull", True), ("batch_size_min__isnull", True)
                            ),
                            models.Q(
                                ("batch_size_max__gte", models.F("global_batch_size")),
                                ("batch_size_max__isnull", False),
                                ("batch_size_min__gte", models.F("num_virtual_nodes")),
                                ("batch_size_min__isnull", False),
                                ("batch_size_min__lte", models.F("global_batch_size")),
                            ),
                            _connector="OR",
                        ),
                        name="job_batch_size_in_bounds",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_accelerators__lte", models.F("num_virtual_nodes")),
                            ("min_accelerators__gte", 1),
                            ("min_accelerators__lte", models.F("max_accelerators")),
                        ),
                        name="job_accelerators_in_bounds",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tier__in", ["idle", "normal", "urgent"])),
                        name="job_tier_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", 1), ("priority__lte", 1000)),
                        name="job_priority_in_bounds",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("stop_limit__gte", 1)), name="job_stop_limit_positive"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("stop_kind", "metric"), _negated=True),
                            models.Q(
                                ("stop_target__isnull", False),
                                models.Q(("stop_metric", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="job_metric_stop_is_whole",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("task", "predict"), _negated=True),
                            models.Q(
                                ("shuffle", False), ("stop_kind", "epochs"), ("stop_limit", 1)
                            ),
                            _connector="OR",
                        ),
                        name="job_prediction_is_one_pass",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("source_job__isnull", True), ("source_sha256", "")),
                            models.Q(
                                ("source_job__isnull", False),
                                ("task", "predict"),
                                models.Q(("source_sha256", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="job_source_is_whole",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", False),
                                ("status__in", ["cancelled", "failed", "finished", "invalid"]),
                            ),
                            models.Q(
                                models.Q(
                                    ("status__in", ["cancelled", "failed", "finished", "invalid"]),
                                    _negated=True,
                                ),
                                ("ended_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="job_ended_at_when_ended",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PolicyState",
            fields=[
                ("policy", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("state", models.JSONField()),
            ],
        ),
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(unique=True)),
                ("revision", models.PositiveIntegerField(default=0)),
                ("summed_revision", models.PositiveIntegerField(null=True)),
                ("idle_percent", models.FloatField(null=True)),
                ("has_idle", models.BooleanField(default=True)),
                ("held_over", models.JSONField(default=list)),
            ],
            options={
                "ordering": ("day",),
            },
        ),
        migrations.CreateModel(
            name="AcceleratorPrice",
            fields=[
                ("kind", models.CharField(max_length=40, primary_key=True, serialize=False)),
                (
                    "per_hour",
                    models.FloatField(
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ]
                    ),
                ),
            ],
            options={
                "ordering": ("kind",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("per_hour__gte", 0.0), ("per_hour__lte", 1000000.0)),
                        name="price_in_range",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("scopes", models.JSONField(default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("actor", models.CharField(max_length=160)),
                ("action", models.CharField(max_length=40)),
                ("object", models.CharField(blank=True, max_length=200)),
                ("address", models.CharField(blank=True, max_length=45)),
                ("user_agent", models.CharField(blank=True, max_length=200)),
                ("details", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["at"], name="audit_entry_by_time"),
                    models.Index(fields=["action", "actor", "object"], name="audit_entry_by_act"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ClusterSetting",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False),
                ),
                ("policy", models.CharField(max_length=40)),
                ("version", models.PositiveIntegerField(default=1)),
                ("changed_by", models.CharField(blank=True, max_length=160)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("watched_at", models.DateTimeField(blank=True, null=True)),
                ("watch_since", models.DateTimeField(blank=True, null=True)),
                ("cycle_failed_at", models.DateTimeField(blank=True, null=True)),
                ("cycle_failure", models.TextField(blank=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="one_cluster_setting"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="JobAttempts",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="attempts",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("furthest_step", models.PositiveBigIntegerField(default=0)),
                ("restarts", models.PositiveSmallIntegerField(default=0)),
                ("recoveries", models.PositiveSmallIntegerField(default=0)),
                ("crashes", models.PositiveSmallIntegerField(default=0)),
                ("crash_generation", models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="JobEstimates",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="estimates",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("step", models.PositiveBigIntegerField(default=0)),
                ("useful_examples", models.FloatField(default=0.0)),
                ("samples", models.JSONField(blank=True, default=list)),
                ("code_samples", models.JSONField(blank=True, default=list)),
                ("throughput", models.JSONField(blank=True, default=dict)),
                ("losses", models.JSONField(blank=True, default=list)),
                ("loss_fit", models.JSONField(blank=True, default=dict)),
                ("updated_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="JobForecast",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="forecast",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("expected_start_earliest_at", models.DateTimeField(blank=True, null=True)),
                ("expected_start_latest_at", models.DateTimeField(blank=True, null=True)),
                ("expected_start_changes", models.PositiveIntegerField(default=0)),
                ("expected_start_changed_at", models.DateTimeField(blank=True, null=True)),
                ("resized_end_earliest_at", models.DateTimeField(blank=True, null=True)),
                ("resized_end_latest_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Node",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63, unique=True)),
                ("host", models.CharField(max_length=253)),
                ("first_port", models.PositiveIntegerField()),
                ("last_port", models.PositiveIntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[("online", "online"), ("lost", "lost")],
                        default="online",
                        max_length=10,
                    ),
                ),
                ("is_cordoned", models.BooleanField(default=False)),
                ("is_draining", models.BooleanField(default=False)),
                ("cordoned_by", models.CharField(blank=True, max_length=160)),
                ("cordon_reason", models.TextField(blank=True)),
                ("quarantined_until", models.DateTimeField(blank=True, null=True)),
                ("quarantined_at", models.DateTimeField(blank=True, null=True)),
                ("num_quarantines", models.PositiveSmallIntegerField(default=0)),
                ("quarantine_reason", models.TextField(blank=True)),
                ("maintenance_from", models.DateTimeField(blank=True, null=True)),
                ("maintenance_until", models.DateTimeField(blank=True, null=True)),
                ("proposed_shape", models.JSONField(blank=True, null=True)),
                ("isolation", models.CharField(default="none", max_length=10)),
                ("boot_id", models.CharField(max_length=64)),
                ("agent_token_digest", models.CharField(max_length=64, unique=True)),
                ("agent_token_issued_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "next_agent_token_digest",
                    models.CharField(blank=True, db_index=True, max_length=64),
                ),
                ("last_seen_at", models.DateTimeField()),
                ("enrolled_at", models.DateTimeField(auto_now_add=True)),
                ("removed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("first_port__gte", 1),
                            ("first_port__lte", models.F("last_port")),
                            ("last_port__lte", 65535),
                        ),
                        name="node_ports_ascend",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("is_draining", False), ("is_cordoned", True), _connector="OR"
                        ),
                        name="node_draining_is_cordoned",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=40)),
                ("actor", models.CharField(blank=True, max_length=160)),
                ("message", models.TextField()),
                ("data", models.JSONField(blank=True, default=dict)),
                ("at", models.DateTimeField()),
                (
                    "job",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="jobs.job",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="jobs.node",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["job", "-id"], name="event_by_job"),
                    models.Index(fields=["node", "-id"], name="event_by_node"),
                    models.Index(fields=["kind", "at"], name="event_by_kind"),
                ],
            },
        ),
        migrations.CreateModel(
            name="EnrolmentToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="jobs.node",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Accelerator",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("index", models.PositiveSmallIntegerField()),
                ("kind", models.CharField(max_length=40)),
                ("name", models.CharField(max_length=120)),
                ("memory_bytes", models.BigIntegerField(default=0)),
                ("threads", models.PositiveSmallIntegerField(default=0)),
                ("uuid", models.CharField(blank=True, max_length=80)),
                ("is_present", models.BooleanField(default=True)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="accelerators",
                        to="jobs.node",
                    ),
                ),
            ],
            options={
                "ordering": ("node_id", "index"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("node", "index"), name="accelerator_index_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("memory_bytes__gte", 0)),
                        name="accelerator_memory_not_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationChannel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                (
                    "kind",
                    models.CharField(
                        choices=[("webhook", "webhook"), ("email", "email"), ("chat", "chat")],
                        max_length=10,
                    ),
                ),
                ("address", models.TextField()),
                ("shown_address", models.CharField(max_length=200)),
                ("signing_key", models.TextField(blank=True)),
                ("events", models.JSONField(default=list)),
                ("is_cluster_wide", models.BooleanField(default=False)),
                ("paused_reason", models.CharField(blank=True, max_length=300)),
                ("num_failures", models.PositiveIntegerField(default=0)),
                ("num_dropped", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notification_channels",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "name"), name="channel_name_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationDelivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=40)),
                ("body", models.JSONField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("delivered", "delivered"),
                            ("failed", "failed"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("num_attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_try_at", models.DateTimeField()),
                ("answer", models.CharField(blank=True, max_length=300)),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="jobs.notificationchannel",
                    ),
                ),
                (
                    "event",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="notifications",
                        to="jobs.event",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "notification deliveries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "waiting")),
                        fields=["next_try_at"],
                        name="delivery_due",
                    ),
                    models.Index(fields=["channel", "-id"], name="delivery_by_channel"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Project",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator("^[a-z0-9][a-z0-9-]{0,39}$")
                        ],
                    ),
                ),
                ("description", models.CharField(blank=True, max_length=300)),
                (
                    "guaranteed",
                    models.PositiveIntegerField(
                        default=0, validators=[django.core.validators.MaxValueValidator(100000)]
                    ),
                ),
                (
                    "limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                    ),
                ),
                (
                    "user_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                    ),
                ),
                (
                    "live_jobs_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                    ),
                ),
                (
                    "user_live_jobs_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                    ),
                ),
                ("guaranteed_by_kind", models.JSONField(blank=True, default=dict)),
                ("limit_by_kind", models.JSONField(blank=True, default=dict)),
                ("is_closed", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                ("deleted_at", models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("limit", None), ("guaranteed__lte", models.F("limit")), _connector="OR"
                        ),
                        name="project_guarantee_within_limit",
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="project",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="jobs.project",
            ),
        ),
        migrations.CreateModel(
            name="ProjectMembership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "viewer"),
                            ("member", "member"),
                            ("operator", "operator"),
                            ("admin", "admin"),
                        ],
                        default="member",
                        max_length=10,
                    ),
                ),
                ("since", models.DateTimeField()),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="jobs.project",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("user__username",),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "project"), name="membership_once"),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["admin", "member", "operator", "viewer"])),
                        name="membership_role_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ReadingBin",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("width_s", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("read_at", models.DateTimeField()),
                ("num_readings", models.PositiveIntegerField()),
                ("utilisation_percent", models.FloatField(null=True)),
                ("utilisation_peak", models.FloatField(null=True)),
                ("memory_bytes", models.FloatField(null=True)),
                ("memory_peak", models.FloatField(null=True)),
                ("temperature_c", models.FloatField(null=True)),
                ("power_w", models.FloatField(null=True)),
                (
                    "accelerator",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.accelerator",
                    ),
                ),
            ],
            options={
                "ordering": ("accelerator_id", "width_s", "at"),
                "indexes": [models.Index(fields=["width_s", "at"], name="reading_bin_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("accelerator", "width_s", "at"), name="reading_bin_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Replay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("requested_at", models.DateTimeField()),
                ("policy", models.CharField(max_length=40)),
                ("accelerators", models.JSONField(default=dict)),
                ("resize_cost_s", models.FloatField(blank=True, null=True)),
                ("start_at", models.DateTimeField()),
                ("end_at", models.DateTimeField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("progress", models.FloatField(default=0.0)),
                ("beat_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("error", models.TextField(blank=True)),
                ("result", models.JSONField(blank=True, default=dict)),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="SavedFilter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                ("query", models.CharField(max_length=2000)),
                ("changed_at", models.DateTimeField()),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="saved_filters",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "name"), name="saved_filter_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="SearchTerm",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("term", models.CharField(max_length=300)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="search_terms",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("term", "job"), name="search_term_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Secret",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=64)),
                ("sealed", models.TextField()),
                ("created_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="secrets",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "name"), name="secret_name_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="StartFailure",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("count", models.PositiveSmallIntegerField(default=0)),
                ("until_at", models.DateTimeField()),
                (
                    "accelerator",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.accelerator",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="start_failures",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "accelerator_id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job", "accelerator"), name="start_failure_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="StepReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("generation", models.PositiveIntegerField()),
                ("first_step", models.PositiveBigIntegerField()),
                ("last_step", models.PositiveBigIntegerField()),
                ("epoch", models.PositiveIntegerField()),
                ("examples", models.PositiveBigIntegerField()),
                ("candidates", models.PositiveBigIntegerField(default=0)),
                ("analysed", models.PositiveBigIntegerField(default=0)),
                ("pass_s", models.FloatField(default=0.0)),
                ("seconds", models.FloatField()),
                ("loss", models.FloatField(blank=True, null=True)),
                ("num_accelerators", models.PositiveIntegerField()),
                ("noise_sqr", models.FloatField(blank=True, null=True)),
                ("noise_var", models.FloatField(blank=True, null=True)),
                ("batch_size", models.PositiveIntegerField(blank=True, null=True)),
                ("learning_rate", models.FloatField(blank=True, null=True)),
                ("at", models.DateTimeField()),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="step_reports",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "last_step"),
                "indexes": [
                    models.Index(fields=["job", "last_step"], name="steps_by_job"),
                    models.Index(fields=["at"], name="steps_by_time"),
                    models.Index(
                        condition=models.Q(("analysed__gt", 0)),
                        fields=["job", "last_step"],
                        name="analysed_steps_by_job",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job", "generation", "first_step"), name="steps_reported_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("seconds__gt", 0)), name="steps_take_time"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StepTimeProfile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code_sha256", models.CharField(max_length=64)),
                ("settings_sha256", models.CharField(max_length=64)),
                (
                    "measures",
                    models.CharField(
                        choices=[("compute", "compute"), ("sync", "sync")], max_length=10
                    ),
                ),
                ("kind", models.CharField(max_length=200)),
                ("num_rows", models.PositiveSmallIntegerField(default=1)),
                ("samples", models.JSONField(default=dict)),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("code_sha256", "settings_sha256", "measures", "kind", "num_rows"),
                        name="step_time_profile_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Sweep",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("template", models.CharField(blank=True, max_length=60)),
                ("space", models.JSONField()),
                ("num_draws", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("seed", models.BigIntegerField(default=0)),
                ("max_running", models.PositiveSmallIntegerField()),
                ("is_paused", models.BooleanField(default=False)),
                ("submitted_at", models.DateTimeField()),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sweeps",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("max_running__gte", 1)), name="sweep_runs_something"
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="sweep",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="jobs.sweep",
            ),
        ),
        migrations.CreateModel(
            name="Trial",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("search", models.PositiveIntegerField()),
                ("values", models.JSONField()),
                ("steps", models.PositiveBigIntegerField()),
                ("start_loss", models.FloatField(blank=True, null=True)),
                ("losses", models.JSONField(blank=True, default=list)),
                (
                    "verdict",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("converging", "converging"),
                            ("unstable", "unstable"),
                            ("diverged", "diverged"),
                        ],
                        max_length=12,
                    ),
                ),
                ("speed", models.FloatField()),
                (
                    "end",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("kept", "kept"),
                            ("slower", "slower"),
                            ("unstable", "unstable"),
                            ("diverged", "diverged"),
                            ("cannot_win", "cannot_win"),
                            ("unfinished", "unfinished"),
                            ("overtaken", "overtaken"),
                        ],
                        max_length=12,
                    ),
                ),
                (
                    "search_end",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("alike", "alike"),
                            ("trials", "trials"),
                            ("share", "share"),
                            ("none_converged", "none_converged"),
                            ("job_ended", "job_ended"),
                        ],
                        max_length=16,
                    ),
                ),
                ("is_running", models.BooleanField(default=False)),
                ("generation", models.PositiveIntegerField()),
                ("step", models.PositiveBigIntegerField()),
                ("at", models.DateTimeField()),
                (
                    "child",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tried_as",
                        to="jobs.job",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="trials",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "number"),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="trial_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="TuningRound",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("num_steps", models.PositiveIntegerField()),
                ("num_trials", models.PositiveSmallIntegerField()),
                ("begun_at", models.DateTimeField()),
                ("start_step", models.PositiveBigIntegerField(blank=True, null=True)),
                ("start_loss", models.FloatField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("outcome", models.CharField(blank=True, max_length=20)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tuning_rounds",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "number"),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="tuning_round_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("job",),
                        name="tuning_round_one_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageSum",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("term", models.CharField(blank=True, max_length=300)),
                ("kind", models.CharField(blank=True, max_length=40)),
                ("held", models.DurationField(default=datetime.timedelta)),
                ("idle_s", models.FloatField(default=0.0)),
                ("paused_s", models.FloatField(default=0.0)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.project",
                    ),
                ),
            ],
            options={
                "ordering": ("day",),
                "indexes": [models.Index(fields=["day", "term"], name="usage_sum_by_day")],
            },
        ),
        migrations.CreateModel(
            name="UserLimits",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="limits",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "priority_ceiling",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000),
                        ],
                    ),
                ),
                (
                    "tier_ceiling",
                    models.CharField(
                        blank=True,
                        choices=[("urgent", "urgent"), ("normal", "normal"), ("idle", "idle")],
                        default=None,
                        max_length=10,
                        null=True,
                    ),
                ),
                (
                    "share_factor",
                    models.FloatField(
                        default=1.0,
                        validators=[
                            django.core.validators.MinValueValidator(0.1),
                            django.core.validators.MaxValueValidator(10.0),
                        ],
                    ),
                ),
                (
                    "live_jobs_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                    ),
                ),
                (
                    "storage_limit_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1152921504606846976)],
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "user limits",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("priority_ceiling", None),
                                ("priority_ceiling__range", (1, 1000)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("tier_ceiling", None),
                                ("tier_ceiling__in", ["urgent", "normal", "idle"]),
                                _connector="OR",
                            ),
                            ("share_factor__range", (0.1, 10.0)),
                            models.Q(
                                ("live_jobs_limit", None),
                                ("live_jobs_limit__range", (1, 100000)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("storage_limit_bytes", None),
                                ("storage_limit_bytes__lte", 1152921504606846976),
                                _connector="OR",
                            ),
                        ),
                        name="user_limits_in_range",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Validation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job_fields", models.JSONField(blank=True, default=dict)),
                (
                    "code",
                    models.FileField(
                        blank=True, max_length=200, upload_to=jobs.models.jobs.code_path
                    ),
                ),
                ("code_sha256", models.CharField(blank=True, db_index=True, max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("passed", "passed"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="waiting",
                        max_length=12,
                    ),
                ),
                ("status_code", models.CharField(blank=True, max_length=40)),
                ("status_reason", models.TextField(blank=True)),
                ("error_field", models.CharField(blank=True, max_length=60)),
                ("error_traceback", models.TextField(blank=True)),
                ("facts", models.JSONField(blank=True, default=dict)),
                ("attempt", models.PositiveSmallIntegerField(default=0)),
                ("deadline_at", models.DateTimeField(blank=True, null=True)),
                ("requested_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "job",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="validation",
                        to="jobs.job",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="validations",
                        to="jobs.node",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="validations",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status__in", ["running", "waiting"])),
                        fields=["id"],
                        name="validation_open",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["cancelled", "failed", "passed", "running", "waiting"])
                        ),
                        name="validation_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("deadline_at__isnull", False), ("status", "running")),
                            models.Q(
                                models.Q(("status", "running"), _negated=True),
                                ("deadline_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="validation_deadline_when_running",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExternalIdentity",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("issuer", models.CharField(max_length=500)),
                ("subject", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField()),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="external_identities",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "external identities",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("issuer", "subject"), name="identity_of_one_user"
                    ),
                    models.UniqueConstraint(
                        fields=("issuer", "user"), name="one_identity_per_issuer"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=120)),
                ("body_sha256", models.CharField(max_length=64)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="idempotency_keys",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="jobs.job"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("user", "key"), name="idempotency_key_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Generation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("previous", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("preparing", "preparing"),
                            ("switching", "switching"),
                            ("active", "active"),
                            ("closed", "closed"),
                            ("aborted", "aborted"),
                        ],
                        max_length=10,
                    ),
                ),
                ("membership", jobs.models.resizes.MembershipField()),
                ("num_members", models.PositiveIntegerField()),
                ("num_switched", models.PositiveIntegerField(default=0)),
                ("reason", models.TextField(blank=True)),
                ("actor", models.CharField(blank=True, max_length=160)),
                ("requested_at", models.DateTimeField()),
                ("ready_at", models.DateTimeField(blank=True, null=True)),
                ("switch_ordered_at", models.DateTimeField(blank=True, null=True)),
                ("switched_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                ("step", models.PositiveBigIntegerField(blank=True, null=True)),
                ("pause_s", models.FloatField(blank=True, null=True)),
                ("bytes_moved", models.PositiveBigIntegerField(blank=True, null=True)),
                ("digest_before", models.CharField(blank=True, max_length=64)),
                ("digest_after", models.CharField(blank=True, max_length=64)),
                ("reported_at", models.DateTimeField(blank=True, null=True)),
                ("lost", models.JSONField(blank=True, default=list)),
                ("first_step_at", models.DateTimeField(blank=True, null=True)),
                ("speeds", models.JSONField(blank=True, default=dict)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="generations",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "number"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("phase__in", ["preparing", "switching", "active"])),
                        fields=["job"],
                        name="generation_open",
                    ),
                    models.Index(fields=["switched_at"], name="generation_by_switch"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job", "number"), name="generation_number_once"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("phase__in", ["preparing", "switching"])),
                        fields=("job",),
                        name="generation_one_under_way",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("phase", "active")),
                        fields=("job",),
                        name="generation_one_active",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExamplePreview",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("place", models.PositiveBigIntegerField()),
                ("label", models.CharField(blank=True, max_length=60)),
                ("image", models.BinaryField(blank=True, null=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="example_previews",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("job", "place"), name="example_preview_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="EpochReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("epoch", models.PositiveIntegerField()),
                ("generation", models.PositiveIntegerField()),
                ("step", models.PositiveBigIntegerField()),
                ("logs", models.JSONField()),
                ("at", models.DateTimeField()),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="epoch_reports",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "epoch"),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "epoch"), name="epoch_reported_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Artifact",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                (
                    "file",
                    models.FileField(max_length=200, upload_to=jobs.models.jobs.artifact_path),
                ),
                ("sha256", models.CharField(max_length=64)),
                ("size_bytes", models.PositiveBigIntegerField()),
                ("generation", models.PositiveIntegerField()),
                ("step", models.PositiveBigIntegerField(blank=True, null=True)),
                ("epoch", models.PositiveIntegerField(blank=True, null=True)),
                ("at", models.DateTimeField()),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="artifacts",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "name"), name="artifact_name_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Allocation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slot", models.PositiveIntegerField()),
                ("granted_generation", models.PositiveIntegerField()),
                ("granted_at", models.DateTimeField()),
                ("ready_at", models.DateTimeField(blank=True, null=True)),
                ("joined_at", models.DateTimeField(blank=True, null=True)),
                ("release_requested_at", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
                ("left_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("released_at", models.DateTimeField(blank=True, null=True)),
                ("exit_code", models.IntegerField(blank=True, null=True)),
                ("switched_generation", models.PositiveIntegerField(default=0)),
                ("stalled_at", models.DateTimeField(blank=True, null=True)),
                ("stalled_step", models.PositiveBigIntegerField(blank=True, null=True)),
                ("unreachable", models.JSONField(blank=True, default=list)),
                ("lost_code", models.CharField(blank=True, max_length=40)),
                ("profile_requested", models.BooleanField(default=False)),
                ("phase", models.CharField(blank=True, max_length=20)),
                ("last_sequence", models.IntegerField(default=-1)),
                ("adoption_held", models.PositiveIntegerField(default=0)),
                (
                    "accelerator",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="allocations",
                        to="jobs.accelerator",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="allocations",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=["job", "slot"],
                        name="allocation_open",
                    ),
                    models.Index(
                        fields=["released_at", "granted_at"], name="allocation_by_release"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=("accelerator",),
                        name="allocation_accelerator_held_once",
                    ),
                    models.UniqueConstraint(fields=("job", "slot"), name="allocation_slot_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobMetric",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("best", models.FloatField()),
                ("best_epoch", models.PositiveIntegerField()),
                ("last", models.FloatField()),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="metric_values",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["name", "best", "job"], name="job_metric_by_best")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "name"), name="job_metric_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="LogChunk",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slot", models.PositiveIntegerField()),
                ("offset", models.PositiveBigIntegerField()),
                ("size_bytes", models.PositiveIntegerField()),
                ("text", models.TextField(blank=True)),
                ("unfinished", models.CharField(blank=True, default="", max_length=16)),
                ("at", models.DateTimeField()),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_chunks",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "ordering": ("job_id", "slot", "offset"),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "slot", "offset"), name="log_chunk_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="MaintenanceWindow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=500)),
                ("planned_by", models.CharField(max_length=160)),
                ("created_at", models.DateTimeField()),
                ("began_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("is_cancelled", models.BooleanField(default=False)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="windows",
                        to="jobs.node",
                    ),
                ),
            ],
            options={
                "ordering": ("starts_at", "id"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at", None)),
                        fields=["starts_at"],
                        name="maintenance_open",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("starts_at__lt", models.F("ends_at"))),
                        name="maintenance_starts_first",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["project", "-id"], name="job_by_project"),
        ),
        migrations.RunPython(guard, unguard),
    ]
