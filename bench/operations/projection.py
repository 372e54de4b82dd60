"""Scores of hidden states that are projected on the way, beside late-interaction-kernels' fused and
unfused ways.

Ours are whole calls, from Python until scores are there, and so are the others in their rows. A
step's gradients are there then, too: on the device, in the element type, as autograd has them. Room
for ours is made beforehand, and counts in megabytes.
"""

import ours
import runner
import torch
from python import packages, rows, world

from . import goals
from .xtr import megabytes

#: Elements of a hidden state and of a token.
HIDDEN, DIM = 768, 128
#: Documents with which kernels are loaded.
FEW = 2


class Case:
    """Queries, hidden states and a weight of bf16, and their handles."""

    def __init__(self, w, bench, n_queries, n_documents, length):
        self.shape = (w.size(n_queries, 2), w.size(n_documents, 3))
        length, hidden, dim = w.size(length, 20), w.size(HIDDEN, 64), w.size(DIM, 32)
        generator = torch.Generator(device=w.device).manual_seed(1)

        def draw(*shape):
            found = torch.randn(*shape, generator=generator, device=w.device)
            return torch.nn.functional.normalize(found, dim=-1).bfloat16()

        self.queries = draw(self.shape[0], w.size(32, 8), dim)
        self.hidden, self.weight = draw(self.shape[1], length, hidden), draw(dim, hidden)
        device = bench.device
        sizes = [(self.queries, *self.queries.shape), (self.hidden, *self.hidden.shape)]
        sizes.append((self.weight, 1, *self.weight.shape))
        self.handles = [
            device.tokens("bf16", rows_of.data_ptr(), dim, n, length)
            for rows_of, n, length, dim in sizes
        ]
        self.device = device

    def call(self, with_gradients=False):
        """Our call."""
        return ours.Whole(self.device, "projected", *self.handles, int(with_gradients))

    def check(self, scores):
        """Compares scores with those of float64 tokens that are rounded once."""
        some = torch.linspace(0, self.shape[1] - 1, min(self.shape[1], world.SAMPLE)).long()
        tokens = self.hidden[some].double() @ self.weight.double().T
        tokens = torch.nn.functional.normalize(tokens, dim=-1).bfloat16().double()
        found = torch.einsum("qsd,ntd->qnst", self.queries.double(), tokens).amax(-1).sum(-1)
        scores = scores.to(found.device).double().view(self.shape)[:, some]
        error = ((scores - found).abs() / found.abs().clamp_min(1e-2)).max().item()
        # A token may be rounded the other way.
        if not error <= 4e-3:
            raise ValueError(f"scores are off by {error:.2e} relative")

    def check_call(self, call):
        """Checks the scores of our call."""
        scores = torch.empty(self.shape)
        call.read(scores.data_ptr())
        self.check(scores)

    def checked(self, with_gradients=False):
        """Our call, whose scores are right."""
        call = self.call(with_gradients)
        self.check_call(call)
        return call

    def peers(self, with_gradients=False):
        """late-interaction-kernels' ways."""
        given = (self.queries, self.hidden, self.weight)
        if with_gradients:
            given = tuple(x.clone().requires_grad_(True) for x in given)

        def fused():
            lik = packages.original("late_interaction_kernels.fused_head")
            return lik.maxsim_from_hidden(*given)

        def unfused():
            lik = packages.original("late_interaction_kernels")
            queries, hidden, weight = given
            tokens = torch.nn.functional.normalize(hidden @ weight.T, dim=-1)
            return lik.maxsim(queries, tokens)

        def step(score):
            if not with_gradients:
                return score

            def run():
                for x in given:
                    x.grad = None
                scores = score()
                scores.sum().backward()
                return scores.detach()

            return run

        names = {"late-interaction-kernels fused": fused, "unfused": unfused}
        return {name: step(score) for name, score in names.items()}

    def free(self):
        self.device.free(*self.handles)


def measured(w, case, few, with_gradients=False, peer=True):
    """Times of a call of ours and of peers, why some have none, and megabytes that ours holds.

    `few`: the same queries with so few documents that what the device keeps of a call of theirs,
    the tokens of a slice, is little. With them kernels are loaded, which count in no call."""
    few.checked(with_gradients).free()
    few.free()
    # What is made ready counts, and what the device keeps of it for the next call.
    made = []

    def first():
        made.append(case.call(with_gradients))
        made[0]()

    mb = megabytes(w, first, 1)
    (call,) = made
    case.check_call(call)
    good, bad = {}, {}
    if peer:
        good, bad = w.working(case.peers(with_gradients), lambda _, scores: case.check(scores))
    times = w.whole_ms({"maxsim": call} | good)
    call.free()
    return times, bad, mb


def projection(w):
    """The rows of projected documents."""
    for rows_of in (forward, step):
        yield rows_of(w)


def forward(w):
    goal = goals.GOALS[goals.PROJECTION](w.card)
    with world.reported(goals.PROJECTION, goal) as found:
        bench = runner.bench_of(w)
        case = Case(w, bench, 32, 1024, 1024)
        times, bad, mb = measured(w, case, Case(w, bench, 32, FEW, 1024))
        case.free()
        one = Case(w, bench, 1, 1024, 1024)
        one_times, _, _ = measured(w, one, Case(w, bench, 1, FEW, 1024), peer=False)
        one.free()
        middle = world.figures(times)
        mine = middle["maxsim"]
        row = world.compared(
            goals.PROJECTION, goal, times, "ms", bad, megabytes=mb,
            x_fused=rows.ratio(middle.get("late-interaction-kernels fused"), mine),
            x_unfused=rows.ratio(middle.get("unfused"), mine),
            one_query=world.figures(one_times)["maxsim"],
        )  # fmt: skip
        found.append(row)
    return found


def step(w):
    goal = goals.GOALS[goals.PROJECTION_STEP](w.card)
    with world.reported(goals.PROJECTION_STEP, goal) as found:
        bench = runner.bench_of(w)
        case, few = Case(w, bench, 1, 1024, 2048), Case(w, bench, 1, FEW, 2048)
        times, bad, mb = measured(w, case, few, with_gradients=True)
        case.free()
        found.append(world.compared(goals.PROJECTION_STEP, goal, times, "ms", bad, megabytes=mb))
    return found
