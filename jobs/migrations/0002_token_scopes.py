from django.db import migrations

_NEW = {"read": "jobs:read", "write": "jobs:write"}


def scopes_rename(apps, _schema_editor):
    """Rename the scopes; a token of an admin loses admin rights until it is made again."""
    for token in apps.get_model("jobs", "ApiToken").objects.all():
        token.scopes = [_NEW.get(scope, scope) for scope in token.scopes]
        token.save(update_fields=["scopes"])


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [migrations.RunPython(scopes_rename, migrations.RunPython.noop)]
