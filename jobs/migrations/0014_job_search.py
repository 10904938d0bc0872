"""Tags and notes of jobs, and rows by which lists of jobs are searched and sorted."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0013_expected_start_changes"),
    ]

    operations = [
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
            ],
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
            ],
        ),
        migrations.RemoveIndex(
            model_name="job",
            name="job_by_status",
        ),
        migrations.AddField(
            model_name="job",
            name="duration_s",
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name="job",
            name="note",
            field=models.CharField(blank=True, max_length=1000),
        ),
        migrations.AddField(
            model_name="job",
            name="tags",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["status", "id"], name="job_by_status"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["priority", "id"], name="job_by_priority"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["name", "id"], name="job_by_name"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["duration_s", "id"], name="job_by_duration"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["submitted_at", "id"], name="job_by_submission"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["template", "id"], name="job_by_template"),
        ),
        migrations.AddField(
            model_name="jobmetric",
            name="job",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="metric_values",
                to="jobs.job",
            ),
        ),
        migrations.AddField(
            model_name="searchterm",
            name="job",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="search_terms",
                to="jobs.job",
            ),
        ),
        migrations.AddIndex(
            model_name="jobmetric",
            index=models.Index(fields=["name", "best", "job"], name="job_metric_by_best"),
        ),
        migrations.AddConstraint(
            model_name="jobmetric",
            constraint=models.UniqueConstraint(fields=("job", "name"), name="job_metric_once"),
        ),
        migrations.AddConstraint(
            model_name="searchterm",
            constraint=models.UniqueConstraint(fields=("term", "job"), name="search_term_once"),
        ),
    ]
