"""The clock by which reported times are checked."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0017_selection_costs")]

    operations = [
        migrations.AddField("job", "report_clock", models.JSONField(default=dict, blank=True)),
    ]
