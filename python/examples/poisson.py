"""Solves Poisson's equation on a periodic cube by FFTs of pencils; prints and draws how far off it is.

    symrail run -n 4 -- python3 poisson.py                                                 NumPy's FFT, on the host
    SYMRAIL_HEAP_KIND=device symrail run -n 2 -- python3 poisson.py --arrays torch         cuFFT, by PyTorch or CuPy

The right-hand side is that of sin(2 pi x) sin(4 pi y) cos(6 pi z), which the solution should be. Each FFT is along the
axis that its pencils have whole: X, then Y, then Z, and back. The plot has the solution along X at y = 1/8 and z = 0,
computed and analytic, and how far the first is off.
"""

import argparse
import importlib
import math
import time

import numpy as np

import symrail
import symrail.decomp as decomp

WAVES = (1, 2, 3)
# The largest error that counts as rounding.
ROUNDING = 1e-12
TAU = 2 * math.pi


def exact(x, y, z):
    """The solution at points of the unit cube."""
    return np.sin(WAVES[0] * TAU * x) * np.sin(WAVES[1] * TAU * y) * np.cos(WAVES[2] * TAU * z)


def own(pencil, count):
    """The numbers of a pencil's elements along X, Y and Z, for NumPy to spread over them."""
    numbers = [np.arange(pencil.start[dim], pencil.stop[dim], dtype=np.float64) for dim in range(3)]
    shapes = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    return [count(each).reshape(shape) for each, shape in zip(numbers, shapes)]


class Arrays:
    """The differences between NumPy's, PyTorch's and CuPy's arrays."""

    def __init__(self, name):
        self.module, self.name = importlib.import_module(name), name

    def use(self, gpu):
        """Makes a PE's GPU the current one of the module."""
        if self.name == "torch":
            self.module.cuda.set_device(gpu)
        elif self.name == "cupy":
            self.module.cuda.Device(gpu).use()

    def of(self, pencil):
        """The elements of a pencil."""
        return pencil if self.name == "numpy" else pencil.array

    def put(self, pencil, values):
        """Stores elements that NumPy has computed."""
        if self.name == "torch":
            pencil.array.copy_(self.module.from_numpy(np.ascontiguousarray(values)))
        else:
            self.of(pencil)[:] = values if self.name == "numpy" else self.module.asarray(values)

    def fft(self, pencil, inverse=False):
        """Transforms a pencil along its own axis: on GPUs by cuFFT."""
        axis, array = "xyz".index(pencil.axis), self.of(pencil)
        transform = self.module.fft.ifft if inverse else self.module.fft.fft
        if self.name == "torch":
            array.copy_(transform(array, dim=axis))
        else:
            array[:] = transform(array, axis=axis)

    def wait(self):
        if self.name == "torch":
            self.module.cuda.synchronize()
        elif self.name == "cupy":
            self.module.cuda.Device().synchronize()

    def to_numpy(self, pencil):
        array = self.of(pencil)
        if self.name == "numpy":
            return np.asarray(array)
        return array.cpu().numpy() if self.name == "torch" else array.get()


