from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0013_job_knowledge"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="is_draft",
            field=models.BooleanField(default=False),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("is_draft", True)), fields=["id"], name="job_draft"
            ),
        ),
    ]
