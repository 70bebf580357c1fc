"""Driver of NIXL: an agent in each process, the UCX backend, lists of DRAM
descriptors that were prepared once, a notification with each transfer."""

import os
import sys
import time
from collections import deque

# A script's directory comes first in the path, where this file would hide the
# package of the same name.
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here] + [here]

import driver  # noqa: E402

NAME = "nixl"
DISTRIBUTIONS = ("nixl-cu12", "nixl-cu13")
TCP_ONLY = False

# UCX transports of a case.
TRANSPORTS = {"tcp": "tcp,self", "shm": "posix,cma,self"}
DONE = b"done"
MOVED = b"moved"


def environment(case):
    chosen = {"UCX_TLS": TRANSPORTS[case.transport], "UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "WARN"}
    if case.transport == "shm":
        del chosen["UCX_NET_DEVICES"]
    # A user's own choice wins, so that others can be tried.
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def library():
    try:
        import nixl_cu12 as module
    except ModuleNotFoundError:
        import nixl_cu13 as module
    return module


class Agent:
    """What both ends have: an agent that knows the other and the slots of both."""

    def __init__(self, name, case, pool, link):
        nixl = library()
        self.case, self.link = case, link
        progress = os.environ.get("PEER_NIXL_PROGRESS") == "1"
        self.agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=progress, backends=[]))
        options = self.agent.get_plugin_params("UCX")
        # The transports within a host do not report the failure of a peer, and
        # without this the backend would not use them.
        options["ucx_error_handling_mode"] = "none" if case.transport == "shm" else "peer"
        self.agent.create_backend("UCX", options)
        registered = self.agent.get_reg_descs([(pool.address, case.pool, 0, "")], "DRAM")
        if not self.agent.register_memory(registered):
            raise RuntimeError("register_memory failed")
        metadata, address = link.exchange((self.agent.get_agent_metadata(), pool.address))
        self.other = self.agent.add_remote_agent(metadata)
        if isinstance(self.other, bytes):
            self.other = self.other.decode()
        self.agent.make_connection(self.other)
        self.local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.descriptors(pool.address), "DRAM")
        self.remote = self.agent.prep_xfer_dlist(self.other, self.descriptors(address), "DRAM")
        self.progress = progress

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
        self.step = case.batch if case.scenario == "pages" else 1
        self.window = max(1, case.depth // self.step)
        self.handles = {}  # by place in the route
        self.posted = []
        transports = os.environ["UCX_TLS"]
        thread = "a progress thread" if self.progress else "no progress thread"
        blocks = {
            "pages": f"transfers of {self.step} prepared descriptors, {self.window} in flight, a notification with each",
            "latency": "one descriptor and a notification each way",
            "rate": f"transfers of 1 descriptor, {self.window} in flight, a notification with each",
        }[case.scenario]
        self.settings = f"UCX_TLS={transports}; an agent per process with {thread}, both polling; {blocks}"

    def prepare(self, first):
        case, length = self.case, len(self.route)
        count = case.count if case.scenario == "pages" else length
        starts = [(first + i) % length for i in range(0, count, self.step)]
        rest = count % self.step
        self.posted = []
        for number, start in enumerate(starts):
            size = rest if rest and number == len(starts) - 1 else self.step
            key = start, size
            if key not in self.handles:
                places = [(start + i) % length for i in range(size)]
                self.handles[key] = self.transfer(self.route[places])
            self.posted.append(self.handles[key])
        if case.scenario == "rate":
            self.posted = [self.posted[i % length] for i in range(case.count)]
        if case.scenario != "latency":
            self.link.ask(("count", len(self.posted)))
        else:
            self.link.ask(("pong", case.pings))

    def sample(self, first):
        if self.case.scenario == "latency":
            return self.ping()
        pending = deque()
        for handle in self.posted:
            if len(pending) >= self.window:
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
        handle = self.posted[0]
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


sender, receiver = Sender, Receiver

if __name__ == "__main__":
    driver.main(sys.modules["__main__"])
