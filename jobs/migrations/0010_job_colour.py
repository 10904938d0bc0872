"""Colours stored with jobs, instead of one that follows from the number."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F


def colour_jobs(apps: Apps, _schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Give older jobs their colours in turn."""
    apps.get_model("jobs", "Job").objects.update(colour=F("id") % 12)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_selection")]

    operations = [
        migrations.AddField("job", "colour", models.PositiveSmallIntegerField(default=0)),
        migrations.RunPython(colour_jobs, migrations.RunPython.noop),
    ]
