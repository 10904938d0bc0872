from django.db import migrations, models

_COLUMNS = (
    "expected_start_earliest_at",
    "expected_start_latest_at",
    "expected_start_changes",
    "expected_start_changed_at",
    "resized_end_earliest_at",
    "resized_end_latest_at",
)
_COPY = """
    INSERT INTO jobs_jobforecast (
        job_id, expected_start_earliest_at, expected_start_latest_at, expected_start_changes,
        expected_start_changed_at, resized_end_earliest_at, resized_end_latest_at
    )
    SELECT
        id, expected_start_earliest_at, expected_start_latest_at, expected_start_changes,
        expected_start_changed_at, resized_end_earliest_at, resized_end_latest_at
    FROM jobs_job
    WHERE expected_start_latest_at IS NOT NULL OR expected_start_changes > 0
        OR resized_end_latest_at IS NOT NULL
"""
_COPY_BACK = """
    UPDATE jobs_job SET
        expected_start_earliest_at = told.expected_start_earliest_at,
        expected_start_latest_at = told.expected_start_latest_at,
        expected_start_changes = told.expected_start_changes,
        expected_start_changed_at = told.expected_start_changed_at,
        resized_end_earliest_at = told.resized_end_earliest_at,
        resized_end_latest_at = told.resized_end_latest_at
    FROM jobs_jobforecast AS told WHERE told.job_id = jobs_job.id
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0038_overtaken_trials")]

    operations = [
        migrations.CreateModel(
            name="JobForecast",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=models.deletion.CASCADE,
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
        migrations.RunSQL([_COPY], [_COPY_BACK]),
        *(migrations.RemoveField(model_name="job", name=name) for name in _COLUMNS),
    ]
