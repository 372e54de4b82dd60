"""Rows of what is compressed, and of half precision: by every instruction set there is."""

import numpy
from python import rows, world

from . import goals, machine
from .methods import Bench, near, ratio, started, without
from .problem import Problem, quality, rounded_to
from .scores import BEFORE, MEDIUM, TOLERANCE, TOLERANCE_PEERS, saved

NUMKONG, NUMKONG_AVX2 = "NumKong f32", "NumKong f32, AVX2"


def numkongs(instruction_sets):
    """NumKong, packed before; and as on a machine of AVX2 alone, where this is another."""
    found = {NUMKONG: {"kind": "numkong"}}
    if len(instruction_sets) > 2:
        found[NUMKONG_AVX2] = {"kind": "numkong", "without": machine.BEYOND_AVX2}
    return found


def by_instructions(bench, **of):
    """Ours by every instruction set that has words, and by the one that the library takes."""
    names = [name for name in goals.WORDS if name in bench.instruction_sets]
    forced = {f"maxsim {name}": bench.ours(instructions=name, **of) for name in names}
    return {"maxsim": bench.ours(**of)} | forced


def of_others(middle):
    """The medians of what is not ours."""
    return {name: ms for name, ms in middle.items() if name.split()[0] != "maxsim"}


def must_be_there(methods, *names):
    """Raises where a method is not."""
    for name in names:
        if name not in methods.methods:
            raise ValueError(f"{name}: {methods.bad.get(name, 'it was not given')}")


def codes(w):
    """Rows of INT8 codes: all instruction sets in one, and each in one of its own."""
    bench = Bench(w)
    sets = bench.instruction_sets
    goal = goals.GOALS[goals.CODES](sets)
    with world.reported(goals.CODES, goal) as found:
        problem = Problem.random(bench.small(MEDIUM))
        with saved(problem) as folder:
            bench.forced_are_heeded(folder)
            specs = by_instructions(bench, form="int8")
            specs["portable"] = bench.ours(form="int8", instructions="portable")
            specs |= {BEFORE: bench.before(), f"{BEFORE} INT8": bench.before(form="int8")}
            specs |= {"maxsim f32": bench.ours()} | numkongs(sets)
            with started(folder, specs, 1, bench.core) as methods:
                must_be_there(methods, BEFORE, "portable")
                is_exact, of = same_bits(methods, problem)
                methods.drop("portable", "checked alone")
                times = methods.turns(bench.seconds * 4)
                bad = {name: why for name, why in methods.bad.items() if name != "portable"}
        middle = world.figures(times)
        old = middle[BEFORE]
        of_f32 = {
            f"of_f32_{name}": ratio(middle.get(f"maxsim {name}"), old) for name in goals.WORDS
        }
        ours = middle["maxsim"]
        others = of_others(middle)
        found.append(
            rows.row(
                goals.CODES, goal, ours, "ms of CPU", others | bad, **of_f32,
                of_f32=ratio(ours, old), ms_f32=middle["maxsim f32"],
                is_exact=int(is_exact), quality=of, not_here=absent(sets),
                quartiles=world.spreads(times), n=len(times["maxsim"]),
            )  # fmt: skip
        )
        for name in goals.here(goals.OF_F32, sets):
            found.append(
                rows.row(
                    f"INT8 codes, {goals.WORDS[name]}", goals.of_codes_by(name),
                    middle.get(f"maxsim {name}"), "ms of CPU",
                    {BEFORE: old}, of_f32=of_f32[f"of_f32_{name}"],
                )  # fmt: skip
            )
    yield found


def absent(instruction_sets):
    """The words of instruction sets that a row is about and the machine has not."""
    return [words for name, words in goals.WORDS.items() if name not in instruction_sets]


def same_bits(methods, problem):
    """Whether codes have the same scores by all instruction sets, to the bit; the quality."""
    exact = problem.exact()
    wanted, of, same = methods.methods["portable"].scores(), {}, True
    near(exact, TOLERANCE_PEERS)(wanted)
    for name in [name for name in methods.methods if name not in ("portable", BEFORE)]:
        is_codes = name.startswith("maxsim") and name != "maxsim f32"
        scores = methods.check(name, lambda _: None)
        if scores is not None:
            of[name] = quality(scores, exact, problem.shape)
        same = same and (not is_codes or numpy.array_equal(scores, wanted))
    return same, of


