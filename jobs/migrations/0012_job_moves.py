from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_replays")]

    operations = [
        migrations.AddField(
            model_name="job", name="moves", field=models.JSONField(blank=True, default=dict)
        ),
    ]
