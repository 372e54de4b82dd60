"""The loss of 500 training steps beside that of PyTorch in f32 (figure 3 of the Flash-MaxSim
paper)."""

import ours
import torch
from python import world
from torch.utils.checkpoint import checkpoint

N_STEPS, BATCH, LENGTH, HIDDEN, DIM = 500, 64, 1024, 64, 128
RATE, TEMPERATURE = 1e-3, 0.02
#: A figure has this many points of each curve.
N_POINTS = 50


class Scores(torch.autograd.Function):
    """Our scores of `[n, length, dim]` queries and documents in f16, and their gradients."""

    @staticmethod
    def forward(context, queries, documents, device):
        context.pair = Pair(device, queries.half(), documents.half())
        return context.pair.scores.clone()

    @staticmethod
    def backward(context, g):
        return *context.pair.gradients(g), None


class Pair:
    """A call of ours with winners, and the step that it is part of."""

    def __init__(self, device, queries, documents):
        self.device, self.sides = device, (queries.contiguous(), documents.contiguous())
        n, n_docs, query_len = len(queries), len(documents), queries.shape[1]
        self.scores = torch.zeros(n, n_docs, device="cuda")
        self.winners = torch.zeros(n * n_docs * query_len, dtype=torch.int16, device="cuda")
        self.handles = [
            device.tokens("f16", side.data_ptr(), side.shape[2], *side.shape[:2])
            for side in self.sides
        ]
        places = (self.scores.data_ptr(), self.winners.data_ptr())
        self.call = ours.Call(device, *self.handles, 0, "winners=1", *places)
        self.call()

    def gradients(self, g):
        """Of queries and documents, in f32."""
        g = g.contiguous().float()
        grads = [torch.zeros_like(side) for side in self.sides]
        step = ours.Step(
            self.device, self.call, "owner", g.data_ptr(), *[grad.data_ptr() for grad in grads]
        )
        step.backward()
        torch.cuda.synchronize()
        step.free()
        self.call.free()
        self.device.free(*self.handles)
        return [grad.float() for grad in grads]


def plain(queries, documents, _):
    """The same in PyTorch: f16 tokens, products and sums in f32, a query at a time."""
    q, d = queries.half().float(), documents.half().float()
    one = lambda query: torch.einsum("sd,ntd->nst", query, d).amax(2).sum(1)
    rows = [checkpoint(one, query, use_reentrant=False) for query in q]
    return torch.stack(rows)


def losses(score, device, n_steps, batch, length):
    """The loss of every step, of a projection that learns to tell pages from others."""
    generator = torch.Generator(device="cuda").manual_seed(11)
    draw = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)
    weight = (draw(HIDDEN, DIM) / HIDDEN**0.5).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=RATE)
    pages = draw(batch * 2, length, HIDDEN)
    found, target = [], torch.arange(batch, device="cuda")
    for _ in range(n_steps):
        chosen = torch.randperm(len(pages), device="cuda", generator=generator)[:batch]
        documents = pages[chosen]
        queries = documents + 2 * draw(*documents.shape)
        unit = lambda hidden: torch.nn.functional.normalize(hidden @ weight, dim=-1)
        scores = score(unit(queries), unit(documents), device)
        loss = torch.nn.functional.cross_entropy(scores / length / TEMPERATURE, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def parity(w):
    """The row of both runs: the largest relative difference of a loss."""
    if not w.on_gpu:
        return
    n, batch, length = (4, 4, 40) if w.tiny else (N_STEPS, BATCH, LENGTH)
    words = f"{n} training steps, in-batch, {batch} of {length} × {length}"
    with world.reported(words, None) as found:
        device = ours.Device(0, torch.cuda.current_stream().cuda_stream)
        own = losses(Scores.apply, device, n, batch, length)
        wanted = losses(plain, device, n, batch, length)
        off = max(abs(a - b) / abs(b) for a, b in zip(own, wanted))
        every = max(1, n // N_POINTS)
        curves = {
            name: [round(value, 6) for value in values[::every]]
            for name, values in (("maxsim", own), ("PyTorch, f32", wanted))
        }
        curves["step"] = list(range(0, n, every))
        found.append(
            world.rows.row(words, None, off, "largest relative difference", curves=curves)
        )
    yield found
