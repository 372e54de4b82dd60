"""maxsim in this process: the C interface of bench/src/ffi.rs, by ctypes."""

import ctypes
import json
import os
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
NAME = "libmaxsim_bench.so"
HANDLE, TEXT, WORD = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64
OFFSETS = ctypes.POINTER(ctypes.c_int64)

# function: (result, arguments)
SIGNATURES = {
    "last_error": (TEXT, []),
    "open": (HANDLE, [ctypes.c_int32]),
    "tokens": (HANDLE, [HANDLE, TEXT, WORD, WORD, WORD, WORD, OFFSETS, WORD]),
    "weighted": (HANDLE, [HANDLE, TEXT] + [WORD] * 5),
    "quantize": (HANDLE, [TEXT] * 3 + [WORD] * 4 + [OFFSETS, WORD]),
    "codes": (ctypes.c_int32, [HANDLE, WORD, WORD, WORD]),
    "rounding_bounds": (ctypes.c_int32, [HANDLE, HANDLE, WORD]),
    "upload": (HANDLE, [HANDLE, HANDLE]),
    "screened": (HANDLE, [HANDLE, TEXT] + [WORD] * 4 + [OFFSETS, HANDLE]),
    "residual": (HANDLE, [HANDLE, TEXT] + [WORD] * 7 + [TEXT] + [WORD] * 3),
    "prepare": (HANDLE, [HANDLE, HANDLE, WORD, TEXT]),
    "text": (TEXT, [HANDLE]),
    "outputs": (HANDLE, [HANDLE, WORD, WORD, WORD]),
    "scores": (ctypes.c_int32, [HANDLE, WORD]),
    "stream": (HANDLE, [HANDLE, WORD]),
    "enqueue": (ctypes.c_int32, [HANDLE] * 5),
    "enqueue_us": (ctypes.c_int32, [HANDLE] * 5 + [WORD, ctypes.POINTER(ctypes.c_double)]),
    "call": (ctypes.c_int32, [HANDLE, HANDLE, HANDLE, WORD, TEXT, WORD]),
    "read": (ctypes.c_int32, [HANDLE, HANDLE, WORD]),
    "fused_multiply_adds": (ctypes.c_int32, [TEXT, WORD, ctypes.POINTER(ctypes.c_double)]),
    "read_host": (ctypes.c_int32, [WORD, WORD, ctypes.POINTER(ctypes.c_double)]),
    "prepare_top_k": (HANDLE, [HANDLE, HANDLE, WORD]),
    "top_k": (ctypes.c_int32, [HANDLE] * 3),
    "best": (ctypes.c_int32, [HANDLE, WORD, WORD]),
    "corpus": (HANDLE, [HANDLE] + [WORD] * 4),
    "search": (ctypes.c_int32, [HANDLE] + [WORD] * 10),
    "page_locked": (HANDLE, [HANDLE, WORD]),
    "address": (ctypes.c_int32, [HANDLE, ctypes.POINTER(WORD)]),
    "search_stream": (ctypes.c_int32, [HANDLE, TEXT] + [WORD] * 13),
    "search_file": (ctypes.c_int32, [HANDLE, TEXT] + [WORD] * 11),
    "host_residual": (HANDLE, [HANDLE] + [WORD] * 9),
    "search_residual_stream": (ctypes.c_int32, [HANDLE, HANDLE] + [WORD] * 8),
    "devices": (HANDLE, [ctypes.POINTER(HANDLE), WORD]),
    "shards": (HANDLE, [HANDLE] + [WORD] * 4),
    "rank_shards": (ctypes.c_int32, [HANDLE] + [WORD] * 7),
    "rank": (ctypes.c_int32, [HANDLE] + [WORD] * 7),
    "prepare_backward": (HANDLE, [HANDLE, TEXT]),
    "gradients": (HANDLE, [HANDLE] + [WORD] * 4),
    "enqueue_backward": (ctypes.c_int32, [HANDLE] * 6),
    "prepare_chamfer": (HANDLE, [HANDLE, HANDLE]),
    "chamfer": (ctypes.c_int32, [HANDLE] * 4 + [WORD]),
    "chamfer_found": (ctypes.c_int32, [HANDLE] + [WORD] * 5),
    "xtr": (HANDLE, [HANDLE, HANDLE, WORD]),
    "projected": (HANDLE, [HANDLE] * 3 + [WORD]),
    "whole": (ctypes.c_int32, [HANDLE, WORD]),
    "free": (None, [HANDLE]),
}

