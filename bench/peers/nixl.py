"""Driver of NIXL: an agent in each process, the UCX backend, lists of DRAM
descriptors that were prepared once, a notification with each transfer."""

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

NAME = "nixl"
DISTRIBUTION = "nixl-cu12"
TCP_ONLY = False
POLLS = True

# UCX transports of a case. Within a host, cma would have one process copy; without
# it both do, through a queue in shared memory, in about half the time.
TRANSPORTS = {"tcp": "tcp,self", "shm": "posix,self"}
# Bytes of a transfer, where it has more than two blocks: more in flight was slower.
TRANSFER = 1 << 20
DONE = b"done"
MOVED = b"moved"
# Transfers in flight of a prompt's layers, which are as many bytes as others have.
FLIGHT = 8


def environment(case):
    chosen = {"UCX_TLS": TRANSPORTS[case.transport], "NIXL_LOG_LEVEL": "WARN"}
    if case.transport == "tcp":
        chosen["UCX_NET_DEVICES"] = "lo"
    # A user's own choice wins, so that others can be tried.
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


class Agent:
    """What both ends have: an agent that knows the other and the slots of both."""

    def __init__(self, name, case, pool, link):
        import nixl_cu12 as nixl

        self.case, self.link = case, link
        self.agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False, backends=[]))
        options = self.agent.get_plugin_params("UCX")
        # The transports within a host do not report the failure of a peer, and
        # without this the backend would not use them.
        options["ucx_error_handling_mode"] = "none" if case.transport == "shm" else "peer"
        self.agent.create_backend("UCX", options)
        registered = self.agent.get_reg_descs([(pool.address, pool.size, 0, "")], "DRAM")
        if not self.agent.register_memory(registered):
            raise RuntimeError("register_memory failed")
        metadata, address = link.exchange((self.agent.get_agent_metadata(), pool.address))
        self.other = self.agent.add_remote_agent(metadata)
        if isinstance(self.other, bytes):
            self.other = self.other.decode()
        self.agent.make_connection(self.other)
        self.describe(pool.address, address)

    def describe(self, here, there):
        self.local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.descriptors(here), "DRAM")
        self.remote = self.agent.prep_xfer_dlist(self.other, self.descriptors(there), "DRAM")

    def descriptors(self, address):
        import numpy

        rows = numpy.zeros((self.case.slots, 3), numpy.uint64)
        rows[:, 0] = address + numpy.arange(self.case.slots, dtype=numpy.uint64) * self.case.size
        rows[:, 1] = self.case.size
        return rows

    def transfer(self, pairs):
        """A write of the slots that pairs name, ready to be posted, again and again."""
        import numpy

        pairs = numpy.ascontiguousarray(pairs.astype(numpy.int32).T)
        return self.agent.make_prepped_xfer("WRITE", self.local, pairs[0], self.remote, pairs[1], MOVED)

    def done(self, handle):
        state = self.agent.check_xfer_state(handle)
        if state == "ERR":
            raise RuntimeError("a transfer failed")
        return state == "DONE"

    def post(self, handle):
        """Whether the transfer ended within the call."""
        state = self.agent.transfer(handle)
        if state == "ERR":
            raise RuntimeError("a transfer could not be posted")
        return state == "DONE"

    def notifications(self):
        return sum(map(len, self.agent.get_new_notifs().values()))


