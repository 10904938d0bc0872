"""The command line `virtualflow`."""

from __future__ import annotations

import io
import signal
import sys

import click
from click.shell_completion import get_completion_class

from virtualflow import __version__
from virtualflow.cli import (
    account,
    cluster,
    filters,
    jobs,
    notifications,
    priorities,
    projects,
    screen,
    secrets,
    simulating,
    submitting,
    sweeping,
    users,
    windows,
)
from virtualflow.cli.common import CommandGroup, ExitCode, output_error_show

_NAME = "virtualflow"
_COMPLETION_VARIABLE = "_VIRTUALFLOW_COMPLETE"


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=_NAME)
def cli() -> None:
    """Train on a VirtualFlow site from a shell.

    `virtualflow login` once; VIRTUALFLOW_SERVER and VIRTUALFLOW_TOKEN win over it. With --json
    standard output is JSON and nothing else. Exit codes: 0 fine, 1 the job failed, 2 wrong use,
    3 refused by the site, 4 no usable answer, 5 time limit, 130 interrupted.
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    For bash: eval "$(virtualflow completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, _NAME, _COMPLETION_VARIABLE).source())


for _command in (
    account.login, account.logout,
    submitting.submit, submitting.validate, submitting.clone, submitting.fork,
    sweeping.sweep, sweeping.sweeps,
    jobs.watch, jobs.logs, jobs.ls, filters.filters, jobs.show, jobs.compare,
    jobs.download, jobs.tag, jobs.cancel, jobs.pause, jobs.resume, priorities.reprioritise,
    projects.projects, projects.usage, users.users, notifications.notifications,
    secrets.secrets,
    cluster.nodes, cluster.cordon, cluster.drain, cluster.uncordon,
    cluster.templates, simulating.simulate,
):  # fmt: skip
    cli.add_command(_command)
cluster.nodes.add_command(windows.window)


def main() -> None:
    """Run the command line and exit with a code of `ExitCode`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `virtualflow.__main__` leaves it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As Ctrl-C: a bar gives the terminal its cursor back, a download removes its part.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Not every terminal knows the characters of names, or those of tables; and a token
            # may come from a file of another encoding.
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(prog_name=_NAME, standalone_mode=False, complete_var=_COMPLETION_VARIABLE)
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except OSError as error:  # of help and version, which no command prints
        code = output_error_show(error)
    except click.Abort:
        screen.note("Interrupted.")
        code = ExitCode.INTERRUPTED
    sys.exit(code if isinstance(code, int) else ExitCode.FINE)