# Blocks per multiprocessor of the read-only kernel, of which the fastest counts.
READ_GRIDS = (1, 2, 4)


class Error(RuntimeError):
    """What the library said."""


def library_path():
    """MAXSIM_BENCH_LIBRARY, the bundle's library, or that of a release build."""
    named = os.environ.get("MAXSIM_BENCH_LIBRARY")
    places = [FOLDER.parent / "bin" / NAME, FOLDER.parent / "target" / "release" / NAME]
    for place in [pathlib.Path(named)] if named else places:
        if place.is_file():
            return place
    raise Error(f"{NAME} is not there: cargo build --release -p maxsim-bench")


class Device:
    """A device, and the stream of PyTorch's that everything is enqueued on."""

    def __init__(self, ordinal, stream):
        path = library_path()
        loaded = ctypes.CDLL(str(path))
        self.functions = {}
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(loaded, f"maxsim_bench_{name}", None)
            # A build of an earlier commit is timed beside this one's without what it has not.
            if function is not None:
                function.restype, function.argtypes = result, arguments
                self.functions[name] = function
        self.path = path
        self.handle = self("open", ordinal)
        self.about = json.loads(self("text", self.handle))
        self.raw_stream = stream

    def __call__(self, name, *arguments):
        """Calls a function of the interface; its error is raised."""
        if name not in self.functions:
            raise Error(
                f"{self.path} has no {name}, it is older than these scripts: "
                "cargo build --release -p maxsim-bench"
            )
        result = self.functions[name](*arguments)
        failed = (
            result is None if SIGNATURES[name][0] in (HANDLE, TEXT) else result not in (0, None)
        )
        if failed and name != "free":
            raise Error(self.functions["last_error"]().decode())
        return result

    def tokens(self, element, address, dim, n, length, offsets=None, mask=0):
        """Tokens `[n, length, dim]` or, with offsets, `[offsets[n], dim]` at an address."""
        array = (ctypes.c_int64 * (n + 1))(*offsets) if offsets is not None else None
        return self("tokens", self.handle, element.encode(), address, dim, n, length, array, mask)

    def weighted(self, element, address, dim, n, length, weights):
        """Query tokens `[n, length, dim]` at an address, with weights `[n, length]` at another."""
        return self("weighted", self.handle, element.encode(), address, dim, n, length, weights)

    def quantize(self, format, scales, element, address, dim, n, length):
        """Codes, in host memory, of the elements `[n, length, dim]` at a host address."""
        words = (word.encode() for word in (format, scales, element))
        return self("quantize", *words, address, dim, n, length, None, 0)

    def residual(
        self,
        query_element,
        nbits,
        centroids,
        n_centroids,
        dim,
        weights,
        codes,
        residuals,
        n,
        length,
    ):
        """Residual tokens `[n, length, dim]` of host memory on the device: bits in little-endian
        order, decoded rows divided by their lengths."""
        tables = (nbits, centroids, n_centroids, dim, weights)
        rows = (codes, residuals, b"little-endian", n, length)
        return self("residual", self.handle, query_element.encode(), *tables, *rows, 1)

    def stream(self):
        """A handle of PyTorch's stream with a workspace of its own."""
        return self("stream", self.handle, self.raw_stream)

    def read(self, stream, tokens, blocks):
        """A call that reads the tokens' matrix and computes nothing."""
        return lambda: self("read", stream, tokens, blocks)

    def free(self, *handles):
        for handle in handles:
            self("free", handle)