class Sender(Agent):
    def __init__(self, case, pool, link):
        super().__init__("sender", case, pool, link)
        self.route = case.route()
        self.batch = min(case.batch, max(2, TRANSFER // case.size))
        # A transfer is posted again only once it is done: where those in flight
        # go around the pool, there are several of each.
        self.laps = -(-case.depth * self.batch // len(self.route))
        self.transfers = {}  # by place in the route, length and lap
        self.posts = []  # the transfers of a sample
        blocks = "one descriptor and a notification each way"
        if case.scenario != "latency":
            blocks = f"writes of {self.batch} prepared descriptors, {case.depth} in flight, a notification with each"
        self.settings = f"UCX_TLS={os.environ['UCX_TLS']}; an agent per process without a progress thread, both polling; {blocks}"

    def prepare(self, first):
        if self.case.scenario == "latency":
            self.posts = [self.made(0, 1)]
            self.link.ask(("pong", self.case.pings))
            return
        count, batch = self.case.count, self.batch
        self.posts = [self.made(first + start, min(batch, count - start)) for start in range(0, count, batch)]
        self.link.ask(("count", len(self.posts)))

    def made(self, start, length):
        """The transfer of length blocks from a place in the route."""
        lap, place = divmod(start, len(self.route))
        key = place, length, lap % self.laps
        if key not in self.transfers:
            places = [(start + i) % len(self.route) for i in range(length)]
            self.transfers[key] = self.transfer(self.route[places])
        return self.transfers[key]

    def sample(self, first):
        if self.case.scenario == "latency":
            return self.ping()
        pending = deque()
        for handle in self.posts:
            if len(pending) >= self.case.depth:
                oldest = pending.popleft()
                if not self.done(oldest):
                    self.link.spin(lambda: self.done(oldest))
            if not self.post(handle):
                pending.append(handle)
        for handle in pending:
            self.link.spin(lambda: self.done(handle))
        self.link.spin(self.notifications)
        return {}

    def ping(self):
        handle = self.posts[0]
        trips = []
        for _ in range(self.case.pings):
            start = time.perf_counter()
            if not self.post(handle):
                self.link.spin(lambda: self.done(handle))
            self.link.spin(self.notifications)
            trips.append(time.perf_counter() - start)
        return driver.percentiles(trips)

    def settle(self):
        self.link.ask(("settle",))


class Receiver(Agent):
    def __init__(self, case, pool, link):
        super().__init__("receiver", case, pool, link)
        self.back = self.transfer(case.route()[:1]) if case.scenario == "latency" else None

    def serve(self, request):
        self.link.tell("go")
        if request[0] == "count":
            self.count(request[1])
        else:
            self.pong(request[1])
        # What was posted last may still need this side's polling to leave.
        self.link.spin(lambda: self.notifications() or self.link.connection.poll(0))
        if self.link.hear() == ("settle",):
            self.link.tell("settled")

    def count(self, expected):
        def arrived():
            self.missing -= self.notifications()
            return self.missing <= 0

        self.missing = expected
        self.link.spin(arrived)
        self.agent.send_notif(self.other, DONE)

    def pong(self, pings):
        for _ in range(pings):
            self.link.spin(self.notifications)
            if not self.post(self.back):
                self.link.spin(lambda: self.done(self.back))


class LayerSender(Agent):
    """Writes the layers of a prompt in transfers of TRANSFER bytes that were
    prepared before the clock started, each with a notification."""

    NAP = 0

    def __init__(self, case, pool, link):
        self.writes = layers.Writes(case)
        super().__init__("sender", case, pool, link)
        self.transfers = [[self.made(*part) for part in self.writes.parts(i, TRANSFER)] for i in range(self.writes.layers)]
        self.waiting, self.flight = deque(), deque()
        self.settings = (
            f"UCX_TLS={os.environ['UCX_TLS']}; an agent per process without a progress thread, both polling; prepared writes of "
            f"{TRANSFER >> 20} MiB, {FLIGHT} in flight, a notification with each"
        )

    def describe(self, here, there):
        import numpy

        def rows(address, offsets):
            return numpy.stack([address + offsets, self.writes.length, numpy.zeros_like(offsets)], 1).astype(numpy.uint64)

        self.local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows(here, self.writes.source), "DRAM")
        self.remote = self.agent.prep_xfer_dlist(self.other, rows(there, self.writes.target), "DRAM")

    def made(self, first, end):
        import numpy

        numbers = numpy.arange(first, end, dtype=numpy.int64)
        return self.transfer(numpy.stack([numbers, numbers], 1))

    def prepare(self):
        self.link.ask(("count", sum(map(len, self.transfers))))

    def post(self, layer):
        self.waiting.extend(self.transfers[layer])
        self.poll()

    def poll(self):
        flight, waiting = self.flight, self.waiting
        while flight and self.done(flight[0]):
            flight.popleft()
        while waiting and len(flight) < FLIGHT:
            handle = waiting.popleft()
            if not Agent.post(self, handle):
                flight.append(handle)
        return not flight and not waiting

    def known(self):
        connection = self.link.connection
        self.link.spin(lambda: (self.notifications(), connection.poll(0))[1])
        return self.link.hear()

    def settle(self):
        self.link.ask(("settle",))


class LayerReceiver(Agent):
    def __init__(self, case, pool, link):
        super().__init__("receiver", case, pool, link)

    def describe(self, here, there):
        pass  # it only receives

    def serve(self, request):
        self.missing = request[1]
        self.link.tell("go")
        self.link.spin(self.arrived)
        self.link.tell(time.monotonic_ns())
        # What was posted last may still need this side's polling to leave.
        self.link.spin(lambda: self.notifications() or self.link.connection.poll(0))
        if self.link.hear() == ("settle",):
            self.link.tell("settled")

    def arrived(self):
        self.missing -= self.notifications()
        return self.missing <= 0


def sender(case, pool, link):
    return (LayerSender if case.scenario == "layers" else Sender)(case, pool, link)


def receiver(case, pool, link):
    return (LayerReceiver if case.scenario == "layers" else Receiver)(case, pool, link)


if __name__ == "__main__":
    driver.main(sys.modules["__main__"])
