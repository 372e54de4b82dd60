"""Rows of scores of elements: the shapes, at one thread and at all, beside peers and roofs."""

import json
import pathlib
import tempfile

import numpy
from python import rows, world

from . import goals, machine
from .methods import Bench, near, ratio, started, without
from .problem import Problem, Shape, quality, rounded_to

MEDIUM = Shape(1, 32, 1000, 300)
SHAPES = (
    MEDIUM,
    Shape(1, 32, 1000, 1024),
    Shape(1, 1024, 100, 1024),
    Shape(32, 32, 32 * 100, 256, candidates=100),
)
#: NumKong's own: a query and a document of n tokens of n elements.
CUBES = (256, 1024, 4096)
ELEMENTS = ("f32", "f16", "bf16")
#: Relative errors of f32 sums, in whatever order, and of what peers round to the element.
TOLERANCE, TOLERANCE_PEERS = 1e-5, 2e-2
BEFORE = "commit c7af311"


def peers(element):
    """The peers' methods of an element, all that have it."""
    found = {
        f"NumKong {element}, packed before": {"kind": "numkong", "element": element},
        f"NumKong {element}, packing included": {
            "kind": "numkong", "element": element, "packs": True,
        },
        f"torch {element}": {"kind": "torch", "element": element},
    }  # fmt: skip
    if element == "f32":
        found |= {
            "numpy (documents @ query)": {"kind": "numpy"},
            "numpy (query @ documents)": {"kind": "numpy", "query_first": True},
            "maxsim-cpu": {"kind": "maxsim-cpu"},
        }
    return found


def checked(methods, problem, element):
    """Leaves out what is wrong; the quality of all by name. NumKong's errors are what its row
    shows: it is not left out for them."""
    found = {}
    exact_f32 = problem.exact()
    exact = problem.exact(rounded_to(element)) if element != "f32" else exact_f32
    for name in list(methods.methods):
        if name in ("multiply-adds", "read"):
            continue
        is_ours = name.startswith(("maxsim", BEFORE)) and name != "maxsim-cpu"
        tolerance = TOLERANCE if is_ours or element == "f32" else TOLERANCE_PEERS
        right = (lambda _: None) if name.startswith("NumKong") else near(exact, tolerance)
        scores = methods.check(name, right)
        if scores is not None:
            of = quality(scores, exact_f32, problem.shape)
            of["largest_relative_error"] = float(numpy.max(numpy.abs(scores / exact - 1)))
            found[name] = of
    if "maxsim" not in methods.methods:
        raise ValueError(methods.bad["maxsim"])
    return found


def limit_ms(middle, of=1.0):
    """The floor of a pass: arithmetic at the peak, or a read of the documents."""
    found = [middle[name] for name in ("multiply-adds", "read") if name in middle]
    return max(found) * of if found else None


def saved(problem):
    """A folder that holds a problem, as a context."""
    folder = tempfile.TemporaryDirectory()
    problem.save(pathlib.Path(folder.name))
    return folder


def f32(w):
    """The row of f32 at one thread, with roofs and NumKong as on an AVX2 machine."""
    bench = Bench(w)
    goal = goals.GOALS[goals.F32](bench.instruction_sets)
    with world.reported(goals.F32, goal) as found:
        problem = Problem.random(bench.small(MEDIUM))
        with saved(problem) as folder:
            specs = {"maxsim": bench.ours()} | peers("f32") | bench.roofs()
            if bench.old:
                specs[BEFORE] = bench.before()
            if len(bench.instruction_sets) > 2:
                bench.forced_are_heeded(folder)
                specs["maxsim AVX2"] = bench.ours(instructions="avx2")
                specs["NumKong f32, packed before, AVX2"] = {
                    "kind": "numkong", "without": machine.BEYOND_AVX2,
                }  # fmt: skip
            with started(folder, specs, 1, bench.core) as methods:
                of = checked(methods, problem, "f32")
                times = methods.turns(bench.seconds * 4)
                bad = methods.bad
        middle = world.figures(times)
        ours = middle["maxsim"]
        numkong = middle.get("NumKong f32, packed before")
        x_avx2 = ratio(
            middle.get("NumKong f32, packed before, AVX2", numkong),
            middle.get("maxsim AVX2", ours),
        )
        others = without(middle, "maxsim", "maxsim AVX2", "multiply-adds", "read")
        found.append(
            rows.row(
                goals.F32, goal, ours, "ms of CPU", others | bad, limit_ms(middle),
                x_numkong=ratio(numkong, ours), x_numkong_avx2=x_avx2,
                ms_avx2=middle.get("maxsim AVX2"),
                largest_relative_error=of["maxsim"]["largest_relative_error"],
                multiply_adds_ms=middle["multiply-adds"], read_ms=middle["read"],
                of_peak_in_l2=of_peak_in_l2(bench), quality=of, quartiles=world.spreads(times),
                n=len(times["maxsim"]), x_c7af311=ratio(middle.get(BEFORE), ours),
            )  # fmt: skip
        )
    yield found


