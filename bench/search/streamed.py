"""Searches of documents that are not on the device: from page-locked memory and from page cache."""

import ctypes
import os
import pathlib
import tempfile
import threading
import time

import cases
import compressed
import data
import ours
import runner
import torch
from python import packages, rows, world

from . import goals, searches

K = 10
#: Documents that a peer's loop, and what is expected, take at a time.
BLOCK = 20_000
#: Documents that are on the device where a stream is compared with a scan of such.
RESIDENT = 20_000
#: Threads that read documents; 0: as many as the library chooses.
THREADS = (0, 4, 8, 12, 16)
#: As many as an index of so many tokens has.
N_CENTROIDS = 1 << 17
FLASH_LOOP = "flash-maxsim, loop over pageable memory"
LINK_BYTES = 1 << 30


class Link:
    """Copies from page-locked memory to the device: calling it moves so many bytes."""

    def __init__(self, w):
        n = w.size(LINK_BYTES, 1 << 16)
        self.times = 4
        self.source = torch.zeros(n, dtype=torch.uint8, pin_memory=w.on_gpu)
        self.to = torch.empty(n, dtype=torch.uint8, device=w.device)

    def __call__(self):
        for _ in range(self.times):
            self.to.copy_(self.source, non_blocking=True)

    def bytes_per_s(self, seconds):
        return self.times * self.source.nbytes / seconds


class Corpus:
    """Pages `[n, len, dim]` of random tokens in host memory at `rows`."""

    def __init__(self, w, rows):
        self.w, self.rows = w, rows
        self.bench, self.link = runner.bench_of(w), Link(w)
        self.n, self.length, self.dim = rows.shape
        for first in range(0, self.n, 1 << 12):
            some = rows[first : first + (1 << 12)]
            drawn = data.unit(len(some) * self.length, self.dim, rows.dtype, w.device)
            some.copy_(drawn.view(some.shape))

    def queries(self, n, length):
        """Random queries in host memory."""
        drawn = data.unit(n * length, self.dim, torch.float16, self.w.device)
        return drawn.view(n, length, self.dim).cpu()

    def stream(self, queries, threads=0, codes=None, on=None):
        """A search of all documents; of `(codes, scales)` in host memory in their place; `on`:
        a handle of several devices in place of the one."""
        found = searches.Found(len(queries), min(K, self.n))
        device = self.bench.device
        on = device.handle if on is None else on
        of = (b"f16", self.rows.data_ptr(), 0)
        if codes is not None:
            of = (b"int8", *(x.data_ptr() for x in codes))
        shape = (self.dim, self.n, self.length)
        to_find = (queries.data_ptr(), len(queries), queries.shape[1], found.ids.shape[1])
        arguments = (*of, *shape, *to_find, 0, threads, *found.addresses())

        def call():
            device("search_stream", on, *arguments)
            return found

        return call

    def from_file(self, path, queries, is_direct, threads=0):
        """A search of all documents in a file of them."""
        found = searches.Found(len(queries), min(K, self.n))
        device = self.bench.device
        shape = (self.dim, self.n, self.length)
        to_find = (queries.data_ptr(), len(queries), queries.shape[1], found.ids.shape[1])
        arguments = (str(path).encode(), int(is_direct), *shape, *to_find, threads)

        def call():
            device("search_file", device.handle, *arguments, *found.addresses())
            return found

        return call

    def expected(self, queries):
        """The ranking of the library's searches of a block after the other on the device."""
        best = []
        for first in range(0, self.n, BLOCK):
            rank, free = self.resident(self.rows[first : first + BLOCK], queries)
            found = rank()
            best += [(found.scores.clone(), found.ids + first)]
            free()
        scores, ids = (torch.cat(x, dim=1) for x in zip(*best))
        # Those of equal scores are in the order of their ids.
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : min(K, self.n)]
        return scores.gather(1, order), ids.gather(1, order)

    def resident(self, documents, queries):
        """A search of documents that are copied to the device, and what frees it."""
        documents = documents.to(self.w.device)
        device, found = self.bench.device, searches.Found(len(queries), min(K, len(documents)))
        shape = (self.dim, len(documents), self.length)
        handle = device.tokens("f16", documents.data_ptr(), *shape)
        shape = (self.dim, len(queries), queries.shape[1], found.ids.shape[1])

        def call(kept=documents):
            device("rank", handle, queries.data_ptr(), *shape, *found.addresses())
            return found

        return call, lambda: device.free(handle)

    def seconds(self, methods, least=5):
        """Seconds of whole calls in turns with the link's; medians' link in bytes per second."""
        once = lambda call: self.w.timer.call_ms(call) / 1e3
        times = self.w.turns(methods | {"link": self.link}, once, least=least)
        link = world.figures({"link": times.pop("link")})["link"]
        return times, self.link.bytes_per_s(link)

    def flash_loop(self, queries, documents=None):
        """flash-maxsim over pageable memory as its users write it: a block is copied, scored, and
        its best are kept. Without `documents`, which are all there are, one block stands for all:
        there is no room for another copy of them."""
        flash = packages.original("flash_maxsim")
        block = self.rows[: min(BLOCK, self.n)].clone() if documents is None else None
        query = queries[0].to(self.w.device)

        def call():
            best = []
            for first in range(0, self.n, BLOCK):
                n = min(BLOCK, self.n - first)
                part = block[:n] if documents is None else documents[first : first + n]
                scores = flash.flash_maxsim(query, part.to(self.w.device))
                found = torch.topk(scores, min(K, n))
                best.append((found.values, found.indices + first))
            scores, ids = (torch.cat(x) for x in zip(*best))
            order = torch.topk(scores, min(K, self.n)).indices
            return scores[order].cpu(), ids[order].cpu()

        return call


