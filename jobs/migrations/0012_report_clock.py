"""The clock by which reported times are checked."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_code_samples")]

    operations = [
        migrations.AddField("job", "report_clock", models.JSONField(default=dict, blank=True)),
    ]
