"""Children that run Python as forks of the test: what they do and end with, without the seconds of importing PyTorch.

The fixture ``forked_interpreters`` (in conftest.py) puts :class:`ForkedInterpreter` in the place of
``subprocess.Popen``, for the test, for its children and for theirs. Commands other than this interpreter are executed.
A child begins as a new interpreter does: with the descriptors, folder, variables, signals, hooks and modules of user
programs that one has. Modules of libraries are there already; so a test that is about what a process imports, or about
variables that are read by an import, leaves the fixture out. So does one whose program changes between two children,
for it may be imported here already, and one that starts several workers of a sweep: forked beside the thread that
listens to another one, they may hang.
"""

import atexit
import gc
import logging
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch
import torch._dynamo  # as optimizers do, so that no fork has to
from memory_folder import folder_of_tests

import roundoff.agents.training.together  # noqa: F401  so that no fork has to

HERE = str(Path(__file__).parent)
PLAIN = {"-P"}  # options that a fork can have
_EXECUTED = subprocess.Popen


class ForkedInterpreter(subprocess.Popen):
    """A child process; ``begin`` is called in it first, and undoes what tests have changed."""

    begin = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        command = [] if isinstance(args, str | bytes | Path) else [os.fsdecode(word) for word in args]
        if command[:1] != [sys.executable] or executable or preexec_fn or not started_by(command[1:]):
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
        _, _, shell, *pipes, _restore, _gid, _gids, _uid, _umask, new_session, _group = rest
        assert close_fds
        assert not shell
        reading, _, _, writing, _, errors = pipes
        sys.audit("subprocess.Popen", sys.executable, args, cwd, env)
        env, folder = dict(os.environ if env is None else env), cwd or Path.cwd()
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*pipes)
            return None
        try:
            gc.freeze()  # nothing of the parent's is finalised here
            if new_session:
                os.setsid()
            for number, descriptor in enumerate((reading, writing, errors)):
                if descriptor != -1:
                    os.dup2(descriptor, number)
            let_go_of_descriptors(pass_fds)
            be_new(env, type(self).begin)
            os.chdir(folder)
            end(exit_status(command[1:]))
        finally:
            os._exit(1)


def use(patch):
    """Has Python in children forked; ``patch`` is a MonkeyPatch, which is undone in them."""

    def begin():
        patch.undo()
        subprocess.Popen = ForkedInterpreter  # for its own children

    patch.setattr(ForkedInterpreter, "begin", begin)
    patch.setattr(subprocess, "Popen", ForkedInterpreter)


def started_by(words):
    """Whether a fork can do what the interpreter does with these words."""
    while words and words[0] in PLAIN:
        words = words[1:]
    return bool(words) and (words[0] in ("-c", "-m") or not words[0].startswith("-"))


def let_go_of_descriptors(kept):
    """Puts nothing in the place of descriptors, so that no finaliser closes another one of the same number."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (int(entry.name) for entry in list(Path("/proc/self/fd").iterdir())):
        if number > 2 and number != nothing and number not in kept:
            with suppress(OSError):
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    for number in kept:
        os.set_inheritable(number, True)


def be_new(env, begin):
    """Leaves nothing of the test in this process but imported libraries."""
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    if begin:
        begin()
    torch.set_num_threads(1)  # the others have not come along
    temporary = str(folder_of_tests() / "pytest-of-")  # where tests write modules
    os.environ.clear()
    os.environ.update(env)
    for number, mode in enumerate(("r", "w", "w")):
        stream = open(number, mode, buffering=1 if number == 2 else -1, closefd=False)  # noqa: SIM115
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings._showwarnmsg_impl = lambda message: sys.stderr.write(warnings._formatwarnmsg(message))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(temporary):
            del sys.modules[name]
    asked = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = asked + [path for path in sys.path if not path.startswith((HERE, temporary))]


def exit_status(words):
    """Runs what the interpreter would, and returns what it would end with."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    safe = False
    while words[0] in PLAIN:
        safe, words = True, words[1:]
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path[:0] = [] if safe else [""]
            exec(compile(words[1], "<string>", "exec", dont_inherit=True), vars(main))
        elif words[0] == "-m":
            sys.argv = words[1:]
            sys.path[:0] = [] if safe else [str(Path.cwd())]
            sys.modules.pop(words[1], None)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[:0] = [] if safe else [str(Path(words[0]).resolve().parent)]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__.tb_next)  # from where the program begins
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def end(status):
    """Ends this process as an interpreter ends."""
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)