def check(found, expected, tolerance=world.TOLERANCE):
    """Compares a ranking `[n, k]` with what is expected: documents may change places where their
    scores are as near as rounding."""
    scores, ids = expected
    error = ((found.scores - scores) / scores).abs()
    if not float(error.max()) <= tolerance:
        raise ValueError(f"the best are off by {float(error.max()):.2e} relative")
    for i, place in (found.ids != ids).nonzero().tolist():
        near = [scores[i, p] for p in (place - 1, place + 1) if 0 <= p < ids.shape[1]]
        # Behind the last place there may be an equal one.
        at_end = place + 1 == ids.shape[1]
        gap = min((abs(float(x - scores[i, place])) for x in near), default=0.0)
        if not at_end and gap > tolerance * abs(float(scores[i, place])):
            raise ValueError(f"query {i}: another document in place {place}")


def device_bytes(w, call):
    """Most memory of the device that is in use during a call, beyond what is before."""
    if not w.on_gpu:
        call()
        return 0
    before, least, is_over = w.timer.free_bytes(), [1 << 62], threading.Event()

    def watch():
        while not is_over.is_set():
            least[0] = min(least[0], torch.cuda.mem_get_info()[0])
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        call()
    finally:
        is_over.set()
        thread.join()
    return before - least[0]


def page_locked(w, n, length, dim):
    """f16 `[n, len, dim]` in page-locked memory of the library's, which lives as long as the
    process."""
    device = runner.bench_of(w).device
    n_bytes = 2 * n * length * dim
    memory, address = device("page_locked", device.handle, n_bytes), ctypes.c_uint64()
    device("address", memory, ctypes.byref(address))
    room = (ctypes.c_byte * n_bytes).from_address(address.value)
    return torch.frombuffer(room, dtype=torch.float16).view(n, length, dim)


def pinned(w):
    """Rows of documents in page-locked memory."""
    corpus = None
    for case, measure in ((goals.PINNED, pinned_row), (goals.MANY, many_row)):
        goal = goals.GOALS[case](w.card)
        with world.reported(case, goal) as found:
            corpus = corpus or pages(w)
            found.append(measure(w, goal, corpus))
        yield found


def compressed_pages(w):
    """The row of the same documents compressed, whose f16 rows are searched in the same run."""
    goal = goals.GOALS[goals.COMPRESSED](w.card)
    with world.reported(goals.COMPRESSED, goal) as found:
        found.append(compressed_row(w, goal, pages(w)))
    yield found


def pages(w):
    """The corpus of page-locked pages."""
    shape = w.size(250_000, 60), w.size(1024, 24), w.size(128, 32)
    return Corpus(w, page_locked(w, *shape))


def pinned_row(w, goal, corpus):
    """One page among pages in f16."""
    queries = corpus.queries(1, corpus.length)
    call = corpus.stream(queries)
    check(call(), corpus.expected(queries))
    peers, bad = loops(w, corpus, queries)
    times, link = corpus.seconds({"maxsim": call} | peers)
    return stream_row(goals.PINNED, goal, corpus, times, bad, link, device_bytes(w, call))


