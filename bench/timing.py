"""The protocol: methods in turns, cold caches, device times by events with the queue kept full."""

import gc
import statistics
import time

FLUSH_BYTES = 512 << 20
# Long enough for a Python call to be enqueued before the device gets to it.
SLEEP_US_MIN = 500
CYCLES_PER_US = 2000


class Cuda:
    """Times calls on a CUDA device."""

    def __init__(self, torch):
        self.torch = torch
        self.flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")

    def synchronize(self):
        self.torch.cuda.synchronize()

    def device_ms(self, call, sleep_us, cold):
        """Device time of one call. Cold: after a read of other memory, whose lines are clean;
        warm: after the same call."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(int(sleep_us * CYCLES_PER_US))
        if cold:
            self.flush.sum()
        else:
            call()
        begin.record()
        result = call()
        end.record()
        self.synchronize()
        del result
        return begin.elapsed_time(end)

    def call_ms(self, call):
        """One call as its caller sees it, until its results are there; caches cold."""
        self.flush.sum()
        self.synchronize()
        start = time.perf_counter()
        result = call()
        self.synchronize()
        elapsed = time.perf_counter() - start
        del result
        return elapsed * 1e3

    def enqueue_us(self, call, n):
        """Host time of a call that is not waited for, the mean of n."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            call()
        elapsed = time.perf_counter() - start
        self.synchronize()
        return elapsed / n * 1e6

    def free_bytes(self):
        self.synchronize()
        return self.torch.cuda.mem_get_info()[0]

    def peak_bytes(self, call):
        """Most that PyTorch's allocator held during a call, beyond what it holds now."""
        cuda = self.torch.cuda
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        result = call()
        self.synchronize()
        del result
        return cuda.max_memory_allocated() - before

    def peak_requested_bytes(self, call):
        """Most bytes that were asked of PyTorch's allocator at once during a call, beyond what is
        held now. It hands out large blocks whole, which differs from run to run."""
        cuda = self.torch.cuda
        cuda.reset_peak_memory_stats()
        before = cuda.memory_stats()["requested_bytes.all.current"]
        result = call()
        self.synchronize()
        del result
        return cuda.memory_stats()["requested_bytes.all.peak"] - before


class Cpu:
    """The same calls where there is no GPU, to try the scripts: its times mean nothing."""

    def synchronize(self):
        pass

    def device_ms(self, call, sleep_us, cold):
        return self.call_ms(call)

    def call_ms(self, call):
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    def enqueue_us(self, call, n):
        return sum(self.call_ms(call) for _ in range(n)) / n * 1e3

    def free_bytes(self):
        return 0

    def peak_bytes(self, call):
        call()
        return 0

    peak_requested_bytes = peak_bytes


def measure(timer, methods, seconds, rounds_min=7, rounds_max=40, warm=True):
    """Times methods {name: call} in turns, whose first is another each round; results by name.

    Takes about `seconds` on top of what the first calls take, which tune and compile.
    """
    results, alive, sleeps = {}, {}, {}
    for name, call in methods.items():
        start = time.perf_counter()
        try:
            call()
            timer.synchronize()
        except Exception as error:
            results[name] = {"error": said(error)}
            continue
        results[name] = {"first_call_s": round(time.perf_counter() - start, 3)}
        alive[name] = call
    gc.collect()
    gc.disable()
    try:
        for name, call in alive.items():
            call()
            host_us = timer.enqueue_us(call, 2)
            sleeps[name] = max(SLEEP_US_MIN, 2 * host_us)
        times = rounds(
            timer, alive, sleeps, seconds * (0.7 if warm else 0.9), True, rounds_min, rounds_max
        )
        warm_times = {}
        if warm:
            warm_times = rounds(timer, alive, sleeps, seconds * 0.2, False, 5, 15)
        for name, call in alive.items():
            middle = statistics.median(times[name])
            n = max(4, min(32, int(30 / max(middle, 0.01))))
            results[name] |= spread(times[name])
            if warm_times:
                results[name]["warm_ms"] = round(statistics.median(warm_times[name]), 5)
            enqueue = [timer.enqueue_us(call, n) for _ in range(3)]
            results[name]["enqueue_us"] = round(statistics.median(enqueue), 2)
    finally:
        gc.enable()
    return results


def rounds(timer, methods, sleeps, seconds, cold, least, most):
    """Times of every method, {name: [ms]}."""
    times = {name: [] for name in methods}
    names = list(methods)
    start = time.perf_counter()
    for i in range(most if names else 0):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(timer.device_ms(methods[name], sleeps[name], cold))
        spent = time.perf_counter() - start
        if i + 1 >= least and spent * (i + 2) / (i + 1) > seconds:
            break
    return times


def spread(times):
    """Median, interquartile range and count."""
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return {
        "ms": round(quarters[1], 5),
        "iqr_ms": round(quarters[2] - quarters[0], 5),
        "n": len(times),
    }


def said(error):
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
