"""Cases whose documents are compressed: codes of one byte, alone and coarse to fine, and PLAID
residuals."""

import torch

import cases
import data
import ours
import peers
import timing
from runner import (
    SAMPLE,
    TOLERANCE,
    Ours,
    Prepared,
    check,
    check_peers,
    details,
    reads_of,
    shape_of,
)

# How scales are stored.
SCALES, SCALE_BYTES = "f16", 2
CODE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
# Relative errors against float64: of sums of INT8 products, which are exact; of random FP8 tokens,
# where the stated bound has to hold for any; of decoded tokens, which kernels round to f16.
TOLERANCES = {"int8": 1e-5, "fp8": 5e-3, "plaid": 2e-3, "coarse": 1e-2}
# Of coarse-to-fine scores of unit rows, relative: how far one may be above the exact score, and
# below it in the mean.
EXCESS_MAX, MEAN_LOSS_MAX = 2e-6, 1e-3
# Stands where a peer does in the rows of coarse to fine.
F16_FORWARD = "maxsim, f16"
# L2 gathers of whole rows, in bytes per second; 9 to 10 TB/s were measured.
GATHER_RATE = 9.5e12
# Instructions that decode 16 tokens of dim 128, by kernel and bits: PRMT, LOP3, SHF and HADD2 of
# the loop in the assembled code for sm_90. With the centroids' scores at hand nothing is added.
DECODE_INSTRUCTIONS = {
    "maxsim_forward_sm80_residual_f16_d128_q32": {2: 128, 4: 237},
    "maxsim_forward_sm80_residual_f16_d128_q32_by_centroid": {2: 97},
}
# Instructions that an H200 issues per second: 132 multiprocessors of four schedulers, at most 1.98
# GHz.
ISSUE_RATE = 132 * 4 * 1.98e9


class Codes:
    """Rows that the library has compressed in host memory, and the same codes and scales on the
    device, `[n, length, dim]` and `[n, length]`."""

    def __init__(self, host, format, tokens, n, length):
        rows, dim = tokens.shape
        elements = tokens.cpu()
        self.shape = (n, length)
        self.handle = host.quantize(format, SCALES, "f16", elements.data_ptr(), dim, n, length)
        codes = torch.empty(rows, dim, dtype=torch.uint8)
        scales = torch.empty(rows, dtype=torch.float32)
        host("codes", self.handle, codes.data_ptr(), scales.data_ptr(), 0)
        self.codes = codes.to(tokens.device).view(CODE_DTYPES[format])
        self.scales = scales.to(tokens.device)

    def exact(self, rows):
        """What rows stand for, in float64."""
        return self.codes[rows].float().double() * self.scales[rows].double()[:, None]


class Quantized(data.Problem):
    """Queries and documents of one format. Where a dtype says how tokens are rounded, none is that
    of the codes."""

    plain = True
    """Whether the tokens are there as they were, too."""

    @property
    def code_format(self):
        """What codes are made."""
        return self.case.format

    def draw_documents(self, dtype):
        super().draw_documents(dtype)
        case = self.case
        # Codes are made on the CPU, for any device.
        self.host = ours.Device(-1, 0)
        queries = self.queries.reshape(-1, case.dim)
        self.query_codes = Codes(
            self.host, self.code_format, queries, case.n_queries, case.query_len
        )
        self.document_codes = Codes(
            self.host, self.code_format, self.documents, self.n_items, case.doc_len
        )

    def upload(self, device):
        """Handles of queries and documents."""
        return [
            device("upload", device.handle, side.handle)
            for side in (self.query_codes, self.document_codes)
        ]

    def n_bytes(self):
        """Of the documents: codes and scales."""
        return self.n_rows * (self.case.dim + SCALE_BYTES)

    def exact_queries(self, dtype):
        if dtype is not None:
            return super().exact_queries(dtype)
        return self.query_codes.exact(slice(None)).view(self.queries.shape)

    def exact_rows(self, item, dtype):
        return (
            super().exact_rows(item, dtype)
            if dtype is not None
            else self.document_codes.exact(self.rows_of(item))
        )

    def bounds(self, sample):
        """The stated bounds of the engines' rounding, `[n_queries, documents of the sample]`."""
        case = self.case
        rows = torch.cat([self.documents[self.rows_of(item)] for _, item, _, _ in sample]).cpu()
        element = (rows.data_ptr(), case.dim, len(sample), case.doc_len)
        documents = self.host.quantize(self.code_format, SCALES, "f16", *element)
        bounds = torch.empty(case.n_queries, len(sample))
        self.host("rounding_bounds", self.query_codes.handle, documents, bounds.data_ptr())
        self.host.free(documents)
        return bounds.double()

    def check(self, bench, call, sample):
        """The first call of ours, within the library's bound of the exact scores."""
        found = check(bench, self, call, sample, TOLERANCES[self.case.format])
        scores = call().view(self.case.n_queries, self.case.n_docs)
        bounds = self.bounds(sample)
        of_bound = 0.0
        for column, (_, item, exact, _) in enumerate(sample):
            off = (scores[:, item].double() - exact).abs().cpu() / bounds[:, column]
            if not bool((off <= 1).all()):
                raise ValueError(
                    f"a score of document {item} is off by {float(off.max()):.2f} times the "
                    "stated bound"
                )
            of_bound = max(of_bound, float(off.max()))
        return found | {"largest_error_of_bound": of_bound}

    def floors(self, read_ms, kernel):
        return {}