def loops(w, corpus, queries, documents=None):
    """The peer's loop, if it works."""
    try:
        loop = corpus.flash_loop(queries, documents)
    except Exception as error:
        return {}, {FLASH_LOOP: world.timing.said(error)}
    return w.working({FLASH_LOOP: loop})


def stream_row(case, goal, corpus, times, bad, link, n_device_bytes, **more):
    """The row of searches in seconds, whose floor is the link."""
    own = world.figures(times)["maxsim"]
    return world.compared(
        case,
        goal,
        times,
        "s",
        bad,
        corpus.rows.nbytes / link,
        documents_per_s=corpus.n / own,
        gb_per_s=corpus.rows.nbytes / own / 1e9,
        link_gb_per_s=link / 1e9,
        device_bytes=n_device_bytes,
        **more,
    )


def many_row(w, goal, corpus):
    """Many queries in one pass."""
    page, short = corpus.length, w.size(32, 8)
    wanted = {
        "10 pages": corpus.queries(w.size(10, 3), page),
        "1 page": corpus.queries(1, page),
        "320 queries": corpus.queries(w.size(320, 5), short),
        "1 query": corpus.queries(1, short),
        "32 pages": corpus.queries(w.size(32, 4), page),
    }
    methods = {name: corpus.stream(queries) for name, queries in wanted.items()}
    for name in ("10 pages", "320 queries"):
        check(methods[name](), corpus.expected(wanted[name]))
    documents = corpus.rows[:RESIDENT]
    methods["resident"], free = corpus.resident(documents, wanted["32 pages"])
    times, link = corpus.seconds(methods)
    free()
    s = world.figures(times)
    rate, resident = corpus.n / s["32 pages"], len(documents) / s["resident"]
    times = {"maxsim": times["10 pages"]}
    return stream_row(
        goals.MANY, goal, corpus, times, None, link, device_bytes(w, methods["32 pages"]),
        seconds={name: s[name] for name in wanted},
        x_one_query_pages=rows.ratio(s["10 pages"], s["1 page"]),
        x_one_query_short=rows.ratio(s["320 queries"], s["1 query"]),
        documents_per_s_32_pages=rate, documents_per_s_32_pages_resident=resident,
        of_resident=rows.ratio(rate, resident),
    )  # fmt: skip


def compressed_row(w, goal, corpus):
    """One page among codes of the pages, which take the place of the pages in memory."""
    queries = corpus.queries(1, corpus.length)
    plain = corpus.stream(queries)
    wanted = plain().ids.clone()
    times, _ = corpus.seconds({"f16": plain}, least=3)
    f16 = corpus.n / world.figures(times)["f16"]
    codes = to_codes(corpus)
    call = corpus.stream(queries, codes=codes)
    share = len(set(call().ids[0].tolist()) & set(wanted[0].tolist())) / wanted.shape[1]
    residual = Residuals(w, corpus)
    residual.check()
    times, link = corpus.seconds({"maxsim": call, "plaid": residual.search})
    n_bytes = sum(x.nbytes for x in codes)
    middle = world.figures(times)
    own, plaid = middle["maxsim"], middle["plaid"]
    return world.compared(
        goals.COMPRESSED,
        goal,
        {"maxsim": times["maxsim"]},
        "s",
        None,
        n_bytes / link,
        documents_per_s=corpus.n / own,
        link_gb_per_s=link / 1e9,
        device_bytes=device_bytes(w, call),
        f16_documents_per_s=f16,
        x_f16_int8=rows.ratio(corpus.n / own, f16),
        recall_of_f16=share,
        plaid_s=plaid,
        plaid_quartiles=world.spreads(times)["plaid"],
        plaid_limit_s=residual.problem.n_bytes() / link,
        plaid_documents_per_s=corpus.n / plaid,
        plaid_device_bytes=device_bytes(w, residual.search),
        x_f16_plaid=rows.ratio(corpus.n / plaid, f16),
    )


