"""The hand-over scenes: each rule that a border could break, played by each pair of languages.

    scenes.py rules FIRST              every scene with every ordered pair; one line of JSON for each
    scenes.py exit FIRST MAKER KEEPER  the end of the process with things alive in both; must be silent

FIRST is the language that loads the library: its actor has used it before any other is loaded. "tenure" imports the Python
package first, which is what most programs do.

In each scene A makes and gives, B takes. What they did is checked past both of them, in the library itself.
"""

import contextlib
import gc
import itertools
import json
import os
import sys
import tempfile
import traceback

from actors import BAD_HANDLE, CALLBACK, CURRENT, MAKERS, OWNERSHIP, Failed, new_book, table

SIZE = 1000


def fails(status, function, *arguments):
    """The error of a call that must fail with this status."""
    try:
        function(*arguments)
    except Failed as error:
        assert error.status == status, f"status {error.status} instead of {status}: {error.text}"
        return error
    raise AssertionError(f"{function.__qualname__}{arguments} did not fail")


@contextlib.contextmanager
def reports():
    """What is written to stderr by whomever, and what Python cannot raise, while the block runs."""
    told = {"stderr": "", "unraisable": ""}
    hook, before = sys.unraisablehook, os.dup(2)
    sys.unraisablehook = lambda error: told.update(unraisable=str(error.exc_value))
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield told
        finally:
            os.dup2(before, 2)
            os.close(before)
            sys.unraisablehook = hook
        file.seek(0)
        told["stderr"] = file.read().decode()


def rule_1(a, b, plain, stream):
    """A resource lives while an allocation of it lives: A lets go of everything but the buffer, and that is B's."""
    book = new_book()
    maker = a.callback(plain, book)
    pool = a.pool(maker)
    id = table().id(pool)
    buffer = a.make(SIZE, 7, stream, pool)
    a.release(maker)
    a.release(pool)
    assert table().alive(id), "the pool is gone while its buffer lives"
    assert book.dropped == 0
    assert b.read(buffer, SIZE) == bytes([7]) * SIZE
    b.free(buffer)
    gc.collect()
    assert not table().alive(id), "the pool lives on without a reference"
    assert book.dropped == 1, f"the functions were let go of {book.dropped} times"
    assert 0 < book.allocations == book.frees


def rule_2(a, b, plain, stream):
    """An allocation goes home: B frees A's block with everything that is wrong, and nothing happens until it is right."""
    pool, other = a.pool(plain), b.pool(plain)
    ptr = a.allocate(pool, SIZE, stream)
    for resource, wrong, size in (
        (other, ptr, SIZE),
        (plain, ptr, SIZE),
        (pool, ptr, 100 * SIZE),
        (pool, ptr + 256, SIZE),
        (pool, 0x1234500, SIZE),
    ):
        error = fails(OWNERSHIP, b.deallocate, resource, wrong, size, stream)
        assert f"{wrong:#x}" in error.text.replace("0x0", "0x"), error.text
        assert table().info(pool).live_count == 1
    b.deallocate(pool, ptr, SIZE, stream)
    assert table().info(pool).live_count == 0
    fails(OWNERSHIP, b.deallocate, pool, ptr, SIZE, stream)
    a.release(pool)
    b.release(other)


def rule_3(a, b, plain, stream):
    """Taking ownership names the owner: by handle nothing needs to be named, by pointer the right resource or an error."""
    pool, other = a.pool(plain), b.pool(plain)
    id = table().id(pool)
    buffer = a.make(SIZE, 9, stream, pool)
    before = table().view(buffer)
    assert (before.resource_id, before.stream.raw) == (id, stream[0])

    ptr, size, owner, home = a.detach(buffer)
    fails(BAD_HANDLE, table().view, buffer)
    assert (ptr, size) == (before.ptr, SIZE) and home == stream
    assert table().id(owner) == id and table().info(pool).live_count == 1
    assert b.owner_of(ptr) == id
    fails(OWNERSHIP, b.adopt, ptr, size, home, other)
    fails(OWNERSHIP, b.adopt, ptr, 100 * size, home, owner)
    adopted = b.adopt(ptr, size, home, owner)
    after = table().view(adopted)
    assert (after.ptr, after.bytes, after.resource_id) == (ptr, size, id)
    assert (after.stream.raw, after.stream.object, after.device) == (home[0], before.stream.object, before.device)
    table().release(owner)
    table().release_stream(home)
    assert b.read(adopted, SIZE) == bytes([9]) * SIZE
    b.free(adopted)
    assert table().info(pool).live_count == 0 and b.owner_of(ptr) == 0
    a.release(pool)
    b.release(other)


