"""The rows of the record: their words, and what each is to show. No packages.

A goal is a function of what the machine has: conditions are on its instruction sets alone.
"""

from python.rows import Goal

F32 = "f32 32 × (1000 × 300) × 128"
CODES = "INT8 codes, AVX2 / AVX-512 VNNI / AMX"
COARSE = "coarse-to-fine f32 through INT8, AVX2 / AMX"
BF16 = "bf16, AMX"
PLAID = "PLAID 2 and 4 bits"
START = "`maxsim rank` of the sample, cold, release"
NO_SLOWER = "every case beside commit c7af311"
SHORT = "one query of 32 × 10 documents of 100 × 128 f32"

#: The words of instruction sets, by the names that MAXSIM_CPU takes.
WORDS = {"avx2": "AVX2", "avxvnni": "AVX-VNNI", "vnni": "AVX-512 VNNI", "amx": "AMX"}
#: Our time of codes over the f32 time of commit c7af311, at most.
OF_F32 = {"avx2": 0.6, "vnni": 0.25, "amx": 0.12}
#: NumKong's time over ours, coarse to fine, at least.
X_NUMKONG = {"avx2": 1.3, "amx": 1.0}
#: Times that differ by less are not told apart on a machine that others use, too.
NOISE = 0.03


def here(of, instruction_sets):
    """The instruction sets of a table that the machine has."""
    return [name for name in of if name in instruction_sets]


def of_f32(_):
    return Goal(
        "≥ 1.0 × NumKong f32 on AVX2 while exact; ≥ 0.85 of the FMA peak for a block that fits "
        "L2, streaming ≥ 0.85 of min(FMA peak, measured one-core read rate × intensity)",
        (
            ("x_numkong_avx2", ">=", 1.0),
            ("largest_relative_error", "<=", 1e-5),
            ("of_peak_in_l2", ">=", 0.85),
            ("of_limit", ">=", 0.85),
            # More than all of a limit says that the limit was measured wrong.
            ("of_peak_in_l2", "<=", 1 + NOISE),
            ("of_limit", "<=", 1 + NOISE),
        ),
    )


def of_codes(instruction_sets):
    bounds = ((f"of_f32_{name}", "<=", OF_F32[name]) for name in here(OF_F32, instruction_sets))
    return Goal(
        "≤ 0.6 × / ≤ 0.25 × / ≤ 0.12 × the f32 time of commit c7af311 on the same core, run "
        "beside it",
        (*bounds, ("is_exact", ">=", 1)),
    )


def of_codes_by(name):
    """The goal of one instruction set's row of codes."""
    bound = OF_F32[name]
    return Goal(
        f"≤ {bound:g} × the f32 time of commit c7af311 on the same core, run beside it",
        (("of_f32", "<=", bound),),
    )


def of_coarse(instruction_sets):
    bounds = (
        (f"x_numkong_{name}", ">=", X_NUMKONG[name]) for name in here(X_NUMKONG, instruction_sets)
    )
    return Goal(
        "≥ 1.3 × / ≥ 1.0 × NumKong, top 10 overlap with exact 100 % on the real set (NumKong "
        "81 %), mean loss ≤ 5e-5",
        (*bounds, ("overlap", ">=", 1.0), ("mean_loss", "<=", 5e-5)),
    )


def of_bf16(_):
    return Goal(
        "≥ 0.9 × NumKong's bf16 rate, products exact, sums f32",
        (("x_numkong", ">=", 0.9), ("largest_relative_error", "<=", 1e-5)),
    )


def of_plaid(_):
    return Goal("≥ 3 × today's", (("x_2_bits", ">=", 3), ("x_4_bits", ">=", 3)))


def of_start(_):
    return Goal("≤ 30 ms wall", (("ours", "<=", 30),))


def of_no_slower(_):
    return Goal(
        "no case slower than today, at one thread and at all of them (3 % of noise)",
        (("ours", "<=", 1 + NOISE),),
    )


#: The goals by their rows, in the record's order.
GOALS = {
    F32: of_f32,
    CODES: of_codes,
    COARSE: of_coarse,
    BF16: of_bf16,
    PLAID: of_plaid,
    START: of_start,
    NO_SLOWER: of_no_slower,
}
