"""Searches of documents in shards on several GPUs of a machine."""

import ctypes

import data
import ours
import torch
from python import rows, world

from . import goals, searches

K = 100
COUNTS = (1, 2, 4)


class Shards:
    """Documents in equal shards, each on a device of its own; where the scripts are only tried,
    all on the CPU."""

    def __init__(self, w, documents, n_shards):
        self.n, self.length, self.dim = documents.shape
        n = -(-self.n // n_shards)
        self.parts, self.handles, self.firsts = [], [], []
        for i, first in enumerate(range(0, self.n, n)):
            place = torch.device("cuda", i) if w.on_gpu else torch.device("cpu")
            part = documents[first : first + n].to(place)
            stream = 0
            if w.on_gpu:
                torch.cuda.synchronize(place)
                stream = torch.cuda.current_stream(place).cuda_stream
            self.device = ours.Device(i if w.on_gpu else -1, stream)
            shape = (self.dim, len(part), self.length)
            self.handles.append(self.device.tokens("f16", part.data_ptr(), *shape))
            self.parts.append(part)
            self.firsts.append(first)

    def search(self, queries):
        """A search of all shards, from the host to the host."""
        n = len(self.handles)
        shards = (ctypes.c_void_p * n)(*self.handles)
        firsts = (ctypes.c_uint64 * n)(*self.firsts)
        found = searches.Found(len(queries), min(K, self.n))
        shape = (self.dim, len(queries), queries.shape[1], found.ids.shape[1])
        arguments = (shards, firsts, n, queries.data_ptr(), *shape, *found.addresses())

        def call():
            self.device("rank_shards", *arguments)
            return found

        return call


def devices(w):
    """The row of several GPUs."""
    goal = goals.GOALS[goals.DEVICES](w.card)
    with world.reported(goals.DEVICES, goal) as found:
        n_devices = torch.cuda.device_count() if w.on_gpu else max(COUNTS)
        if n_devices < 2:
            raise ValueError("the machine has one GPU")
        counts = [n for n in COUNTS if n <= n_devices]
        found.append(devices_row(w, goal, counts))
    yield found


def devices_row(w, goal, counts):
    """A page among 200 000 pages of 1024 × 128 f16 (52 GB), in as many shards as there are
    devices."""
    n, length, dim = w.size(200_000, 60), w.size(1024, 24), w.size(128, 32)
    limits = w.limits
    place = "cuda:0" if w.on_gpu else "cpu"
    documents = data.unit(n * length, dim, torch.float16, place).view(n, length, dim)
    queries = data.unit(length, dim, torch.float16, place).view(1, length, dim).cpu()
    shards = {count: Shards(w, documents, count) for count in counts}
    calls = {count: one.search(queries) for count, one in shards.items()}
    best = {count: call() for count, call in calls.items()}
    one = best[1]
    for count, found in best.items():
        if not (torch.equal(found.ids, one.ids) and torch.equal(found.scores, one.scores)):
            raise ValueError(f"another ranking on {count} devices than on one")
    times = w.whole_ms({str(count): call for count, call in calls.items()})
    ms, most = world.figures(times), max(counts)
    flop = 2 * dim * length * n * length
    return world.compared(
        goals.DEVICES,
        goal,
        {"maxsim": times[str(most)]},
        "ms",
        None,
        limits.device_ms(documents.nbytes / most, flop / most, "f16"),
        ms_by_devices=ms,
        devices=most,
        x_one_of_2=rows.ratio(ms["1"], ms["2"]),
        x_one_of_4=rows.ratio(ms["1"], ms.get("4")),
        quartiles_by_devices=world.spreads(times),
        same_ranking=True,
        what="a page among 200 000 pages of 1024 × 128 f16 (52 GB), from queries on the host to "
        "ids there",
    )
