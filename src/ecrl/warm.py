"""Warm starts: a process that has imported what a job imports, and forks the job's process of each
attempt. Most of a short attempt is imports.

`note_imports` runs in an undisturbed attempt and leaves the names of the libraries' modules that it
imported. `main` is the program of the process that imports them beforehand, in the job's own
interpreter. It forks nothing unless a fork is as good as a fresh interpreter (`unlike_fresh`).

Never imported beforehand: modules of the job's own, and whatever is imported after the job's code
has changed its environment, which a library may read when it is imported.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import hashlib
import importlib
import importlib.machinery
import json
import os
import pickle
import random
import signal
import socket
import struct
import sys
import sysconfig
import threading
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

IMPORTS = "ECRL_IMPORTS"  # the folder in which `note_imports` leaves imports-PID.json
TAG = "ECRL_AUDIT_ARM"  # by which the processes of an arm are found, in /proc/PID/environ
TAG_BYTES = 4096
LENGTH = struct.Struct("!Q")
MOST_SAID = 1 << 20  # bytes of what imports print
_LOADERS = (importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader)
_SITE = ("site-packages", "dist-packages")
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci")
_ENVIRONMENT_EVENTS = ("os.putenv", "os.unsetenv")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# -- what an attempt imports


def library_folders() -> Tuple[str, ...]:
    """The folders of the standard library and of installed packages, each with a separator."""
    paths = sysconfig.get_paths()
    names = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths]
    names += [path for path in sys.path if os.path.basename(path.rstrip(os.sep)) in _SITE]
    return tuple(dict.fromkeys(os.path.abspath(name) + os.sep for name in names))


def file_of(module: Any) -> str:
    """The file that `module` was imported from; empty where an import does not give it again."""
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    loader = getattr(spec, "loader", None)
    plain = isinstance(file, str) and isinstance(loader, _LOADERS)
    return os.path.abspath(file) if plain and isinstance(file, str) else ""


class Imports:
    """Notes, at the end of this process, which of the libraries' modules it has imported, in their
    order, up to where the job's own code first changes an environment variable.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "imports-%d.json" % os.getpid())
        self._pid, self._folders = os.getpid(), library_folders()
        self._until: Optional[Set[str]] = None

    def hook(self, event: str, args: Any) -> None:
        """Called for each audit event of the process."""
        if event in _ENVIRONMENT_EVENTS and self._until is None:
            same = os.environb.get(args[0]) == (args[1] if len(args) > 1 else None)
            if not same and self._by_the_job():
                self._until = set(sys.modules)

    def _by_the_job(self) -> bool:
        frame = sys._getframe(2)  # type: Any
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith("<") and os.path.basename(name) not in (
                "os.py",
                "_collections_abc.py",
            ):
                return not os.path.abspath(name).startswith((*self._folders, _HERE + os.sep))
            frame = frame.f_back
        return True

    def write(self) -> None:
        if os.getpid() != self._pid:
            return
        modules = [
            (name, file_of(module))
            for name, module in list(sys.modules.items())
            if (self._until is None or name in self._until) and name != "__main__"
        ]
        kept = [(name, file) for name, file in modules if file.startswith(self._folders)]
        try:
            with open(self._path, "w", encoding="utf-8") as noted:
                changed, device = self._until is not None, accelerator(_descriptors())
                json.dump({"modules": kept, "changed": changed, "accelerator": device}, noted)
        except OSError:  # each attempt then starts cold
            return


def accelerator(descriptors: Set[str]) -> bool:
    """Whether a process with these descriptors uses a GPU or the like."""
    return any(descriptor.startswith(_ACCELERATORS) for descriptor in descriptors)


def note_imports() -> None:
    """Have this process leave what it imports; does nothing unless ECRL_IMPORTS names a folder."""
    folder = os.environ.get(IMPORTS)
    if folder:
        imports = Imports(folder)
        sys.addaudithook(imports.hook)
        atexit.register(imports.write)


# -- the process that imports beforehand


class Unfit(Exception):
    """A fork of this process would not be what a fresh interpreter is; says why."""


