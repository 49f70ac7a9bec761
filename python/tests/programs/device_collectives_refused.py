"""What one rank is refused is known to the others: none waits, and later calls work."""

import json
import sys
from pathlib import Path

import numpy as np

import symrail
from symrail.collectives import Communicator, ExecutionPlan
from symrail.errors import ArgumentError, DifferError, StateError, SymrailError


def refused(error: type[SymrailError], what: str, call) -> None:
    try:
        call()
    except error as found:
        assert what in str(found) and (error is not DifferError or found.pe is not None), found
    else:
        raise AssertionError(f"{what}: was not refused")


def main() -> None:
    text, path = Path(sys.argv[1]).read_text(), sys.argv[1]
    with symrail.init(heap_bytes=64 << 20), Communicator() as comm:
        x, y = symrail.array(8 * comm.size, "float32"), symrail.array(8 * comm.size, "float32")
        last = comm.rank == comm.size - 1
        pe = comm.size - 1

        def one_is_refused(what: str, call) -> None:
            """The last rank is refused a call, with the reason; the others learn of it and of the reason."""
            if last:
                refused(ArgumentError, what, call)
            else:
                refused(DifferError, f"PE {pe} was refused its call: ", call)
                refused(DifferError, what, call)
            if last:
                refused(ArgumentError, what, call)
            y[:] = 1
            comm.all_reduce(y)
            assert (y == comm.size).all(), y

        # Plans: cut short, of a file that is not there, with a wrong field, of a built-in algorithm's name.
        plan = ExecutionPlan(text=text[:-5] if last else text)
        one_is_refused("a text is not a plan: EOF", lambda: comm.add_plan(plan))
        missing = ExecutionPlan(path + ".not" if last else path)
        one_is_refused("cannot be read", lambda: comm.add_plan(missing))
        document = json.loads(text)
        document["gpus"][1]["id"] = "one"
        wrong = ExecutionPlan(text=json.dumps(document) if last else text)
        one_is_refused("field gpus[1].id: invalid type", lambda: comm.add_plan(wrong))
        named = ExecutionPlan(text=json.dumps({**json.loads(text), "name": "direct"}) if last else text)
        one_is_refused("a built-in algorithm has that name", lambda: comm.add_plan(named))
        other = ExecutionPlan(text=json.dumps({**json.loads(text), "collective": "sendrecv"}), result=False)
        refused(ArgumentError, "no call performs its collective", lambda: comm.add_plan(other))

        # The same name, and another content.
        mine = ExecutionPlan(text=json.dumps({**json.loads(text), "min_message_size": int(last)}))
        refused(DifferError, "passes another plan than this one (copies of a text, ", lambda: comm.add_plan(mine))
        refused(ArgumentError, "not given to add_plan", lambda: comm.all_reduce(x, algorithm=mine))
        # The same content in another form.
        same = ExecutionPlan(text=json.dumps(json.loads(text), indent=1) if last else text)
        assert comm.add_plan(same) == "copies"

        # Arguments.
        one_is_refused("root is rank", lambda: comm.broadcast(x, "zero" if last else 0))
        one_is_refused("neither a name nor a plan", lambda: comm.all_reduce(x, algorithm=5 if last else None))
        halves = [8.0 if last else 8] * comm.size
        one_is_refused("not a sequence of integers", lambda: comm.all_to_all_v(y, x, halves, halves))
        far = [2**63, 16 - 2**63] if last else [8] * comm.size
        one_is_refused("numbers are from 0 to", lambda: comm.all_to_all_single(y, x, far, far))
        rows = x.reshape(-1, 2)
        split = [4 + last] * comm.size
        one_is_refused("rows, and its splits", lambda: comm.all_to_all_single(y.reshape(-1, 2), rows, None, split))
        # Input and output of the last rank overlap, and are not in place.
        one_is_refused("overlap", lambda: comm.all_to_all(x[4:] if last else x[:-4], x[:-4]))
        one_is_refused("they are the same memory", lambda: comm.all_reduce(x[1:], x[:-1] if last else x[1:]))
        one_is_refused("they are the same memory", lambda: comm.broadcast(x[1:], 0, output=x[:-1] if last else x[1:]))
        own = comm.rank * 8
        first = 0 if last else own
        one_is_refused("the input is part", lambda: comm.all_gather(x, x[first : first + 8]))
        one_is_refused("the output is part", lambda: comm.reduce_scatter(x[first : first + 8], x))
        one_is_refused("overlap", lambda: comm.all_to_all_v(*((x, x) if last else (y, x)), *[[8] * comm.size] * 2))

        # Another call, and names in place of numbers.
        refused(DifferError, "broadcast", lambda: comm.broadcast(x) if last else comm.all_reduce(x))
        refused(DifferError, "avg", lambda: comm.all_reduce(x, op="avg" if last else "max"))
        i = symrail.array(8 * comm.size, "int32")
        for values in [("float32", "int32"), ("none in particular", "one_shot")]:

            def call(values=values) -> None:
                if "int32" in values:
                    comm.all_reduce(i if last else x)
                else:
                    comm.all_reduce(x, algorithm="one_shot" if last else None)
            for value in values:
                refused(DifferError, value, call)

        # One rank frees the communicator, and waits until the others do.
        if not last:
            refused(DifferError, f"PE {pe} calls free, and this one all_reduce", lambda: comm.all_reduce(x))
        comm.free()
        refused(StateError, "free()", lambda: comm.all_reduce(x))
        assert np.isfinite(x).all()
        print(f"PE {symrail.my_pe()} goes on\n", end="")


main()
