from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0014_job_drafts"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="on_nonfinite",
            field=models.CharField(
                choices=[("stop", "stop"), ("continue", "continue")], default="stop", max_length=10
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="nonfinite",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
