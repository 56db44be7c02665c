"""The stubs of the public API, made from its protos at run time and kept in the cache."""

import hashlib
import importlib.resources
import os
import pathlib
import shutil
import sys
import tempfile

from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[3] / "proto"


def _make(sources, folder):
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    names = [str(source.relative_to(PROTO)) for source in sources]
    command = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    if protoc.main(command + names) != 0:
        sys.exit("the protos could not be compiled")


def _folder():
    """The folder with the stubs of the protos as they are now."""
    sources = sorted((PROTO / "seance" / "v1alpha1").glob("*.proto"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "seance"
    folder = cache / f"python-stubs-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(dir=cache)
        _make(sources, made)
        try:
            os.rename(made, folder)
        except OSError:  # Another run was first.
            shutil.rmtree(made)
    return folder


sys.path.insert(0, str(_folder()))

from seance.v1alpha1 import (
    engines_pb2,
    engines_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
    tools_pb2,
    tools_pb2_grpc,
    types_pb2,
)

__all__ = [
    "engines_pb2",
    "engines_pb2_grpc",
    "server_pb2",
    "server_pb2_grpc",
    "sessions_pb2",
    "sessions_pb2_grpc",
    "tools_pb2",
    "tools_pb2_grpc",
    "types_pb2",
]
