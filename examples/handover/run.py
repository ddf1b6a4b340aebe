"""Three languages, one device, one table, and nothing freed by the wrong hand.

C++ reads columns of a real CSV file into device memory under the resource that it is given; Python owns them; Rust computes
on them on a stream of its own. Meanwhile the current resource is replaced from each language, the pools are dropped while
columns live, and the columns are freed from other threads and other languages. At the end the ledger lists each block, and
every balance is zero.

    python examples/handover/run.py [LOG.csv]
"""

import argparse
import csv
import gc
import os
import sys
import threading
from pathlib import Path

import tenure
from ledger import Ledger
from libraries import Columns, Statistics

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "gnn_train.dev0.csv"
CHECKS = []


def check(condition, what):
    """Says what was checked; a failure ends the example with exit code 1."""
    CHECKS.append(bool(condition))
    print(f"   {'ok  ' if condition else 'FAIL'}  {what}")


def truth(path, column):
    """Rows, sum and largest value of a column, read from the file by Python alone."""
    with open(path, newline="") as file:
        values = [int(row[column], 0) for row in csv.DictReader(file)]
    return len(values), sum(values), max(values)


def in_thread(name, function, *arguments):
    """Runs a function in a thread of this name; its exception is this thread's."""
    failed = []

    def body():
        try:
            function(*arguments)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body, name=name)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def where_it_runs():
    """The first lines: the device, and how to use another."""
    about = tenure.describe()
    device = about["devices"][0]
    print(f"device: {device['name']} ({device['total_bytes'] / 2**30:.1f} GiB), tenure {about['version']}")
    if about["layer"] == "sim":
        print("        this is the simulated device; on a machine with an NVIDIA GPU and its driver, run the")
        print("        same command, or set TENURE_DEVICE=cuda")


def pool():
    """A pool over plain device memory."""
    return tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())


def handed_over(ledger, cpp, rust, path):
    """C++ makes, Python owns, Rust computes."""
    stream = tenure.Stream()
    ledger.name_stream(stream, "A")
    sizes, threads = truth(path, "Size"), truth(path, "Thread")

    print("\n1. columns read by C++, under three ways of naming the resource")
    explicit = ledger.recorded("explicit", pool())
    current = ledger.recorded("current", pool())
    scoped = ledger.recorded("scoped", pool())
    before = tenure.mr.set_current_device_resource(current)
    with ledger.acting("C++"):
        a = cpp.read(path, "Size", stream, explicit)
        b = cpp.read(path, "Thread", stream)
        with tenure.mr.using(scoped):
            c = cpp.read(path, "Size", stream)
    check(a.mr is explicit, "with mr=explicit, the buffer names it, and gives back the same object")
    check(b.mr is current, "without, the buffer names what was current")
    check(c.mr is scoped, "under using(scoped), C++ sees the scope")
    check(tenure.mr.get_current_device_resource() is current, "the scope is undone")

    print("\n2. Rust computes on them, on a stream of its own")
    check(rust.summary(a) == sizes, f"the sizes sum up to {sizes[1]:,} as in the file")
    check(rust.summary(b) == threads, "the threads too")
    with ledger.acting("Rust"):
        d = rust.running_sum(a, explicit)
    check(int.from_bytes(d.tobytes()[-8:], sys.byteorder, signed=True) == sizes[1], "the running sum ends at the sum")

    print("\n3. the current resource, replaced from each language and seen from the other two")
    for setter in (cpp, rust):
        new = pool()
        setter.set_current(new)
        seen = {cpp.current_id(), rust.current_id(), tenure.mr.get_current_device_resource().id}
        check(seen == {new.id}, f"set from {setter.name}")
        check(tenure.mr.get_current_device_resource() is new, "   and Python gets its own object back")
    tenure.mr.set_current_device_resource(before)
    check({cpp.current_id(), rust.current_id()} == {before.id}, "set from Python")

    print("\n4. the pools are dropped while their columns live")
    del explicit, current, scoped, new
    gc.collect()
    check(not ledger.closed, "none is closed: each column holds its resource")
    check(rust.summary(c) == sizes, "and the bytes are still there")

    print("\n5. freed from other threads and languages")
    with_name = [("thread-cpp", cpp, a), ("thread-rust", rust, b)]
    for name, library, buffer in with_name:

        def free(library=library, buffer=buffer):
            with ledger.acting(library.name):
                library.free(buffer)

        in_thread(name, free)
    in_thread("thread-python", c.close)
    d.close()
    check(a.size == b.size == c.size == d.size == 0, "the Python objects are empty now")


def main():
    """The whole scene."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", nargs="?", default=DATA, help="a CSV file with the columns Thread and Size")
    path = parser.parse_args().log

    where_it_runs()
    print(f"file:   {os.path.basename(path)}")
    plain = tenure.mr.CudaMemoryResource()
    used = tenure.sim.used()
    ledger, cpp, rust = Ledger(), Columns(), Statistics()
    handed_over(ledger, cpp, rust, path)
    gc.collect()

    print("\n6. the ledger\n")
    print(ledger.table(), "\n")
    check(all(e.freer for e in ledger.entries), "every block was freed, by the resource that made it")
    for name in ("explicit", "current", "scoped"):
        check(ledger.balance(name) == 0, f"balance of {name}: 0")
    check(sorted(ledger.closed) == ["current", "explicit", "scoped"], "each pool closed when its last column went")
    check(tenure.mr.misuse_count() == 0, "no wrong free")
    check(plain.info().reserved_bytes == 0, "the pools gave all pages back")
    print(f"         the device has {tenure.sim.used() - used:,} bytes more in use: streams and events of its driver")

    failed = CHECKS.count(False)
    print(f"\n{len(CHECKS) - failed} checks passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
