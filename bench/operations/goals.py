"""The rows of the record: their words, and what each is to show. No PyTorch.

A goal is a function of the card's name, since some differ from card to card.
"""

from python.rows import Goal

WEIGHTS = "weights, mean"


def of_weights(_):
    return Goal(
        "≤ 1.02 × the plain call; gradients with ∂w ≤ 1.05 ×",
        (("ours", "<=", 1.02), ("x_gradients", "<=", 1.05)),
    )


#: The goals by their rows, in the record's order.
GOALS = {
    WEIGHTS: of_weights,
}
