"""The scenario "layers": the KV cache of a prompt, which becomes ready layer by
layer, is written to the places where the other side wants it.

The file of the case has a row of four 64-bit numbers for each write: layer,
offset in the source pool, offset in the destination pool, bytes; layers follow
each other. A peer's sender has prepare(), post(layer), which begins to move the
writes of a layer, poll(), which carries on with what was begun and says whether
nothing is left of it, and known(), the time at which the receiving application
knew that all is there. NAP is how long it naps between two looks.
"""

import time

BLANK = 0xFF


class Writes:
    """The writes of a case, in the order of their layers."""

    def __init__(self, case):
        import numpy

        rows = numpy.fromfile(case.order, "<u8").astype(numpy.int64)
        if not len(rows) or len(rows) % 4:
            raise ValueError(f"{case.order}: want rows of four 64-bit numbers")
        self.layer, self.source, self.target, self.length = rows.reshape(-1, 4).T
        self.layers = int(self.layer[-1]) + 1
        self.bounds = numpy.searchsorted(self.layer, range(self.layers + 1))

    def of(self, layer):
        """The numbers of a layer's writes, first and end."""
        return int(self.bounds[layer]), int(self.bounds[layer + 1])

    def parts(self, layer, limit):
        """The same, in parts of so many bytes, or of one write that is longer."""
        first, end = self.of(layer)
        while first < end:
            last, size = first, 0
            while last < end and (size == 0 or size + self.length[last] <= limit):
                size += self.length[last]
                last += 1
            yield first, last
            first = last

    def corrupt(self, pool, seed):
        """Bytes of the destination that are not the source's; it is blank after that."""
        import numpy

        wrong = 0
        for source, target, length in zip(self.source.tolist(), self.target.tolist(), self.length.tolist()):
            have = pool.bytes[target : target + length]
            want = content(source, length, seed)
            if not numpy.array_equal(want, have.view("<u8")):
                wrong += int((want.view("u1") != have).sum())
        pool.bytes[:] = BLANK
        return wrong


def content(offset, length, seed):
    """What a source pool holds from an offset on: words that name seed and place."""
    import numpy

    return numpy.arange(offset // 8, (offset + length) // 8, dtype="<u8") | numpy.uint64(seed << 48)


def run(sender, layers, request):
    """One prompt. A layer is computed when its time has come, whatever the
    transfer does: where this thread was busy with it, the time counts."""
    every, whole = request.get("layer_ns", 0), request.get("whole", False)
    begun = time.monotonic_ns()
    for layer in range(layers):
        at = computed = begun + (layer + 1) * every
        while (now := time.monotonic_ns()) < at:
            if sender.poll():
                time.sleep((at - now) / 1e9)
                computed = time.monotonic_ns()
            elif sender.NAP:
                time.sleep(sender.NAP)
        if not whole:
            sender.post(layer)
    if whole:
        for layer in range(layers):
            sender.post(layer)
    while not sender.poll():
        if sender.NAP:
            time.sleep(sender.NAP)
    known = sender.known()
    return {"seconds": (known - begun) / 1e9, "exposed": (known - computed) / 1e9}
