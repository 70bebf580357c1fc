"""Driver of Mooncake's Transfer Engine: an engine in each process that find one
another without a metadata server, writes over its TCP transport."""

import os
import sys
import time
from collections import deque

# A script's directory comes first in the path, where this file would hide the
# package of the same name.
here = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here] + [here]

import driver  # noqa: E402
import layers  # noqa: E402

NAME = "mooncake"
DISTRIBUTION = "mooncake-transfer-engine-non-cuda"
TCP_ONLY = True  # the wheel has no transport through shared memory
POLLS = False  # threads of the library do the work

HOST = "127.0.0.1"
NAP = 50e-6  # seconds between two looks at a write
WINDOW = 8 << 20  # bytes in flight of a prompt's layers, as others have
WRITES = 512  # in flight at most: the transport refuses more than it can queue
# A notification is a TCP connection of its own: more would take minutes.
NOTIFICATIONS = 10_000


def environment(case):
    chosen = {
        "MC_FORCE_TCP": "1",
        "MC_TCP_BIND_ADDRESS": HOST,
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        "MC_TRANSFER_TIMEOUT": str(driver.STALL_SECONDS),
        "MC_LOG_LEVEL": "ERROR",
    }
    # A user's own choice wins, so that others can be tried.
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def refuse(case):
    if case.scenario == "rate" and case.count > NOTIFICATIONS * case.batch:
        raise driver.Refusal(
            f"each notification of the receiver opens a TCP connection, a few thousand a second: {case.count} messages would take a minute"
        )


class Engine:
    """What both ends have: an engine that registered the pool."""

    def __init__(self, case, pool, link):
        try:
            from mooncake.engine import TransferEngine, TransferNotify
        except ImportError as error:
            raise RuntimeError(f"mooncake.engine does not load: {error}") from error
        self.case, self.link = case, link
        self.engine = TransferEngine()
        if self.engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("TransferEngine.initialize failed")
        if self.engine.register_memory(pool.address, pool.size):
            raise RuntimeError("TransferEngine.register_memory failed")
        self.write, self.notification = TransferEngine.TransferOpcode.Write, TransferNotify("bench", "moved")
        self.address = pool.address
        name = f"{HOST}:{self.engine.get_rpc_port()}"
        self.other, self.there = link.exchange((name, pool.address))

    def notify(self, blocks):
        """Writes blocks and, once they are there, tells the other application."""
        sources, destinations = map(list, zip(*blocks))
        sizes = [self.case.size] * len(blocks)
        if self.engine.batch_transfer_sync(self.other, sources, destinations, sizes, self.write, self.notification):
            raise RuntimeError("batch_transfer_sync failed")


class Sender(Engine):
    def __init__(self, case, pool, link):
        super().__init__(case, pool, link)
        self.route = case.route()
        self.window = min(case.depth * case.batch, WRITES)
        self.blocks = []  # (source, destination) addresses of a sample
        told = "TCP over loopback, the only transport of this wheel within a host; connection pool on; "
        self.settings = told + {
            "pages": f"a write per block, {self.window} in flight, looked at every {NAP * 1e6:.0f} us; a message on a socket after the last",
            "latency": "a write with a notification each way, both sides polling",
            "rate": f"batches of {case.batch} writes, one at a time, each with a notification that counts for all of them",
        }[case.scenario]

    def prepare(self, first):
        import numpy

        pairs = self.route[(first + numpy.arange(self.case.count)) % len(self.route)] * self.case.size
        self.blocks = list(zip((pairs[:, 0] + self.address).tolist(), (pairs[:, 1] + self.there).tolist()))
        if self.case.scenario == "latency":
            self.link.ask(("pong", self.case.pings))
        elif self.case.scenario == "rate":
            self.link.ask(("count", -(-self.case.count // self.case.batch)))

    def sample(self, first):
        if self.case.scenario == "latency":
            return self.ping()
        if self.case.scenario == "rate":
            for start in range(0, len(self.blocks), self.case.batch):
                self.notify(self.blocks[start : start + self.case.batch])
            self.link.hear()
            return {}
        flight = deque()
        for source, destination in self.blocks:
            if len(flight) >= self.window:
                self.wait(flight.popleft())
            number = self.engine.transfer_submit_write(self.other, source, destination, self.case.size)
            if not number:
                raise RuntimeError("transfer_submit_write failed")
            flight.append(number)
        for number in flight:
            self.wait(number)
        self.link.ask(("written",))
        return {}

    def wait(self, number):
        # Naps, since a thread of the library does the work: polling without a
        # pause takes a core from it.
        while not (state := self.engine.transfer_check_status(number)):
            time.sleep(NAP)
        if state < 0:
            raise RuntimeError(f"a write failed: transfer_check_status gave {state}")

    def ping(self):
        trips = []
        for _ in range(self.case.pings):
            start = time.perf_counter()
            self.notify([(self.address, self.there)])
            self.link.spin(self.engine.get_notifies)
            trips.append(time.perf_counter() - start)
        return driver.percentiles(trips)

    def settle(self):
        pass


class Receiver(Engine):
    def serve(self, request):
        self.link.tell("known")
        if request[0] == "pong":
            for _ in range(request[1]):
                self.link.spin(self.engine.get_notifies)
                self.notify([(self.address, self.there)])
        elif request[0] == "count":
            self.missing = request[1]
            self.link.spin(self.counted)
            self.link.tell("counted")

    def counted(self):
        self.missing -= len(self.engine.get_notifies())
        return self.missing <= 0


class LayerSender(Engine):
    """Writes the layers of a prompt, then tells the other application on a pipe."""

    NAP = NAP

    def __init__(self, case, pool, link):
        super().__init__(case, pool, link)
        w = layers.Writes(case)
        rows = list(zip((w.source + self.address).tolist(), (w.target + self.there).tolist(), w.length.tolist()))
        self.rows = [rows[slice(*w.of(i))] for i in range(w.layers)]
        self.window = max(1, min(WINDOW // int(w.length.max()), WRITES))
        self.waiting, self.flight = deque(), deque()
        self.settings = (
            "TCP over loopback, the only transport of this wheel within a host; connection pool on; "
            f"a write per range, {WINDOW >> 20} MiB and at most {WRITES} in flight, looked at every {NAP * 1e6:.0f} us; a message on a pipe after the last"
        )

    def prepare(self):
        self.link.ask(("layers",))

    def post(self, layer):
        self.waiting.extend(self.rows[layer])
        self.poll()

    def poll(self):
        flight, waiting = self.flight, self.waiting
        while flight and (state := self.engine.transfer_check_status(flight[0])):
            if state < 0:
                raise RuntimeError(f"a write failed: transfer_check_status gave {state}")
            flight.popleft()
        while waiting and len(flight) < self.window:
            source, target, length = waiting.popleft()
            number = self.engine.transfer_submit_write(self.other, source, target, length)
            if not number:
                raise RuntimeError("transfer_submit_write failed")
            flight.append(number)
        return not flight and not waiting

    def known(self):
        return self.link.ask(("written",))

    def settle(self):
        pass


class LayerReceiver(Engine):
    def serve(self, request):
        self.link.tell(time.monotonic_ns())


def sender(case, pool, link):
    return (LayerSender if case.scenario == "layers" else Sender)(case, pool, link)


def receiver(case, pool, link):
    return (LayerReceiver if case.scenario == "layers" else Receiver)(case, pool, link)


if __name__ == "__main__":
    driver.main(sys.modules["__main__"])
