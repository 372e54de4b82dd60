"""The rows of the record: their words, and what each is to show. No PyTorch.

A goal is a function of the card's name, since some differ from card to card.
"""

from python.rows import Goal

WEIGHTS = "weights, mean"
ANGULAR = "angular"
XTR = "XTR training score 64 × 32 × (64 · 8) × 180, k 256"
CHAMFER = (
    "Chamfer step d 3: 10 K / 100 K / 1 M points; unit sphere with 1e-3 noise (converging), "
    "uniform cube, a LiDAR-like scene: the slowest counts; sorting and boxes included"
)
BATCH = "Chamfer step d 3, batch of 32 × 2048"
DIM_128 = "Chamfer step d 128, 100 K points"
PROJECTION = "projection, 32 queries of 32 × 1024 × 1024, 768 → 128, bf16"
PROJECTION_STEP = "projection, forward and backward, 1 × 32 × 1024 × 2048"


def of_weights(_):
    return Goal(
        "≤ 1.02 × the plain call; gradients with ∂w ≤ 1.05 ×",
        (("ours", "<=", 1.02), ("x_gradients", "<=", 1.05)),
    )


def of_xtr(_):
    return Goal(
        "≥ 5 × sentence-transformers eager, ≤ 3 × plain MaxSim, ≤ 32 MB",
        (("x_sentence_transformers", ">=", 5), ("x_plain", "<=", 3), ("megabytes", "<=", 32)),
    )


def of_chamfer(_):
    return Goal(
        "≤ 0.08 / 1.5 / 8 ms (≥ 5 × / ≥ 10 × flash-maxsim / no peer); nearest neighbours 100 % "
        "right, value within 1e-6",
        (
            ("ms_10k", "<=", 0.08), ("ms_100k", "<=", 1.5), ("ms_1m", "<=", 8),
            ("x_10k", ">=", 5), ("x_100k", ">=", 10),
        ),
    )  # fmt: skip


def of_batch(_):
    return Goal(
        "≤ 0.12 ms forward and backward; at most 2 launches forward and 2 backward for the whole "
        "batch",
        (("ours", "<=", 0.12), ("forward_launches", "<=", 2), ("backward_launches", "<=", 2)),
    )


def of_dim_128(_):
    return Goal(
        "f32 ≤ 9 ms, f16 ≤ 4.5 ms (≥ 3 × / ≥ 6 ×)",
        (("ms_f32", "<=", 9), ("ms_f16", "<=", 4.5), ("x_f32", ">=", 3), ("x_f16", ">=", 6)),
    )


def of_projection(card):
    is_h200 = "H200" in card
    most, one = (0.95, 0.5) if is_h200 else (1.05, 0.7)
    return Goal(
        "H200 ≤ 0.95 ms, H100 ≤ 1.05 (≥ 3.2 × unfused, ≥ 16 × the fused peer), workspace ≤ 32 MB; "
        "one query ≤ 0.5 / 0.7 ms",
        (
            ("ours", "<=", most), ("x_unfused", ">=", 3.2), ("x_fused", ">=", 16),
            ("megabytes", "<=", 32), ("one_query", "<=", one),
        ),
    )  # fmt: skip


def of_projection_step(card):
    most = 1.9 if "H200" in card else 2.8
    return Goal("H200 ≤ 1.9 ms, H100 ≤ 2.8 ms", (("ours", "<=", most),))


def of_angular(_):
    return Goal(
        "≤ 1.02 × the call that normalises; gradients ≤ 1.02 ×",
        (("ours", "<=", 1.02), ("x_gradients", "<=", 1.02)),
    )


#: The goals by their rows, in the record's order.
GOALS = {
    WEIGHTS: of_weights,
    XTR: of_xtr,
    CHAMFER: of_chamfer,
    BATCH: of_batch,
    DIM_128: of_dim_128,
    PROJECTION: of_projection,
    PROJECTION_STEP: of_projection_step,
    ANGULAR: of_angular,
}