def solve(grid, arrays, edge):
    """A PE's elements of the solution, the pencil, and the time that it took."""
    x, y, z = (grid.empty(axis, symmetric=True) for axis in "xyz")
    stiffness = sum((wave * TAU) ** 2 for wave in WAVES)
    right = -stiffness * exact(*own(x, lambda number: number / edge)) + 0j
    # The Laplacian of a wave is the wave itself, times this; the mean is arbitrary.
    squares = sum(own(z, lambda number: (TAU * np.where(number <= edge // 2, number, number - edge)) ** 2))
    squares[squares == 0] = np.inf
    factors = grid.empty("z")
    arrays.put(factors, -1 / squares + 0j)
    took = math.inf
    for _ in range(3):
        arrays.put(x, right)
        arrays.wait()
        symrail.barrier_all()
        start = time.perf_counter()
        arrays.fft(x)
        arrays.fft(grid.transpose(x, y))
        arrays.fft(grid.transpose(y, z))
        arrays.of(z)[:] *= arrays.of(factors)
        arrays.fft(z, inverse=True)
        arrays.fft(grid.transpose(z, y), inverse=True)
        arrays.fft(grid.transpose(y, x), inverse=True)
        arrays.wait()
        took = min(took, time.perf_counter() - start)
    return arrays.to_numpy(x), x, took


def draw(path, line):
    """A picture of the computed and the analytic solution along x: both, and below them their difference."""
    width, left = 900, 90
    most = max(abs(computed - analytic) for _, computed, analytic in line) or 1.0

    def place(x, value, high, top, height):
        return f"{left + (width - left - 20) * x:.1f},{top + height / 2 * (1 - value / high):.1f}"

    def curve(values, high, top, height, colour):
        points = " ".join(place(x, value, high, top, height) for x, value in values)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def frame(title, high, top, height, form):
        yield f'<text x="{left}" y="{top - 8}" font-size="15">{title}</text>'
        for value in (-high, 0, high):
            at = top + height / 2 * (1 - value / high)
            yield f'<path d="M{left} {at:.1f}H{width - 20}" stroke="#ddd"/>'
            yield f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{form(value)}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="640" ']
    parts[0] += 'font-family="sans-serif" font-size="12">'
    parts += ['<rect width="100%" height="100%" fill="white"/>']
    parts += frame("solution: computed (points) and analytic (line)", 1.1, 40, 320, lambda value: f"{value:.1f}")
    parts += [curve([(x, analytic) for x, _, analytic in line], 1.1, 40, 320, "#1f77b4")]
    for x, computed, _ in line:
        across, down = place(x, computed, 1.1, 40, 320).split(",")
        parts += [f'<circle cx="{across}" cy="{down}" r="3" fill="#d62728"/>']
    parts += frame("computed less analytic", 1.1 * most, 420, 180, lambda value: f"{value:.1e}")
    parts += [curve([(x, computed - analytic) for x, computed, analytic in line], 1.1 * most, 420, 180, "#d62728")]
    with open(path, "w") as file:
        file.write("\n".join([*parts, "</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edge", type=int, default=64, help="elements along an edge")
    parser.add_argument("--arrays", default="numpy", choices=("numpy", "torch", "cupy"), help="whose arrays and FFT")
    parser.add_argument("--plot", help="an SVG file to draw")
    options = parser.parse_args()
    edge = options.edge
    with symrail.init():
        arrays = Arrays(options.arrays)
        arrays.use(symrail.current().device)
        grid = decomp.Grid((edge,) * 3, order="axis", arrays=arrays.module)
        found, x, took = solve(grid, arrays, edge)
        analytic = exact(*own(x, lambda number: number / edge))
        worst = np.array([np.abs(found - analytic).max(), took])
        symrail.reduce(symrail.team_world(), worst, worst, "max")
        # The PE with the beginning of Y and Z has the line.
        if x.start[1] <= edge // 8 < x.stop[1] and x.start[2] == 0:
            at = edge // 8 - x.start[1]
            line = [(i / edge, float(found[i, at, 0].real), float(analytic[i, at, 0])) for i in range(edge)]
            print("along X at y = 1/8 and z = 0, computed and analytic:")
            for along, computed, right in line[:: max(1, edge // 8)]:
                print(f"{along:8.4f} {computed:12.8f} {right:12.8f}")
            if options.plot:
                draw(options.plot, line)
        symrail.barrier_all()
        if symrail.my_pe() == 0:
            rows, columns = grid.processes
            print(
                f"{edge}^3 on {rows} x {columns} PEs by {arrays.name}'s FFT in {worst[1] * 1e3:.1f} ms: "
                f"largest error {worst[0]:.2e}"
            )
        grid.free()
        assert worst[0] < ROUNDING, f"an error of {worst[0]:.2e} is more than rounding"


main()
