"""Whether a call waits for the device, where its lengths, offsets and ids are on it."""

import time

import maxsim
import torch

from . import packages, rows, world
from .world import reported

GOAL = rows.Goal("0", (("ours", "<=", 0),))
CASE = "ragged batch with lengths on the device: waits for the device"
#: The device is busy for so long when a call is enqueued: one that waits takes as long.
BUSY_MS = 300
#: What the driver and the runtime call a wait; copies to the host are asked for by kind.
WAITS = ("Synchronize", "cuMemcpyDtoH", "Memcpy DtoH", "cudaMemcpy ", "cuMemFree", "cudaFree")


class Batch:
    """A ragged batch: padded and packed tokens, lengths, offsets and ids, all on the device."""

    def __init__(self, w, seed):
        generator = torch.Generator().manual_seed(seed)
        n, self.k, dim = w.size(32), w.size(8, 3), w.size(128, 16)
        q_len, d_len = w.size(32, 6), w.size(180, 9)

        def tokens(*shape):
            drawn = torch.randn(*shape, generator=generator)
            drawn = torch.nn.functional.normalize(drawn, dim=-1)
            return drawn.to(w.device, torch.float16)

        def lengths(count, longest):
            drawn = torch.randint(1, longest + 1, (count,), generator=generator)
            return drawn.to(torch.int32).to(w.device)

        self.q, self.d = tokens(n, q_len, dim), tokens(n, d_len, dim)
        self.q_lengths, self.d_lengths = lengths(n, q_len), lengths(n, d_len)
        self.q_offsets, self.d_offsets = (
            torch.nn.functional.pad(x.cumsum(0), (1, 0)).to(torch.int32)
            for x in (self.q_lengths, self.d_lengths)
        )
        self.q_len, self.d_len = q_len, d_len
        # As many rows as there could be, of which the offsets use those they name.
        self.q_rows, self.d_rows = (
            tokens(int(x[-1]), dim) for x in (self.q_offsets, self.d_offsets)
        )
        ids = torch.randint(0, n, (n, self.k), generator=generator)
        self.ids = ids.to(torch.int32).to(w.device)
        self.pair_ids = torch.arange(n, dtype=torch.int32, device=w.device)

    def expected(self, q_items, d_items, pairs):
        """Float64 scores of pairs of items."""
        found = []
        for i, j in pairs:
            found.append((q_items[i].double() @ d_items[j].double().T).amax(1).sum())
        return torch.stack(found)

    def padded_items(self):
        """Items of the padded sides, without what is no token of theirs."""
        return [
            [x[i, : lengths[i]] for i in range(len(x))]
            for x, lengths in ((self.q, self.q_lengths), (self.d, self.d_lengths))
        ]

    def packed_items(self):
        """Items of the packed sides."""
        return [
            [x[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]
            for x, offsets in ((self.q_rows, self.q_offsets), (self.d_rows, self.d_offsets))
        ]


def with_lengths(b, q, d):
    return maxsim.maxsim(q, d, q_lengths=b.q_lengths, d_lengths=b.d_lengths)


def with_offsets(b, q, d):
    bounds = dict(max_q_len=b.q_len, max_d_len=b.d_len)
    return maxsim.packed(q, d, b.q_offsets, b.d_offsets, **bounds)


def with_ids(b, q, d):
    return maxsim.candidates(q, d, b.ids, q_lengths=b.q_lengths, d_lengths=b.d_lengths)


def pairs_of_packed(b, q, d):
    return maxsim.packed(
        q, d, b.q_offsets, b.d_offsets, b.pair_ids, b.pair_ids, max_q_len=b.q_len,
        max_d_len=b.d_len,
    )


def every_pair(b):
    n = len(b.q)
    return [(i, j) for i in range(n) for j in range(n)]


#: Words, the call, whether its sides are packed, and the pairs that it scores.
CALLS = (
    ("lengths", with_lengths, False, every_pair),
    ("offsets", with_offsets, True, every_pair),
    (
        "lengths and ids of candidates",
        with_ids,
        False,
        lambda b: [(i, j) for i, ids in enumerate(b.ids.tolist()) for j in ids],
    ),
    (
        "offsets and ids of pairs",
        pairs_of_packed,
        True,
        lambda b: [(i, i) for i in range(len(b.q))],
    ),
)


def waits(w):
    """Rows of waits, forward and with backward."""
    for words, call, is_packed, pairs in CALLS:
        for training in (False, True):
            case = f"{CASE}, {words}, {'forward + backward' if training else 'forward'}"
            with reported(case, GOAL) as found:
                found.append(waits_row(w, case, call, is_packed, pairs, training))
            yield found


def waits_row(w, case, call, is_packed, pairs, training):
    """The waits of a call whose lengths were never seen before."""
    first, second = Batch(w, 1), Batch(w, 2)
    leaves = sides(second, is_packed)
    with torch.no_grad():
        items = second.packed_items() if is_packed else second.padded_items()
        expected = second.expected(*items, pairs(second))
        scores = call(second, *leaves).flatten().double()
    error = float(((scores - expected) / expected).abs().max())
    if not error <= world.TOLERANCE:
        raise ValueError(f"scores are off by {error:.2e} relative")

    def run(b, q, d):
        if not training:
            with torch.no_grad():
                return call(b, q, d)
        found = call(b, q, d)
        found.backward(torch.ones_like(found))
        return found

    batches = [Batch(w, seed) for seed in (3, 4, 5)]
    tensors = [sides(b, is_packed) for b in batches]
    for _ in range(3):
        run(first, *sides(first, is_packed))
    if not w.on_gpu:
        return rows.row(case, GOAL, 0, "waits", note="not on a GPU")
    torch.cuda.synchronize()
    noticed = noticed_by_torch(lambda: run(batches[0], *tensors[0]))
    seen = seen_by_profiler(lambda: run(batches[1], *tensors[1]))
    took_ms = while_busy_ms(lambda: run(batches[2], *tensors[2]))
    waited = took_ms > BUSY_MS / 2
    return rows.row(
        case,
        GOAL,
        max(len(seen), int(waited), int(bool(noticed))),
        "waits",
        profiler=seen,
        torch_says=noticed,
        ms_while_the_device_is_busy=took_ms,
        busy_ms=BUSY_MS,
        peers_waits=None if training or not is_packed else waits_of_peer(batches[0]),
    )


def sides(b, is_packed):
    """Both sides as leaves."""
    found = (b.q_rows, b.d_rows) if is_packed else (b.q, b.d)
    return [x.detach().clone().requires_grad_() for x in found]


def noticed_by_torch(call):
    """What torch says where it would wait itself."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
        return None
    except RuntimeError as error:
        return world.timing.said(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def seen_by_profiler(call):
    """Names of the waits that the profiler records, of the driver and of the runtime."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        call()
        # The profiler itself waits at its end: what comes before this mark is the call's.
        with torch.profiler.record_function("the call has returned"):
            pass
    events = found.events()
    ends = [e.time_range.start for e in events if e.name == "the call has returned"]
    end = min(ends) if ends else float("inf")
    return sorted(
        event.name
        for event in events
        if event.time_range.start < end and any(word in event.name for word in WAITS)
    )


def while_busy_ms(call):
    """Host time of a call that is enqueued behind a long kernel."""
    torch.cuda.synchronize()
    torch.cuda._sleep(int(BUSY_MS * 1e3 * world.timing.CYCLES_PER_US))
    start = time.perf_counter()
    result = call()
    elapsed = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    del result
    return elapsed


def waits_of_peer(b):
    """Whether the peer's call with offsets waits, its longest items given and not."""
    try:
        lik = packages.original("late_interaction_kernels")
    except ImportError as error:
        return world.timing.said(error)
    longest = (b.q_len, int(b.d_lengths.max()))
    found = {}
    for words, bounds in (("longest given", longest), ("longest not given", (None, None))):
        arguments = (b.q_rows, b.d_rows, b.q_offsets, b.d_offsets, *bounds)
        lik.maxsim_varlen(*arguments)
        found[words] = while_busy_ms(lambda: lik.maxsim_varlen(*arguments)) > BUSY_MS / 2
    return found