def main() -> None:
    """Import what the first order says, then fork a process for each further one.

    Returns only in a forked process, when the job's script has come to its end: the interpreter
    then shuts down as it does after a script.
    """
    from ecrl.hooks import install

    install()
    line = socket.socket(fileno=int(sys.argv[1]))
    at_start = dict(os.environ)
    tag = Tag()
    order, _ = _received(line)
    try:
        state = prepare(order)
    except Exception as error:
        _send(line, {"refused": str(error) if isinstance(error, Unfit) else _in_words(error)})
        os._exit(0)
    _send(line, {"refused": "", "generators": state.digests})
    # Variables that the imports have set, as they do in a fresh interpreter.
    changed = {name: text for name, text in os.environ.items() if at_start.get(name) != text}
    removed = at_start.keys() - os.environ.keys()
    while True:
        try:
            order, descriptors = _received(line)
        except EOFError:
            os._exit(0)
        order["environment"] = {
            name: text
            for name, text in {**order["environment"], **changed}.items()
            if name not in removed
        }
        if _forked(line, descriptors):
            line.close()
            become(order, descriptors, tag, state)
            run(order["script"])
            return


def prepare(order: Dict[str, Any]) -> "State":
    """Import the modules of `order`; Unfit if a fork could not pass for a fresh interpreter."""
    sys.argv = [order["script"]]
    _put_in_front(order["script"])
    descriptors, loaded, handler = _descriptors(), set(sys.modules), signal.getsignal(15)
    for name, file in order["modules"]:
        if file_of(importlib.import_module(name)) != file:
            raise Unfit("%s is another file when it is imported beforehand" % name)
    _check_modules(loaded, {name for name, _ in order["modules"]})
    if signal.getsignal(15) is not handler:
        raise Unfit("a library that it imports has a handler of SIGTERM")
    why = unlike_fresh(descriptors)
    if why:
        raise Unfit(why)
    import gc

    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a collection would copy the pages that the forks share
    return State(os.pread(2, MOST_SAID, 0))


def _put_in_front(script: str) -> None:
    """The folder of `script`, where the interpreter looks for modules first."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))


def _check_modules(loaded: Set[str], due: Set[str]) -> None:
    """Unfit if modules came along that no undisturbed run has imported, or the job's own."""
    folders = library_folders()
    site = tuple(folder for folder in folders if os.path.basename(folder.rstrip(os.sep)) in _SITE)
    for name, module in list(sys.modules.items()):
        file = file_of(module)
        if not file or name in loaded or name in due or file.startswith(_HERE + os.sep):
            continue
        if not file.startswith(folders):
            raise Unfit("a library imports a module of the job's own, %s" % name)
        if file.startswith(site):
            raise Unfit("%s comes along when its imports are made beforehand" % name)


def unlike_fresh(descriptors: Set[str]) -> str:
    """Why a fork of this process would share or lack something that a fresh interpreter has for
    itself; empty if it does not. `descriptors`: those that may be open.
    """
    pid = os.fork()  # OpenBLAS ends its threads before a fork, and starts them anew
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return "%d threads run when it has imported its libraries" % threads
    opened = _descriptors() - descriptors
    if opened:
        return "its imports leave %s open" % min(opened)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        shared = [text.split(None, 5)[-1].strip() for text in maps if " rw-s " in text]
    if shared:
        return "its imports make memory that processes share (%s)" % shared[0]
    return ""


def _descriptors() -> Set[str]:
    """By number, the file that each open descriptor of this process leads to."""
    seen = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            seen.add("%s (descriptor %s)" % (os.readlink("/proc/self/fd/" + name), name))
        except OSError:
            continue  # that of the listing
    return seen


# -- the process of an attempt


class State:
    """Traces of the imports. `said`: what they have printed, and would print again.

    The generators' state is that of every fork where a seed is asked for (ECRL_SEED), else each
    fork is seeded anew, as a fresh interpreter is. `digests`: of that state by generator, equal in
    two processes only if a library has seeded it.
    """

    def __init__(self, said: bytes) -> None:
        from ecrl import seeding

        self.said, self._seeded = said, seeding.seed() is not None
        self._random = random.getstate()
        states = {"random": self._random}
        if "numpy.random" in sys.modules:
            states["numpy"] = sys.modules["numpy.random"].get_state()
        self.digests = (
            {}
            if self._seeded
            else {
                name: hashlib.sha256(pickle.dumps(state)).hexdigest()
                for name, state in states.items()
            }
        )

    def give(self) -> None:
        if self._seeded:
            random.setstate(self._random)  # which Python has seeded anew in the fork
            return
        if "numpy" in self.digests:
            sys.modules["numpy.random"].seed()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.seed()  # that of the CPU alone: a GPU's is made later


