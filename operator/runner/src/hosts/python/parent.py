"""The warm parent: has the interpreter and what programs import ready, and forks a host when asked.

It was executed before there was any secret, has one thread, can't be traced, reads nothing but requests of
the runner, and never sees a program. Its hosts are children of the runner, not of it.
"""

import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import struct
import sys

import _seance_frames as frames
import _seance_host as host
import _seance_source as source
import _seance_values as values

#: What programs often import; reading it again is what the warm parent saves them.
OFTEN_IMPORTED = """
    asyncio base64 bisect collections contextlib copy csv dataclasses datetime decimal difflib enum fractions
    functools hashlib heapq html io itertools json logging math operator pathlib random re secrets statistics
    string textwrap time traceback types typing unicodedata urllib.parse uuid zoneinfo
""".split()

#: The one request there is: a Fork.
REQUEST = b"\x00\x00\x00\x02\x1a\x00"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
CLONE_PARENT = 0x8000
#: Descriptors a host may have: its three streams, its socket, its event loops, and a little air.
OPEN_FILES_MAX = 64

# With the lock of the interpreter held, as a fork needs it.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 6
libc.syscall.restype = ctypes.c_long


def serve(facts):
    """Forks a host at every request, until the runner is gone."""
    for attribute, value in (PR_SET_DUMPABLE, 0), (PR_SET_NO_NEW_PRIVS, 1):
        prctl(attribute, value)
    warm()
    mapped_bytes = host.address_space_bytes()
    runner = os.getppid()
    with socket.socket(fileno=frames.SOCKET) as control:
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, len(REQUEST), 3)
            if not request:
                os._exit(0)
            if request != REQUEST or len(descriptors) != 3:
                sys.exit("a warm parent was asked for something else than a host")
            pid, error = fork_as_sibling(facts["calls"]["clone"])
            if pid == 0:
                control.detach()
                break
            for descriptor in descriptors:
                os.close(descriptor)
            answer = frames.data(frames.FORKED, frames.number(1, max(pid, 0)) + frames.number(2, error))
            control.sendall(struct.pack(">I", len(answer)) + answer)
    become_host(runner, descriptors)
    confine([bytes.fromhex(each) for each in facts["filters"]], facts["own_pid"])
    serve_program(mapped_bytes)


def serve_program(mapped_bytes):
    channel = frames.Channel()
    version = ".".join(map(str, sys.version_info[:3]))
    channel.send(frames.READY, frames.data(1, f"CPython {version}"))
    kind, message = channel.receive()
    if kind != frames.START:
        os._exit(1)
    host.run(channel, frames.Start(message), mapped_bytes)


def warm():
    """Imports what programs import, and goes the way that any program goes. Leaves nothing behind."""
    for name in OFTEN_IMPORTED:
        __import__(name)
    source.compiled("import json\nlist(map(str, [1]))\nawait [n async for n in x]", "warm")
    values.write(values.read('{"warm": [1, 2.5, null, "x"]}'))
    gc.collect()
    gc.freeze()


def fork_as_sibling(clone):
    """Forks a child of our own parent: 0 in the child; in this process its number, or -1 and the error."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(clone, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        error = ctypes.get_errno() if pid < 0 else 0
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        return pid, error
    return 0, 0


def become_host(runner, descriptors):
    """A session of its own, death with the runner, and the descriptors where a host looks for them."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != runner:
        os._exit(1)
    # Received descriptors come after the control socket, so none is at its place yet.
    for descriptor, place in zip(descriptors, (frames.SOCKET, 1, 2)):
        os.dup2(descriptor, place)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(frames.SOCKET + 1, soft)


def confine(filters, own_pid):
    """Takes from this process what no program needs, for good. Everything here is depth: the boundary is
    the pod, or the namespaces around it."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    pid = struct.pack("=I", os.getpid())
    for program in filters:
        # A filter names the process it is for: the only one that may be sent a signal.
        program = b"".join(
            each[:4] + (pid if each[4:] == struct.pack("=I", own_pid) else each[4:])
            for each in (program[at : at + 8] for at in range(0, len(program), 8))
        )
        install(program)


def install(program):
    """Puts a system call filter on: an array of `struct sock_filter`."""
    held = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

    described = Filter(len(program) // 8, ctypes.addressof(held))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(described))


def prctl(attribute, value, more=0):
    arguments = [ctypes.c_ulong(each) for each in (value, more, 0, 0)]
    if libc.prctl(ctypes.c_int(attribute), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {attribute}: {errno.errorcode.get(number, number)}")
