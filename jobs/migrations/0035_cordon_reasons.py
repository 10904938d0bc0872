from typing import Any

from django.db import migrations, models


def reasons_fill(apps: Any, _editor: Any) -> None:
    """Give cordoned nodes actor and reason of their newest cordon."""
    events = apps.get_model("jobs", "Event").objects
    for node in apps.get_model("jobs", "Node").objects.filter(is_cordoned=True):
        kinds = ("node_cordoned", "node_drained")
        event = events.filter(node=node, kind__in=kinds).order_by("-id").first()
        if event is not None:
            # Earlier versions left the actor of an automatic cordon empty.
            node.cordoned_by = event.actor or "system"
            node.cordon_reason = event.data.get("reason", "")
            node.save(update_fields=["cordoned_by", "cordon_reason"])


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0034_resize_costs_and_ends"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="cordoned_by",
            field=models.CharField(blank=True, max_length=160),
        ),
        migrations.AddField(
            model_name="node",
            name="cordon_reason",
            field=models.TextField(blank=True),
        ),
        migrations.RunPython(reasons_fill, migrations.RunPython.noop),
    ]
