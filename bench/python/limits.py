"""Floors of what is measured: the driver's launch, and the rates of memory and arithmetic."""

import ctypes
import statistics
import time

PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
\0"""


class Launch:
    """A kernel that does nothing, launched by the driver with nothing around it."""

    def __init__(self, torch):
        torch.zeros(1, device="cuda")
        self.synchronize = torch.cuda.synchronize
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), PTX))
        found = self.driver.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"nothing")
        self.check(found)
        one, none = ctypes.c_uint(1), ctypes.c_void_p()
        # Made once: the launch is what is measured, not the conversion of its arguments.
        self.arguments = [self.kernel, *[one] * 6, ctypes.c_uint(0), self.stream, none, none]

    def check(self, code):
        if code:
            raise OSError(f"the driver says {code}")

    def __call__(self):
        self.driver.cuLaunchKernel(*self.arguments)

    def enqueue_us(self, n=200):
        """Host time of a launch, the mean of n."""
        launch, arguments = self.driver.cuLaunchKernel, self.arguments
        self.check(launch(*arguments))
        self.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            launch(*arguments)
        elapsed = time.perf_counter() - start
        self.synchronize()
        return elapsed / n * 1e6

    def whole_ms(self):
        """Host time of a launch until it is done."""
        self.synchronize()
        start = time.perf_counter()
        self.driver.cuLaunchKernel(*self.arguments)
        self.synchronize()
        return (time.perf_counter() - start) * 1e3


class Call:
    """The least that a call of scores does: a tensor for them, and a launch."""

    def __init__(self, torch, n, m):
        self.torch, self.shape, self.launch = torch, (n, m), Launch(torch)

    def __call__(self):
        self.torch.empty(self.shape, device="cuda")
        self.launch()


class Step:
    """The least that forward and backward do: a function of autograd that computes nothing, with
    tensors for scores and gradients, and a launch each way."""

    def __init__(self, torch, q, d, g):
        launch = Launch(torch)

        class Nothing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, d):
                ctx.save_for_backward(q, d)
                launch()
                return torch.empty_like(g)

            @staticmethod
            def backward(ctx, grad):
                q, d = ctx.saved_tensors
                launch()
                return torch.empty_like(q), torch.empty_like(d)

        self.function, self.q, self.d, self.g = Nothing.apply, q, d, g

    def __call__(self):
        self.q.grad = self.d.grad = None
        self.function(self.q, self.d).backward(self.g)


class Limits:
    """Floors on the card of this process; None of everything where there is no GPU."""

    def __init__(self, torch, timer, on_gpu):
        self.launch_us = self.whole_ms = self.bytes_per_ms = None
        self.flop_per_ms = {}
        if not on_gpu:
            return
        launch = Launch(torch)
        self.launch_us = statistics.median(launch.enqueue_us() for _ in range(15))
        self.whole_ms = statistics.median(launch.whole_ms() for _ in range(200))
        self.measure_rates(torch, timer)

    def measure_rates(self, torch, timer):
        """Reads of 2 GB, and products of random 8192 x 8192 matrices."""
        source = torch.empty(1 << 29, dtype=torch.float32, device="cuda").normal_()
        read_ms = self.median_ms(timer, lambda: source.sum())
        copy_ms = self.median_ms(timer, lambda: source[: 1 << 28].copy_(source[1 << 28 :]))
        self.bytes_per_ms = source.nbytes / min(read_ms, copy_ms)
        del source
        n = 8192
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
        rate = 2 * n**3 / self.median_ms(timer, lambda: a @ b)
        self.flop_per_ms = {"f16": rate, "bf16": rate}
        a, b = a.float(), b.float()
        for name, allowed in (("tf32", True), ("f32", False)):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            self.flop_per_ms[name] = 2 * n**3 / self.median_ms(timer, lambda: a @ b)
        torch.backends.cuda.matmul.allow_tf32 = False
        del a, b
        torch.cuda.empty_cache()

    def median_ms(self, timer, call):
        call()
        return statistics.median(timer.device_ms(call, 500, True) for _ in range(7))

    def device_ms(self, n_bytes, flop, rate):
        """The time in which so many bytes can be read and so many operations done."""
        if self.bytes_per_ms is None:
            return None
        return max(n_bytes / self.bytes_per_ms, flop / self.flop_per_ms[rate])

    def about(self):
        """The figures, for the record."""
        if self.bytes_per_ms is None:
            return {}
        return {
            "launch_us": self.launch_us,
            "launch_and_wait_ms": self.whole_ms,
            "read_tb_per_s": self.bytes_per_ms / 1e9,
            "tflop_per_s": {name: rate / 1e9 for name, rate in self.flop_per_ms.items()},
        }
