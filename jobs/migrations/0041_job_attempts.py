from django.db import migrations, models

_COLUMNS = (
    "furthest_step",
    "restarts_without_progress",
    "recoveries_without_progress",
    "crashes_without_progress",
    "crash_generation",
)
_COPY = """
    INSERT INTO jobs_jobattempts (
        job_id, furthest_step, restarts, recoveries, crashes, crash_generation
    )
    SELECT
        id, furthest_step, restarts_without_progress, recoveries_without_progress,
        crashes_without_progress, crash_generation
    FROM jobs_job
    WHERE furthest_step > 0 OR restarts_without_progress > 0
        OR recoveries_without_progress > 0 OR crashes_without_progress > 0
"""
_COPY_BACK = """
    UPDATE jobs_job SET
        furthest_step = counted.furthest_step,
        restarts_without_progress = counted.restarts,
        recoveries_without_progress = counted.recoveries,
        crashes_without_progress = counted.crashes,
        crash_generation = counted.crash_generation
    FROM jobs_jobattempts AS counted WHERE counted.job_id = jobs_job.id
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0040_analysed_steps")]

    operations = [
        migrations.CreateModel(
            name="JobAttempts",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=models.deletion.CASCADE,
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
        migrations.RunSQL([_COPY], [_COPY_BACK]),
        *(migrations.RemoveField(model_name="job", name=name) for name in _COLUMNS),
    ]
