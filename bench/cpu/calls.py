"""Rows of short calls, of the number of threads, and of the tool's start."""

import os
import statistics
import subprocess
import time

from python import rows, world

from . import goals
from .methods import Bench, ratio, started
from .problem import ROOT, SAMPLE, Problem, Shape
from .scores import BEFORE, MEDIUM, checked, saved

SHORT = Shape(1, 32, 10, 100)
#: Calls of which the mean is one time.
CALLS = 100
STARTS = 25


def threads(w):
    """Rows of every number of threads: of a short call, beside the bare arithmetic on one core, and
    of a long one."""
    bench = Bench(w)
    counts = [1]
    while counts[-1] < bench.threads:
        counts.append(min(2 * counts[-1], bench.threads))
    for case, shape, n in ((goals.SHORT, SHORT, CALLS), (f"f32 {MEDIUM.words}", MEDIUM, 1)):
        case += f", {' and '.join(map(str, counts))} threads"
        with world.reported(case, None) as found:
            problem = Problem.random(bench.small(shape))
            by_count = {}
            with saved(problem) as folder:
                for count in counts:
                    by_count[count] = at_count(bench, folder, problem, count, n)
            last = by_count[counts[-1]]
            found.append(
                rows.row(
                    case, None, last["maxsim"], "ms", {BEFORE: last.get(BEFORE)},
                    by_count[1].get("multiply-adds"),
                    ms_by_threads={str(count): of["maxsim"] for count, of in by_count.items()},
                    cpu_ms_by_threads={str(c): of["maxsim cpu"] for c, of in by_count.items()},
                    x_c7af311_by_threads={
                        str(c): ratio(of.get(BEFORE), of["maxsim"]) for c, of in by_count.items()
                    },
                    x_c7af311_cpu_by_threads={
                        str(c): ratio(of.get(f"{BEFORE} cpu"), of["maxsim cpu"])
                        for c, of in by_count.items()
                    },
                )  # fmt: skip
            )
        yield found


def at_count(bench, folder, problem, count, n):
    """Medians by name at a number of threads: on the clock, and of CPU time (`NAME cpu`)."""
    specs = {"maxsim": bench.ours()} | bench.roofs()
    if bench.old:
        specs[BEFORE] = bench.before()
    with started(folder, specs, count, bench.core if count == 1 else None) as methods:
        checked(methods, problem, "f32")
        found = world.figures(methods.turns(bench.seconds, "clock", n))
        cpu = world.figures(methods.turns(bench.seconds, "cpu", n))
    return found | {f"{name} cpu": ms for name, ms in cpu.items()}


def start(w):
    """The row of the tool's whole run on its sample, a process each time."""
    goal = goals.GOALS[goals.START](None)
    with world.reported(goals.START, goal) as found:
        program = w.args.tool or ROOT / "target" / "release" / "maxsim"
        if not program.is_file():
            raise ValueError("the tool is not built: cargo build --release -p maxsim-cli")
        files = [SAMPLE / f"{name}.safetensors" for name in ("queries", "documents")]
        words = [str(program), "rank", "--device", "cpu"]
        words += ["--queries", str(files[0]), "--documents", str(files[1])]
        n = 3 if w.tiny else STARTS
        clocks, cpus = zip(*(run_of(words) for _ in range(n)))
        from_disk = []
        for _ in range(n):
            forget(program, *files)
            from_disk.append(run_of(words)[0])
        found.append(
            rows.row(
                goals.START, goal, statistics.median(clocks), "ms", least=min(clocks),
                cpu_ms=statistics.median(cpus), from_disk_ms=statistics.median(from_disk),
                quartiles=world.spreads({"maxsim": clocks, "from disk": from_disk}), n=n,
                megabytes=program.stat().st_size / 1e6,
            )  # fmt: skip
        )
    yield found


def run_of(words):
    """Milliseconds of a process from its start to its end: on the clock, and of its CPUs."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    clock = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise ValueError(f"{words[0]} ended with {process.returncode}")
    return clock * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def forget(*files):
    """Drops files from the page cache, as far as the system does it for one file."""
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