class Coarse(Quantized):
    """INT8 codes find winners, and f16 tokens are scored: what is exact is exact of those."""

    code_format = "int8"

    def upload(self, device):
        """Handles of queries and documents."""
        sides = ((self.queries, self.query_codes), (self.documents, self.document_codes))
        return [
            device(
                "screened",
                device.handle,
                b"f16",
                tokens.data_ptr(),
                self.case.dim,
                *codes.shape,
                None,
                codes.handle,
            )
            for tokens, codes in sides
        ]

    def exact_queries(self, dtype):
        return super().exact_queries(dtype or torch.float16)

    def exact_rows(self, item, dtype):
        return super().exact_rows(item, dtype or torch.float16)

    def check(self, bench, call, sample):
        """The first call of ours: no score above the exact one, and little lost."""
        found = check(bench, self, call, sample, TOLERANCES["coarse"])
        scores = call().view(self.case.n_queries, self.case.n_docs)
        above = torch.stack(
            [(scores[:, item].double() - exact) / exact for _, item, exact, _ in sample]
        )
        excess, loss = float(above.max()), float(-above.mean())
        if not excess <= EXCESS_MAX:
            raise ValueError(f"a score is {excess:.2e} above the exact one, relative")
        if not loss <= MEAN_LOSS_MAX:
            raise ValueError(f"scores lose {loss:.2e} in the mean, relative")
        return found | {"largest_excess": excess, "mean_loss": loss}