def rule_4(a, b, plain, stream):
    """One table for all: what A sets or scopes B sees, and replacing an entry harms nothing that was handed out."""
    first, second, third = a.pool(plain), b.pool(plain), a.pool(plain)
    ids = [table().id(pool) for pool in (first, second, third)]
    a.set_current(first)
    assert b.current_id() == ids[0]
    buffer = b.make(SIZE, 5, stream, CURRENT)
    b.set_current(second)
    assert a.current_id() == ids[1]
    a.release(first)
    assert table().view(buffer).resource_id == ids[0]
    assert a.read(buffer, SIZE) == bytes([5]) * SIZE
    a.free(buffer)
    gc.collect()
    assert not table().alive(ids[0]), "the replaced resource lives on"

    seen = []

    def within():
        seen.append(b.current_id())
        scoped = b.make(SIZE, 6, stream, CURRENT)
        seen.append(table().view(scoped).resource_id)
        b.scope(second, lambda: seen.append(a.current_id()))
        seen.append(a.current_id())
        a.free(scoped)

    a.scope(third, within)
    assert seen == [ids[2], ids[2], ids[1], ids[2]], seen
    assert a.current_id() == b.current_id() == ids[1]

    def broken():
        raise KeyError("on the way out")

    try:
        a.scope(third, broken)
    except KeyError:
        pass
    assert b.current_id() == ids[1], "a scope was not undone on its way out"
    table().reset_current()
    b.release(second)
    a.release(third)
    gc.collect()
    assert not any(map(table().alive, ids))


def rule_7(a, b, plain, stream):
    """Callbacks are owned: B works with A's functions after A has let go of them, and gets A's error as it was raised."""
    book = new_book()
    resource = a.callback(plain, book)
    buffer = b.make(SIZE, 3, stream, resource)
    a.release(resource)
    assert (book.allocations, book.frees, book.dropped) == (1, 0, 0)
    b.free(buffer)
    gc.collect()
    assert (book.allocations, book.frees, book.dropped) == (1, 1, 1)

    # An error of an allocation reaches B; nothing is left behind, and the next one is served.
    book = new_book()
    resource = a.callback(plain, book)
    book.fail = 1
    try:
        b.make(SIZE, 3, stream, resource)
    except Failed as error:
        assert error.status == CALLBACK and f"refused by {a.name}" in error.text, error
    except RuntimeError as error:
        assert b.name == "Python" and f"refused by {a.name}" in str(error), error
    else:
        raise AssertionError("the failing function was not asked")
    assert table().info(resource).live_count == 0
    buffer = b.make(SIZE, 4, stream, resource)

    # An error of a free is reported (Python's where Python reports such things, the others' on stderr), and does not stop it.
    book.fail = 2
    with reports() as reported:
        b.free(buffer)
    assert f"refused by {a.name}" in reported["unraisable" if a.name == "Python" else "stderr"], reported
    assert (book.allocations, book.frees, table().info(resource).live_count) == (1, 1, 0)
    a.release(resource)
    gc.collect()
    assert book.dropped == 1


SCENES = {1: rule_1, 2: rule_2, 3: rule_3, 4: rule_4, 7: rule_7}


def actors(first):
    """All actors, after the first has used the library alone."""
    loaded = {}
    name = {"tenure": "Python"}.get(first, first)
    loaded[name] = MAKERS[name]()
    loaded[name].current_id()
    for other, make in MAKERS.items():
        if other not in loaded:
            loaded[other] = make()
            assert loaded[other].current_id() == loaded[name].current_id(), f"{other} and {name} have two tables"
    return loaded


def play(first):
    """Every scene with every ordered pair."""
    cast = actors(first)
    for (a, b), (number, scene) in itertools.product(itertools.permutations(cast, 2), SCENES.items()):
        plain, stream = table().plain(), table().stream()
        violations = table().violations()
        try:
            scene(cast[a], cast[b], plain, stream)
            assert table().violations() == violations, "the driver was used wrongly"
            failure = None
        except Exception:
            failure = traceback.format_exc()
        table().reset_current()
        table().release_stream(stream)
        table().release(plain)
        print(json.dumps({"rule": number, "a": a, "b": b, "failure": failure}), flush=True)


def end(first, maker, keeper):
    """Rule 8: the process ends while B keeps A's buffer and resource, another buffer is nobody's, and A's pool is current."""
    cast = actors(first)
    a, b = cast[maker], cast[keeper]
    plain, stream = table().plain(), table().stream()
    own = a.callback(plain, new_book())
    pool = a.pool(own)
    b.keep(a.make(SIZE, 1, stream, pool), pool)
    a.keep(b.make(SIZE, 2, stream, own), own)
    b.make(SIZE, 3, stream, pool)
    b.set_current(pool)


if __name__ == "__main__":
    if sys.argv[1] == "rules":
        play(sys.argv[2])
    else:
        end(*sys.argv[2:])
