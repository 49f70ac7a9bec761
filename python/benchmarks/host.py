"""The cost of calls on host memory from Python: the import, small and large puts, barriers.

    python python/benchmarks/host.py
    symrail run -n 2 -- python python/benchmarks/host.py
    symrail run -n 2 --hosts 2 -- python python/benchmarks/host.py

The same from Rust: `symrail perf put-lat put-bw barrier-lat -b 8 -e 4M`. Times are medians of rounds.
"""

import statistics
import subprocess
import sys
import time

ROUNDS = 21


def of_import(code: str) -> float:
    """Milliseconds of an import in a separate process, without the interpreter's start."""
    timed = f"import time; begun = time.perf_counter(); {code}; print(time.perf_counter() - begun)"
    runs = [float(subprocess.check_output([sys.executable, "-c", timed])) for _ in range(ROUNDS)]
    return 1e3 * statistics.median(runs)


def of_call(call, repeat: int) -> float:
    """Microseconds of a call, one of many."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(repeat):
            call()
        times.append((time.perf_counter() - begun) / repeat)
    return 1e6 * statistics.median(times)


def main() -> None:
    import numpy as np
    import symrail

    with symrail.init(heap_bytes=64 << 20):
        me, n = symrail.my_pe(), symrail.n_pes()
        other = (me + 1) % n
        box, source = symrail.array(1), np.ones(1, "float32")
        word, number = symrail.array(1, "uint64"), np.ones(1, "uint64")
        large = symrail.array(4 << 20, "uint8")
        bytes_of = np.ones(4 << 20, "uint8")
        if me == 0:
            way = "self" if n == 1 else "mapped" if symrail.is_mapped(other) else "wire"
            print(f"{n} PE(s), {way}; medians of {ROUNDS} rounds")
            print(f"import symrail            {of_import('import symrail'):10.1f} ms")
            print(f"import numpy              {of_import('import numpy'):10.1f} ms")
            print(f"put of 8 bytes            {of_call(lambda: symrail.put(word, number, other), 5000):10.3f} us")
            print(f"put of 4 bytes, a number  {of_call(lambda: symrail.put(box, 1.0, other), 5000):10.3f} us")
            print(f"atomic_fetch_add          {of_call(lambda: symrail.atomic_fetch_add(word, 1, other), 1000):10.3f} us")
            for size in (4 << 10, 64 << 10, 1 << 20, 4 << 20):

                def put(size: int = size) -> None:
                    symrail.put(large[:size], bytes_of[:size], other)
                    symrail.quiet()

                took = of_call(put, max(4, (4 << 20) // size))
                print(f"put + quiet of {size >> 10:5} KiB  {took:10.2f} us, {size / took / 1e3:7.2f} GB/s")
        symrail.barrier_all()
        took = of_call(symrail.barrier_all, 1000)
        if me == 0:
            print(f"barrier_all               {took:10.2f} us")


if __name__ == "__main__":
    main()
