"""The CPU: its instruction sets, its cache, its cores. No packages."""

import os
import pathlib

#: Names that MAXSIM_CPU takes, with what Linux calls the features that they need.
NEEDS = {
    "portable": (),
    "avx2": ("avx2", "fma"),
    "avxvnni": ("avx_vnni",),
    "vnni": ("avx512_vnni",),
    "bf16": ("avx512_bf16",),
    "amx": ("amx_int8", "amx_bf16"),
}
#: What NumKong is told not to use, to be as on a machine that has AVX2 alone.
BEYOND_AVX2 = (
    "alder", "sierra", "skylake", "icelake", "genoa", "turin", "sapphire", "sapphireamx",
    "graniteamx", "diamond",
)  # fmt: skip


def flags(path="/proc/cpuinfo"):
    """Features of the CPU, as Linux calls them; none where it does not say."""
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2] for line in lines if line.startswith("flags")]
    return frozenset(found[0].split()) if found else frozenset()


def instruction_sets(of=None):
    """Those of `NEEDS` that the CPU has, the narrowest first."""
    of = flags() if of is None else of
    return [name for name, needs in NEEDS.items() if all(flag in of for flag in needs)]


def widest_multiply_add(of=None):
    """The instructions whose f32 multiply-adds are the peak."""
    of = flags() if of is None else of
    if "avx512f" in of:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= of else "portable"


def l2_bytes(path="/sys/devices/system/cpu/cpu0/cache/index2/size"):
    """The second-level cache of a core; 1 MiB where the system does not say."""
    try:
        text = pathlib.Path(path).read_text().strip()
    except OSError:
        return 1 << 20
    return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)


def cores():
    """Numbers of the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))