class Call:
    """A prepared problem whose scores go to an address, or nowhere for 0 where the library keeps
    them; calling it enqueues it."""

    def __init__(self, device, queries, documents, candidates, options, scores, winners=0):
        self.device, self.scores, self.stream = device, scores, device.stream()
        self.problem = (queries, documents, candidates, options.encode())
        self.work = device("prepare", *self.problem)
        self.plan = device("text", self.work).decode()
        self.outputs = device("outputs", self.work, scores, winners, 0)
        handles = (self.stream, queries, documents, self.work, self.outputs)
        # Made once: the call's cost is what is measured, not the conversion of its arguments.
        self.arguments = [ctypes.c_void_p(handle) for handle in handles]
        self.enqueue = device.functions["enqueue"]

    def __call__(self):
        if self.enqueue(*self.arguments):
            raise Error(self.device.functions["last_error"]().decode())

    def unprepared(self):
        """The same with nothing prepared: checks, plan, lists, launch."""
        self.device("call", self.stream, *self.problem, self.scores)

    def read(self, to):
        """Waits for the last call and copies its scores to a host address."""
        self.device("scores", self.outputs, to)

    def enqueue_us(self, n):
        """Mean host time of a call from Rust, of n calls without waiting."""
        mean = ctypes.c_double()
        self.device("enqueue_us", *self.arguments, n, ctypes.byref(mean))
        return mean.value

    def free(self):
        self.device.free(self.outputs, self.work, self.stream)


class TopK:
    """The best k documents of each query of a call's scores: calling it enqueues the selection."""

    def __init__(self, device, call, k):
        self.device, self.k = device, k
        self.selection = device("prepare_top_k", call.work, call.problem[1], k)
        handles = (call.stream, call.outputs, self.selection)
        self.arguments = [ctypes.c_void_p(handle) for handle in handles]
        self.enqueue = device.functions["top_k"]

    def __call__(self):
        if self.enqueue(*self.arguments):
            raise Error(self.device.functions["last_error"]().decode())

    def read(self, ids, scores):
        """Waits for the last call; ids of 64 bits and f32 scores `[n_queries, k]` go to host
        addresses."""
        self.device("best", self.selection, ids, scores)

    def free(self):
        self.device.free(self.selection)


class Step:
    """Scores with winners, and their gradients: calling it enqueues both.

    `grads`: addresses of the gradients of queries, documents and the query tokens' weights, 0 =
    not wanted.
    """

    def __init__(self, device, call, strategy, grad_scores, *grads):
        self.device, self.call = device, call
        self.work = device("prepare_backward", call.work, strategy.encode())
        grads = (*grads, 0)[:3]
        self.gradients = device("gradients", self.work, grad_scores, *grads)
        queries, documents, _, _ = call.problem
        handles = (call.stream, queries, documents, self.work, call.outputs, self.gradients)
        self.arguments = [ctypes.c_void_p(handle) for handle in handles]
        self.enqueue = device.functions["enqueue_backward"]

    def backward(self):
        """The gradients alone."""
        if self.enqueue(*self.arguments):
            raise Error(self.device.functions["last_error"]().decode())

    def __call__(self):
        self.call()
        self.backward()

    def free(self):
        self.device.free(self.gradients, self.work)


class Chamfer:
    """Chamfer distances of clouds made ready: calling it enqueues a step, forward and backward, of
    their sum."""

    def __init__(self, device, x, y):
        self.device, self.stream, self.sides = device, device.stream(), (x, y)
        self.step = device("prepare_chamfer", x, y)
        handles = (self.stream, x, y, self.step)
        self.arguments = [ctypes.c_void_p(handle) for handle in handles]
        self.enqueue = device.functions["chamfer"]

    def run(self, part):
        """0: the search alone, 1: with gradients, 2: gradients alone."""
        if self.enqueue(*self.arguments, part):
            raise Error(self.device.functions["last_error"]().decode())

    def __call__(self):
        self.run(1)

    def read(self, values, of_x, of_y, grad_x, grad_y):
        """Waits, and copies what was found to host addresses."""
        self.device("chamfer_found", self.step, values, of_x, of_y, grad_x, grad_y)

    def free(self):
        self.device.free(self.step, self.stream, *self.sides)


class Whole:
    """A call that waits for its results: calling it leaves these where `read` does not look."""

    def __init__(self, device, function, *arguments):
        self.device = device
        self.handle = device(function, *arguments)

    def __call__(self):
        self.device("whole", self.handle, 0)

    def read(self, to):
        """Makes the call, and copies its values to a host address."""
        self.device("whole", self.handle, to)

    def free(self):
        self.device.free(self.handle)
