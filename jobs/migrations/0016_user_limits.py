import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """A user's limits: the ceiling of priorities, and beside it a share factor and quotas."""

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("jobs", "0015_fill_job_search"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="priorityceiling", name="priority_ceiling_in_range"),
        migrations.RenameModel(old_name="PriorityCeiling", new_name="UserLimits"),
        migrations.AlterModelOptions(
            name="userlimits", options={"verbose_name_plural": "user limits"}
        ),
        migrations.RenameField(
            model_name="userlimits", old_name="ceiling", new_name="priority_ceiling"
        ),
        migrations.AddField(
            model_name="userlimits",
            name="live_jobs_limit",
            field=models.PositiveIntegerField(
                blank=True,
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(100000),
                ],
            ),
        ),
        migrations.AddField(
            model_name="userlimits",
            name="share_factor",
            field=models.FloatField(
                default=1.0,
                validators=[
                    django.core.validators.MinValueValidator(0.1),
                    django.core.validators.MaxValueValidator(10.0),
                ],
            ),
        ),
        migrations.AddField(
            model_name="userlimits",
            name="storage_limit_bytes",
            field=models.PositiveBigIntegerField(
                blank=True,
                null=True,
                validators=[django.core.validators.MaxValueValidator(1152921504606846976)],
            ),
        ),
        migrations.AlterField(
            model_name="userlimits",
            name="priority_ceiling",
            field=models.PositiveSmallIntegerField(
                blank=True,
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000),
                ],
            ),
        ),
        migrations.AlterField(
            model_name="userlimits",
            name="user",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="limits",
                serialize=False,
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddConstraint(
            model_name="userlimits",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("priority_ceiling", None),
                        ("priority_ceiling__range", (1, 1000)),
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
            ),
        ),
    ]
