from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("jobs", "0015_job_nonfinite"),)

    operations = (
        migrations.AddField(
            model_name="logchunk",
            name="unfinished",
            field=models.CharField(blank=True, default="", max_length=16),
        ),
        migrations.AlterField(
            model_name="logchunk", name="text", field=models.TextField(blank=True)
        ),
    )
