"""Searches on several GPUs of a machine as one: of documents in shards on them, and of documents
that each reads a share of."""

import ctypes

import ours
import torch
from python import rows, world

from . import goals, searches, streamed

COUNTS = (1, 2, 4)


class Group:
    """So many devices; where the scripts are only tried, the CPU several times."""

    def __init__(self, w, corpus, count):
        one = [ours.Device(i if w.on_gpu else -1, stream_of(w, i)) for i in range(count)]
        self.device = one[0]
        handles = (ctypes.c_void_p * count)(*(device.handle for device in one))
        self.handle = self.device("devices", handles, count)
        shape = (corpus.dim, corpus.n, corpus.length)
        self.shards = self.device("shards", self.handle, corpus.rows.data_ptr(), *shape)

    def rank(self, corpus, queries):
        """A search of the shards, from the host to the host."""
        found = searches.Found(len(queries), min(streamed.K, corpus.n))
        shape = (corpus.dim, len(queries), queries.shape[1], found.ids.shape[1])
        arguments = (self.shards, queries.data_ptr(), *shape, *found.addresses())

        def call():
            self.device("rank_shards", *arguments)
            return found

        return call


def stream_of(w, i):
    """The stream of PyTorch's on a device."""
    return torch.cuda.current_stream(i).cuda_stream if w.on_gpu else 0


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
    """A page among 100 000 pages of 1024 × 128 f16 (26 GB): on as many devices as there are, in
    shards, and from page-locked memory."""
    limits = w.limits
    shape = w.size(100_000, 60), w.size(1024, 24), w.size(128, 32)
    corpus = streamed.Corpus(w, streamed.page_locked(w, *shape))
    queries = corpus.queries(1, corpus.length)
    groups = {count: Group(w, corpus, count) for count in counts}
    resident = {str(n): group.rank(corpus, queries) for n, group in groups.items()}
    passing = {str(n): corpus.stream(queries, on=group.handle) for n, group in groups.items()}
    for kind, calls in (("shards", resident), ("streams", passing)):
        one = calls["1"]()
        for name, call in calls.items():
            found = call()
            if not (torch.equal(found.ids, one.ids) and torch.equal(found.scores, one.scores)):
                raise ValueError(f"{kind}: another ranking on {name} devices than on one")
    times, streams = w.whole_ms(resident), w.whole_ms(passing)
    ms, of_streams, most = world.figures(times), world.figures(streams), max(counts)
    flop = 2 * corpus.dim * corpus.length * corpus.n * corpus.length
    return world.compared(
        goals.DEVICES,
        goal,
        {"maxsim": times[str(most)]},
        "ms",
        None,
        limits.device_ms(corpus.rows.nbytes / most, flop / most, "f16"),
        ms_by_devices=ms,
        quartiles_by_devices=world.spreads(times),
        streamed_ms_by_devices=of_streams,
        devices=most,
        x_one_of_2=rows.ratio(ms["1"], ms["2"]),
        x_one_of_4=rows.ratio(ms["1"], ms.get("4")),
        streamed_x_one=rows.ratio(of_streams["1"], of_streams[str(most)]),
        same_ranking=True,
        what="a page among 100 000 pages of 1024 × 128 f16 (26 GB), from queries on the host to "
        "ids there",
    )