def coarse(w):
    """The row of coarse to fine, timed on random tokens, judged on a real set, too."""
    bench = Bench(w)
    sets = bench.instruction_sets
    goal = goals.GOALS[goals.COARSE](sets)
    with world.reported(goals.COARSE, goal) as found:
        problem = Problem.random(bench.small(MEDIUM))
        with saved(problem) as folder:
            bench.forced_are_heeded(folder)
            specs = by_instructions(bench, form="coarse") | {"maxsim f32": bench.ours()}
            with started(folder, specs | numkongs(sets), 1, bench.core) as methods:
                exact, of = problem.exact(), {}
                for name in list(methods.methods):
                    right = (lambda _: None) if "NumKong" in name else near(exact, TOLERANCE_PEERS)
                    scores = methods.check(name, right)
                    if scores is not None:
                        of[name] = quality(scores, exact, problem.shape)
                must_be_there(methods, "maxsim", NUMKONG)
                times = methods.turns(bench.seconds * 4)
                bad = methods.bad
        real = on_real(bench)
        middle = world.figures(times)
        ours, numkong = middle["maxsim"], middle[NUMKONG]
        avx2 = middle.get(NUMKONG_AVX2, numkong)
        x = {
            f"x_numkong_{name}": ratio(
                avx2 if name == "avx2" else numkong, middle.get(f"maxsim {name}")
            )
            for name in goals.WORDS
        }
        others = of_others(middle)
        found.append(
            rows.row(
                goals.COARSE, goal, ours, "ms of CPU", others | bad, **x,
                ms_f32=middle["maxsim f32"], overlap=real["maxsim"]["overlap"],
                mean_loss=max(of["maxsim"]["mean_loss"], real["maxsim"]["mean_loss"]),
                numkong_overlap=real[NUMKONG]["overlap"], quality=of, quality_of_real_set=real,
                not_here=absent(sets), quartiles=world.spreads(times), n=len(times["maxsim"]),
            )  # fmt: skip
        )
    yield found


def on_real(bench):
    """The quality of rankings of a real set by name."""
    problem = Problem.real(bench.args.data) if bench.args.data else Problem.real()
    exact = problem.exact()
    specs = {
        "maxsim": bench.ours(form="coarse"),
        "maxsim f32": bench.ours(),
        "maxsim INT8": bench.ours(form="int8"),
        NUMKONG: {"kind": "numkong"},
        "NumKong bf16": {"kind": "numkong", "element": "bf16"},
    }
    with saved(problem) as folder, started(folder, specs) as methods:
        must_be_there(methods, *specs)
        return {
            name: quality(method.scores(), exact, problem.shape)
            for name, method in methods.methods.items()
        }


def bf16(w):
    """The row of bf16 by AMX, where the machine has it."""
    bench = Bench(w)
    goal = goals.GOALS[goals.BF16](bench.instruction_sets)
    with world.reported(goals.BF16, goal) as found:
        if "amx" not in bench.instruction_sets:
            raise ValueError("the machine has no AMX")
        problem = Problem.random(bench.small(MEDIUM))
        with saved(problem) as folder:
            bench.forced_are_heeded(folder)
            specs = {
                "maxsim": bench.ours("bf16", instructions="amx"),
                "NumKong bf16": {"kind": "numkong", "element": "bf16"},
                "torch bf16": {"kind": "torch", "element": "bf16"},
                BEFORE: bench.before("bf16"),
            }
            with started(folder, specs, 1, bench.core) as methods:
                exact = problem.exact(rounded_to("bf16"))
                scores = methods.check("maxsim", near(exact, TOLERANCE))
                must_be_there(methods, "maxsim", "NumKong bf16")
                times, bad = methods.turns(bench.seconds * 4), methods.bad
        middle = world.figures(times)
        found.append(
            rows.row(
                goals.BF16, goal, middle["maxsim"], "ms of CPU",
                without(middle, "maxsim") | bad,
                x_numkong=ratio(middle["NumKong bf16"], middle["maxsim"]),
                largest_relative_error=float(numpy.max(numpy.abs(scores / exact - 1))),
                quartiles=world.spreads(times), n=len(times["maxsim"]),
            )  # fmt: skip
        )
    yield found


def plaid(w):
    """The row of residual-compressed documents."""
    bench = Bench(w)
    goal = goals.GOALS[goals.PLAID](bench.instruction_sets)
    with world.reported(goals.PLAID, goal) as found:
        problem = Problem.random(bench.small(MEDIUM))
        with saved(problem) as folder:
            specs = {}
            for nbits in (2, 4):
                specs[f"maxsim {nbits} bits"] = bench.ours(form=f"plaid{nbits}")
                specs[f"{BEFORE} {nbits} bits"] = bench.before(form=f"plaid{nbits}")
            with started(folder, specs, 1, bench.core) as methods:
                must_be_there(methods, *specs)
                for nbits in (2, 4):
                    wanted = methods.methods[f"{BEFORE} {nbits} bits"].scores()
                    methods.check(f"maxsim {nbits} bits", near(wanted, TOLERANCE))
                must_be_there(methods, *specs)
                times = methods.turns(bench.seconds * 4)
        middle = world.figures(times)
        ours = [middle[f"maxsim {nbits} bits"] for nbits in (2, 4)]
        old = [middle[f"{BEFORE} {nbits} bits"] for nbits in (2, 4)]
        found.append(
            rows.row(
                goals.PLAID, goal, ours[0], "ms of CPU, 2 bits", {BEFORE: old[0]},
                ms_4_bits=ours[1], c7af311_4_bits=old[1], x_2_bits=ratio(old[0], ours[0]),
                x_4_bits=ratio(old[1], ours[1]), quartiles=world.spreads(times),
                n=len(times["maxsim 2 bits"]),
            )  # fmt: skip
        )
    yield found
