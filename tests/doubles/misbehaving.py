"""A worker module for tests of `WorkerClient`: what engines do to their own process, and worse."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time

STATE = {"count": 0}
SLEEPER = "import time; time.sleep(600)"


def echo(value):
    return value


def count():
    STATE["count"] += 1
    return STATE["count"]


def where():
    return {
        "path": sys.path,
        "modules": sorted(name for name in sys.modules if name.partition(".")[0] == "ckptcheck"),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "stdin": sys.stdin.read(),
    }


def find(module):
    __import__(module)


def boom(message):
    raise ValueError(message)


def leave(code):
    sys.exit(code)


def unsayable():
    return {1, 2}


def talk(text):
    print(text)
    print(text, file=sys.stderr)
    os.write(1, b"raw \xff bytes\n")
    subprocess.run([sys.executable, "-c", "print('a child speaks')"], check=True)


def vanish(code):
    print("\x1b[31mout of memory: cannot allocate\x1b[0m")
    os._exit(code)


def shoot(number):
    print("about to be shot")
    os.kill(os.getpid(), number)
    time.sleep(600)


def crash():
    ctypes.string_at(0)


def kill_group():
    os.killpg(0, signal.SIGKILL)


def kill_the_family():
    """Kill every process below the parent, as SGLang does when a scheduler fails."""
    parent = os.getppid()
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        children = [int(process) for process in file.read().split()]
    for process in children:
        os.kill(process, signal.SIGKILL)
    time.sleep(600)


def kill_the_parent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def share_memory():
    """Start a spawned process and allocate a block in /dev/shm, as engines do."""
    from multiprocessing import get_context, shared_memory

    worker = get_context("spawn").Process(target=time.sleep, args=(600,))
    worker.start()
    STATE["block"] = shared_memory.SharedMemory(create=True, size=4096)
    return STATE["block"].name


def start_children(hold_the_socket=False):
    """Start a child, a grandchild whose parent ends, and a process in a session of its own that ignores SIGTERM."""
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    orphan = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], stdout=2).pid)"
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEPER], close_fds=not hold_the_socket).pid,
        subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, env={}).pid,
        int(subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, check=False).stdout),
    ]
    return started


def fork_and_vanish():
    """Die while a forked child keeps the socket open, so that the socket does not show the death."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(f"the child is {child}")
    os._exit(3)


def hang_here():
    time.sleep(600)


def interrupt(process):
    """Send Ctrl-C to the client while it waits for the answer."""
    os.kill(process, signal.SIGINT)
    hang_here()


def hang_deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_here()


def stop():
    """Stop the whole process, even the thread that receives requests."""
    os.kill(os.getpid(), signal.SIGSTOP)


def at_exit(path, linger=False):
    atexit.register(lambda: open(path, "w").close())
    if linger:
        threading.Thread(target=time.sleep, args=(600,)).start()


def start_thread():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def spawn():
    """Spawn a process as engines do: the child imports this module by its name."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(echo, ("from a spawned child",))


def close_the_wire():
    for number in range(3, 4096):
        with contextlib.suppress(OSError):
            socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
    time.sleep(600)


def put(address, dtype):
    import torch
    from ckptcheck_worker import tensor_files

    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(getattr(torch, dtype))
    return tensor_files.write_tensors(
        {"weight": weight, "tied": weight, "turned": weight.T, "rows": weight[1:]}, address
    )


def get(file):
    from ckptcheck_worker import tensor_files

    return {
        name: [str(tensor.dtype), tensor.float().tolist()] for name, tensor in tensor_files.read_tensors(file).items()
    }


def prepare() -> bool:
    """Return whether garbage is looked for while the worker imports."""
    return gc.isenabled()


def collects() -> list[bool]:
    """Return whether garbage is looked for, and whether what was imported is left out."""
    return [gc.isenabled(), gc.get_freeze_count() > 0]


RPC_METHODS = {name: item for name, item in list(globals().items()) if callable(item) and not name.startswith("_")}