class Residual(data.Problem):
    """Plain queries, and documents of random centroid ids and buckets; rows are normalised."""

    plain = False

    def draw_documents(self, dtype):
        case, device = self.case, self.device
        self.centroids = data.unit(case.n_centroids, case.dim, dtype, device)
        self.weights = torch.randn(1 << case.nbits, device=device) * 0.05
        self.codes = torch.randint(
            0, case.n_centroids, (self.n_rows,), dtype=torch.int32, device=device
        )
        shape = (self.n_rows, -(-case.dim * case.nbits // 8))
        self.residuals = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)

    def upload(self, device):
        """Handles of queries and documents."""
        case = self.case
        tensors = (self.centroids, self.weights, self.codes, self.residuals)
        centroids, weights, codes, residuals = host = [tensor.cpu() for tensor in tensors]
        documents = device.residual(
            case.element,
            case.nbits,
            centroids.data_ptr(),
            case.n_centroids,
            case.dim,
            weights.data_ptr(),
            codes.data_ptr(),
            residuals.data_ptr(),
            case.n_docs,
            case.doc_len,
        )
        del host
        queries = device.tokens(
            case.element, self.queries.data_ptr(), case.dim, case.n_queries, case.query_len
        )
        return [queries, documents]

    def n_bytes(self):
        """Of the documents: codes and residuals."""
        return self.n_rows * (4 + self.residuals.shape[1])

    def exact_queries(self, dtype):
        return self.queries.double()

    def exact_rows(self, item, dtype):
        """Decoded rows: the first element's bucket is in the lowest bits."""
        case, rows = self.case, self.rows_of(item)
        shifts = torch.arange(0, 8, case.nbits, device=self.device)
        buckets = (self.residuals[rows].long()[:, :, None] >> shifts) & ((1 << case.nbits) - 1)
        weights = self.weights.double()[buckets.view(buckets.shape[0], -1)[:, : case.dim]]
        decoded = self.centroids[self.codes[rows].long()].double() + weights
        return decoded / (decoded * decoded).sum(1, keepdim=True).clamp(min=1e-12).sqrt()

    def check(self, bench, call, sample):
        return check(bench, self, call, sample, TOLERANCES[self.case.format])

    def floors(self, read_ms, kernel):
        """The least times that single resources leave: memory for codes and residuals, the L2 cache
        for the centroids' rows, and the schedulers for the instructions that decode, where those
        have been counted."""
        floors = {
            "memory_ms": read_ms,
            "gather_ms": ms(self.n_rows * self.case.dim * 2 / GATHER_RATE),
        }
        decode = decode_s(kernel, self.case.nbits, self.n_rows)
        return floors if decode is None else floors | {"decode_ms": ms(decode)}


def ms(seconds):
    return round(seconds * 1e3, 5)


def decode_s(kernel, nbits, n_rows):
    """Seconds to issue what decodes so many rows of dim 128; None where nobody has counted."""
    instructions = DECODE_INSTRUCTIONS.get(kernel, {}).get(nbits)
    return None if instructions is None else instructions * n_rows / 16 / ISSUE_RATE


PROBLEMS = {"fp8": Quantized, "int8": Quantized, "plaid": Residual, "coarse": Coarse}


class Stored(Prepared):
    """Ours on the compressed tokens, which are uploaded once."""

    def __init__(self, bench, problem):
        self.uploaded = problem.upload(bench.device)
        super().__init__(bench, problem)

    def tokens(self, problem):
        return self.uploaded

    def free(self):
        self.call.free()


class Screened(Stored):
    """Ours coarse to fine, whose scores the library keeps."""

    def scores_address(self):
        return 0

    def run(self):
        scores = torch.full(self.scores.shape, torch.nan)
        self.call()
        self.call.read(scores.data_ptr())
        return self.scores.copy_(scores)


def run_case(bench, case):
    """The row of a case: ours, our f16 forward of the same tokens for context, and the peers."""
    problem = PROBLEMS[case.format](case, bench.args.device)
    sample = problem.sample(SAMPLE, None)
    ready, checked, failed = {}, {}, {}
    try:
        ready["maxsim"] = (Screened if case.format == "coarse" else Stored)(bench, problem)
        checked["maxsim"] = problem.check(bench, ready["maxsim"].run, sample)
    except Exception as error:
        failed["maxsim"] = timing.said(error)
    if problem.plain:
        try:
            ready["maxsim f16"] = Ours(bench, problem, cases.Variant(), "")
            exact = problem.sample(SAMPLE, torch.float16)
            checked["maxsim f16"] = check(bench, problem, ready["maxsim f16"].run, exact, TOLERANCE)
        except Exception as error:
            failed["maxsim f16"] = timing.said(error)
    methods = {name: one.call for name, one in ready.items() if name not in failed}
    others = {} if bench.args.no_peers else peers.calls(problem)
    right, found, wrong = check_peers(bench, problem, others, sample)
    methods, checked, failed = methods | right, checked | found, failed | wrong

    # As many bytes as the documents have, in rows of 128 f16 numbers.
    n_rows = max(1, problem.n_bytes() // 256)
    read = torch.empty(n_rows * 256, dtype=torch.uint8, device=bench.args.device)
    matrix, stream = (
        bench.device.tokens("f16", read.data_ptr(), 128, 1, n_rows),
        bench.device.stream(),
    )
    reads = reads_of(bench, stream, matrix)
    results = bench.measure(methods | reads)
    bench.device.free(matrix, stream)
    for name, error in failed.items():
        results[name] = {"error": error}
    for name in methods:
        results[name] |= checked[name]
        try:
            results[name] |= details(bench, methods[name], ready.get(name))
        except Exception as error:
            results[name]["details_error"] = timing.said(error)
    read_ms = min((results[name]["ms"] for name in reads if "ms" in results[name]), default=None)
    variant = case.variants[0]
    row = {
        "case": case.words,
        "name": case.name,
        **shape_of(case, problem),
        "element": case.format,
        "flop": problem.flop(),
        "bytes": problem.n_bytes(),
        "rate": variant.rate,
        "read_ms": read_ms,
        "floors": problem.floors(read_ms, results["maxsim"].get("plan", "").split(":")[0]),
        "targets": {"x": variant.x, "limit": variant.limit, "plain": None},
        "ours": results["maxsim"],
        "peers": {name: results[name] for name in others},
    }
    if problem.plain:
        row["f16"] = results["maxsim f16"]
    if case.format == "coarse":
        row["peers"][F16_FORWARD] = results["maxsim f16"]
    return [row]
