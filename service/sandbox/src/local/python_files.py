# Prints the version of the interpreter that runs this, and then the files and folders that it needs, each
# on a line: its standard library, the time zones, and the shared libraries of its extension modules.
import ctypes
import importlib
import os
import sys
import sysconfig
import zoneinfo


class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def libraries():
    """The shared libraries of this process, by the paths at which the loader found them."""
    names = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
    each = kind(lambda loaded, _size, _data: names.append(os.fsdecode(loaded.contents.name)) or 0)
    ctypes.CDLL(None).dl_iterate_phdr(each, None)
    return names


print(".".join(map(str, sys.version_info[:3])))
folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
extensions = sysconfig.get_config_var("DESTSHARED")
for file in os.listdir(extensions) if os.path.isdir(extensions) else ():
    try:
        importlib.import_module(file.partition(".")[0])
    except Exception:
        pass  # It lacks something here, in a sandbox too.
is_inside = lambda path: any(path.startswith(folder + "/") for folder in folders)
print(*sorted(folders), sep="\n")
print(*(path for path in zoneinfo.TZPATH if os.path.isdir(path)), sep="\n")
print(*(path for path in libraries() if os.path.isfile(path) and not is_inside(path)), sep="\n")
