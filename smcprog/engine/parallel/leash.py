"""Run a module in a process that ends with the one that started it, whatever it is doing.

Run as a file, ``python leash.py MODULE ARGUMENTS``, so that nothing slow is imported before the
watch begins: a leader may be killed while its followers still load.
"""

import os
import runpy
import signal
import sys
import threading
import time

LOOK = 0.5
"""Seconds between two looks whether the leader is still there."""


def end_with(leader: int) -> None:
    """Watch a parent process, in a thread, and end this process when it is no more."""

    def watch() -> None:
        while os.getppid() == leader:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="smcprog-watch", daemon=True).start()


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are no top-level ones
    leader, sys.argv = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader's business
    end_with(leader)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