def of_peak_in_l2(bench):
    """Share of the peak of multiply-adds that documents reach that fit the second-level cache."""
    dim = MEDIUM.dim
    n_tokens = machine.l2_bytes() // 2 // (4 * dim)
    problem = Problem.random(bench.small(Shape(32, 32, n_tokens // 256, 256)))
    with saved(problem) as folder:
        roofs = bench.roofs()
        del roofs["read"]
        with started(folder, {"maxsim": bench.ours()} | roofs, 1, bench.core) as methods:
            middle = world.figures(methods.turns(bench.seconds, n=3))
    return ratio(middle["multiply-adds"], middle["maxsim"])


def shapes(w):
    """Rows of every shape and element, of f32 and codes at all threads too. Codes of one byte are
    f32 tokens that are compressed before."""
    bench = Bench(w)
    counts = {element: sorted({1, bench.threads}) for element in ("f32", "INT8")}
    for shape in SHAPES:
        shape = bench.small(shape)
        problem = Problem.random(shape)
        with saved(problem) as folder:
            for element in (*ELEMENTS, "INT8"):
                for threads in counts.get(element, [1]):
                    case = f"{element} {shape.words}, {said_threads(threads)}"
                    with world.reported(case, None) as found:
                        found.append(of_shape(bench, problem, folder, case, element, threads))
                    yield found


def no_slower(w):
    """The row of the slowest case beside commit c7af311, of those that the record has."""
    goal = goals.GOALS[goals.NO_SLOWER](None)
    with world.reported(goals.NO_SLOWER, goal) as found:
        of = json.loads(w.args.out.read_text())["rows"]
        times = {row["case"]: 1 / row["x_c7af311"] for row in of if row.get("x_c7af311")}
        if not times:
            raise ValueError("no case has been timed beside a build of that commit")
        most = max(times, key=times.get)
        found.append(
            rows.row(
                goals.NO_SLOWER, goal, times[most], "× its time, of the slowest case",
                slowest_case=most, x_of_cases=times,
            )  # fmt: skip
        )
    yield found


def said_threads(threads):
    return "one thread" if threads == 1 else f"{threads} threads"


def of_shape(bench, problem, folder, case, element, threads):
    """A row of a shape: CPU time at one thread, the clock's at several."""
    one, shape = threads == 1, problem.shape
    if element == "INT8":
        specs = {"maxsim": bench.ours(form="int8")}
        old, others = bench.before(form="int8"), {}
    else:
        specs, others = {"maxsim": bench.ours(element)}, peers(element)
        old = bench.before(element)
    if bench.old:
        specs[BEFORE] = old
    if one:
        specs |= bench.roofs()
    with started(folder, specs | others, threads, bench.core if one else None) as methods:
        of = checked_codes(methods, problem) if element == "INT8" else checked(
            methods, problem, element
        )  # fmt: skip
        times = methods.turns(bench.seconds, "cpu" if one else "clock")
        bad = methods.bad
    middle = world.figures(times)
    ours = middle["maxsim"]
    # What the roofs are is of f32: others read less and may multiply faster.
    floor = limit_ms(middle) if element == "f32" else None
    return rows.row(
        case, None, ours, "ms of CPU" if one else "ms",
        without(middle, "maxsim", "multiply-adds", "read") | bad, floor, threads=threads,
        giga_operations_per_s=2e-6 * shape.multiply_adds / ours,
        x_c7af311=ratio(middle.get(BEFORE), ours), quality=of,
        quartiles=world.spreads(times), n=len(times["maxsim"]),
    )  # fmt: skip


def checked_codes(methods, problem):
    """Leaves out codes whose scores are not near those of the tokens; the quality of all."""
    exact, found = problem.exact(), {}
    for name in ("maxsim", BEFORE):
        scores = methods.check(name, near(exact, TOLERANCE_PEERS))
        if scores is not None:
            found[name] = quality(scores, exact, problem.shape)
    if "maxsim" not in methods.methods:
        raise ValueError(methods.bad["maxsim"])
    return found


def cubes(w):
    """Rows of NumKong's cubes, a query and a document of n tokens of n elements, at one thread."""
    bench = Bench(w)
    for n in CUBES:
        shape = bench.small(Shape(1, n, 1, n, n))
        problem = Problem.random(shape)
        with saved(problem) as folder:
            for element in ("f32", "bf16", "INT8"):
                case = f"{element} cube {n}³, one thread"
                with world.reported(case, None) as found:
                    found.append(of_shape(bench, problem, folder, case, element, 1))
                yield found