class Tag:
    """Where the kernel reads ECRL_AUDIT_ARM of this process's environment, which it was started
    with: in a fork it is written over, so that all that the attempt leaves is found by it.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        self._address = libc.getenv(TAG.encode())
        self._bytes = len(os.environ.get(TAG, "").encode())

    def write(self, text: str) -> None:
        value = os.fsencode(text)[: self._bytes]
        if self._address:
            ctypes.memmove(self._address, value.ljust(self._bytes, b"\0"), self._bytes)


def _forked(line: socket.socket, descriptors: Sequence[int]) -> bool:
    """Fork twice, so that the attempt's process becomes a child of the auditor, and tell its id.
    True in that process, which goes on only when its parent is the auditor.
    """
    told_read, told_write = os.pipe()
    go_read, go_write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            os.write(told_write, b"%d" % pid)
            os._exit(0)
        for descriptor in (told_read, told_write, go_write):
            os.close(descriptor)
        if os.read(go_read, 1) != b"g":
            os._exit(1)
        os.close(go_read)
        return True
    os.close(told_write)
    os.close(go_read)
    os.waitpid(between, 0)
    pid = int(os.read(told_read, 32) or 0)
    os.close(told_read)
    _send(line, {"pid": pid})
    os.write(go_write, b"g")
    os.close(go_write)
    for descriptor in descriptors:
        os.close(descriptor)
    return False


def become(order: Dict[str, Any], descriptors: Sequence[int], tag: Tag, state: State) -> None:
    """Make this process what `subprocess` would have started: `order` has environment, cwd, argv,
    script and the interpreter's words.
    """
    os.setsid()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(order["cwd"])
    environment = order["environment"]
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, text in environment.items():
        if os.environ.get(name) != text:
            os.environ[name] = text
    tag.write(environment.get(TAG, ""))
    state.give()
    thread = threading.main_thread()  # type: Any
    if hasattr(thread, "_set_native_id"):
        thread._set_native_id()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    sys.argv = list(order["argv"])
    _put_in_front(order["script"])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = order["words"]
    importlib.invalidate_caches()
    if state.said:
        os.write(2, state.said)


def run(script: str) -> None:
    """Run `script` as the interpreter runs it: in the module __main__, an error by
    sys.excepthook.
    """
    path = script if os.path.isabs(script) else os.path.join(os.getcwd(), script)
    # a new one: what is frozen (`prepare`) keeps objects from their end
    sys.modules["__main__"] = type(sys)("__main__")
    names = vars(sys.modules["__main__"])
    names.update(
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __spec__=None,
        __annotations__={},
        __builtins__=builtins,
        __file__=path,
        __cached__=None,
    )
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), names)
    except SystemExit:
        raise
    except BaseException as error:
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *args: None  # the interpreter ends by SIGINT then
            raise
        sys.exit(1)


def _show(error: BaseException) -> None:
    """Shows the error as the interpreter does, without the frame of `run`."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except Exception:
        sys.__excepthook__(type(error), error, trace)


# -- orders


def _received(line: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """One order, and the descriptors that came with it. EOFError where the auditor has ended."""
    head, descriptors, _, _ = socket.recv_fds(line, LENGTH.size, 3)
    while 0 < len(head) < LENGTH.size:
        head += line.recv(LENGTH.size - len(head))
    if not head:
        raise EOFError
    size, body = LENGTH.unpack(head)[0], bytearray()
    while len(body) < size:
        piece = line.recv(min(1 << 20, size - len(body)))
        if not piece:
            raise EOFError
        body += piece
    return json.loads(body), list(descriptors)


def _send(line: socket.socket, answer: Dict[str, Any]) -> None:
    line.sendall(json.dumps(answer).encode() + b"\n")


def _in_words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return ("%s: %s" % (type(error).__name__, text[0] if text else ""))[:300]
