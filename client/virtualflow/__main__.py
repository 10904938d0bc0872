"""Program `virtualflow`, also as `python -m virtualflow`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while modules load ends the program without a traceback; `main` handles it from then.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from virtualflow.cli.main import main

if __name__ == "__main__":
    main()