class Residuals:
    """As many pages as a corpus has, of random centroids and 2-bit buckets, in host memory."""

    def __init__(self, w, corpus):
        self.w, self.bench = w, corpus.bench
        shape = (1, corpus.length, corpus.n, corpus.length)
        n_centroids = w.size(N_CENTROIDS, 64)
        case = cases.Case(
            "pages", "", *shape, dim=corpus.dim, format="plaid", nbits=2, n_centroids=n_centroids
        )
        self.problem = problem = compressed.Residual(case, w.device)
        self.queries = problem.queries.cpu()
        tensors = (problem.centroids, problem.weights, problem.codes, problem.residuals)
        self.host = [tensor.cpu() for tensor in tensors]
        centroids, weights, codes, residuals = (tensor.data_ptr() for tensor in self.host)
        # Page-locked and arranged: only GPUs read such.
        device = self.bench.device
        self.handle = device(
            "host_residual", device.handle if w.on_gpu else None, case.nbits, centroids,
            n_centroids, case.dim, weights, codes, residuals, case.n_docs, case.doc_len,
        )  # fmt: skip
        self.found = searches.Found(1, min(K, case.n_docs))

    def search(self):
        """A search of all documents."""
        device, case = self.bench.device, self.problem.case
        shape = (case.dim, 1, case.query_len, self.found.ids.shape[1])
        where = (self.queries.data_ptr(), *shape, 0, *self.found.addresses())
        device("search_residual_stream", device.handle, self.handle, *where)
        return self.found

    def check(self):
        """Compares a search with one of the same documents on the device."""
        found, device = self.search(), self.bench.device
        one = compressed.Stored(self.bench, self.problem)
        top_k = ours.TopK(device, one.call, self.found.ids.shape[1])
        one.call()
        top_k()
        best = searches.Found(*self.found.ids.shape)
        top_k.read(*best.addresses())
        top_k.free()
        one.free()
        device.free(*one.uploaded)
        check(found, (best.scores, best.ids), compressed.TOLERANCES["plaid"])


def to_codes(corpus):
    """INT8 codes and f16 scales of the corpus' rows; the codes are written over the rows."""
    flat = corpus.rows.view(-1, corpus.dim)
    codes = flat.view(torch.int8).view(-1)[: flat.numel()].view(flat.shape)
    scales = torch.empty(len(flat), dtype=torch.float16)
    # A block's codes end before the next block's rows begin.
    for first in range(0, len(flat), 1 << 20):
        some = slice(first, min(first + (1 << 20), len(flat)))
        x = flat[some].to(corpus.w.device).float()
        scale = (x.abs().amax(1) / 127).half()
        scales[some] = scale.cpu()
        codes[some] = (x / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).cpu()
    return codes, scales


def cached(w):
    """The row of documents in a mapped file, all in the page cache."""
    goal = goals.GOALS[goals.CACHED](w.card)
    with world.reported(goals.CACHED, goal) as found:
        with tempfile.TemporaryDirectory(dir=w.args.folder) as folder:
            found.append(cached_row(w, goal, pathlib.Path(folder) / "pages"))
    yield found


def cached_row(w, goal, path):
    """One page among pages of a file."""
    shape = w.size(60_000, 60), w.size(1024, 24), w.size(128, 32)
    n_elements = shape[0] * shape[1] * shape[2]
    mapped = torch.from_file(str(path), shared=True, size=n_elements, dtype=torch.float16)
    corpus = Corpus(w, mapped.view(shape))
    # Nothing is written to the disk while the file is read.
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    queries = corpus.queries(1, corpus.length)
    calls = {n: corpus.stream(queries, threads=n) for n in THREADS}
    expected = corpus.expected(queries)
    for call in calls.values():
        check(call(), expected)
    tried, _ = corpus.seconds(calls, least=3)
    by_threads = world.figures(tried)
    n_threads = min(by_threads, key=by_threads.get)
    peers, bad = loops(w, corpus, queries, corpus.rows)
    read = {
        name: corpus.from_file(path, queries, is_direct, n_threads)
        for name, is_direct in (("page cache", False), ("past the page cache", True))
    }
    read, not_read = w.working(read, lambda _, found: check(found, expected))
    times, link = corpus.seconds({"maxsim": calls[n_threads]} | peers | read)
    of_file = world.figures({name: times.pop(name) for name in read}) | not_read
    return stream_row(
        goals.CACHED, goal, corpus, times, bad, link, device_bytes(w, calls[n_threads]),
        threads=n_threads or "as the library chooses",
        seconds_by_threads={str(n): s for n, s in by_threads.items()},
        seconds_of_reads=of_file,
    )  # fmt: skip
