"""What the Python drivers of this directory share: the protocol on stdin and
stdout, the two processes of a case, their pools, and the proof of what moved.

A peer is a module with NAME, DISTRIBUTION (its package), TCP_ONLY (whether its
path within a host is TCP, too), POLLS (whether both processes poll and have no
other thread that works) and these functions:

    refuse(case)                  optional: raises Refusal if it cannot run it
    environment(case)             variables that its library reads when loaded
    sender(case, pool, link)      the object of the process that is asked; for the
                                  scenario "layers" layers.py says what it does
    receiver(case, pool, link)    the object of the process that it started

A sender has settings (a string), prepare(first), which may take its time, and
sample(first), which is measured and returns what the answer says besides the
seconds, and settle(), which waits for the receiver to rest. A receiver has serve(request), called with what the sender told it by
Link.ask. Both are made in their own process after the fork, at the same time,
and exchange what they need about each other through the link.
"""

import ctypes
import importlib.metadata
import json
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

import layers

# How long one side waits for the other without seeing any progress.
STALL_SECONDS = 20
# Iterations of a busy loop between two looks at whether the other side lives.
SPINS_PER_LOOK = 4096
# How long the receiving process may take to leave once its link is closed.
LEAVE_SECONDS = 5
# From linux/prctl.h and linux/tcp.h.
PR_SET_PDEATHSIG = 1
CONGESTION_NAME_MAX = 16

BLANK = 0xFF  # each byte of a destination before the first sample
PART = 4 << 20  # bytes of a pool that are stamped or compared at a time
WORD = 8  # bytes; a slot is stamped with words that name seed, slot and place


class Refusal(Exception):
    """A case that this peer cannot run; the text says why, in one line."""


@dataclass
class Case:
    """One "open" request, with defaults for what latency and rate leave out."""

    scenario: str
    transport: str
    size: int  # bytes of a block
    pool: int  # bytes on each side
    count: int = 0  # blocks of a sample
    depth: int = 1  # batches in flight
    batch: int = 1  # blocks
    pings: int = 0  # round trips
    order: str = ""
    seed: int = 1
    target: int = 0  # bytes of the destination, where they are not those of the source

    @classmethod
    def parse(cls, request):
        known = {k: v for k, v in request.items() if k in cls.__dataclass_fields__}
        case = cls(**known)
        if case.scenario not in ("pages", "latency", "rate", "layers"):
            raise Refusal(f"scenario {case.scenario!r}: want pages, latency, rate or layers")
        if case.transport not in ("shm", "tcp"):
            raise Refusal(f"transport {case.transport!r}: want shm or tcp")
        if case.size < WORD or case.size % WORD or case.pool < case.size:
            raise Refusal(f"size {case.size}, pool {case.pool}: want a size that is a multiple of {WORD} and at most the pool")
        if case.scenario == "layers":
            return case
        for name in ("depth", "batch", "pings" if case.scenario == "latency" else "count"):
            if getattr(case, name) < 1:
                raise Refusal(f"{name} {getattr(case, name)}: want at least 1")
        if case.scenario == "pages" and not case.order:
            raise Refusal("scenario pages: no order file")
        if case.scenario != "pages":  # which use no more memory than is in flight
            case.pool = min(case.pool, case.depth * case.batch * case.size)
        return case

    @property
    def slots(self):
        return self.pool // self.size

    def route(self):
        """The (source slot, destination slot) pairs in the order of sending."""
        import numpy

        if self.scenario == "latency":
            return numpy.zeros((1, 2), numpy.int64)
        if self.scenario == "rate":
            return numpy.arange(self.slots).repeat(2).reshape(-1, 2)
        pairs = numpy.fromfile(self.order, "<u4").astype(numpy.int64)
        if len(pairs) != 2 * self.slots or pairs.max() >= self.slots:
            raise Refusal(f"order file {self.order}: want {self.slots} pairs of slots below {self.slots}")
        return pairs.reshape(-1, 2)


class Pool:
    """Memory of a case, source or destination, all of it touched. It has the same
    kind of pages as everybody's: those of a shared mapping."""

    def __init__(self, case, size=0):
        import numpy

        size = size or case.pool
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.bytes = numpy.frombuffer(self.memory, numpy.uint8)
        self.address = self.bytes.ctypes.data
        self.case = case
        if case.scenario != "layers":
            self.slots = self.bytes[: case.slots * case.size].view("<u8").reshape(case.slots, -1)
        self.bytes[:] = BLANK

    def parts(self):
        """The slots, in ranges whose temporary copies stay small."""
        step = max(1, PART // self.case.size)
        return (slice(start, start + step) for start in range(0, self.case.slots, step))

    def stamp(self):
        import numpy

        if self.case.scenario == "layers":
            for start in range(0, self.size // WORD * WORD, PART):
                part = self.bytes[start : min(start + PART, self.size // WORD * WORD)]
                part.view("<u8")[:] = layers.content(start, len(part), self.case.seed)
            return
        slots = numpy.arange(self.case.slots)
        for part in self.parts():
            self.slots[part] = self.content(slots[part])

    def content(self, origins):
        """What slots hold that were copied from origins; below 0: from nowhere."""
        import numpy

        words = numpy.arange(self.slots.shape[1], dtype="<u8") | (self.case.seed << 48 | origins << 24).astype("<u8")[:, None]
        words.view("u1")[origins < 0] = BLANK
        return words

    def corrupt(self, route):
        """Bytes that differ from a blank pool into which route was copied."""
        import numpy

        origins = numpy.full(self.case.slots, -1)
        origins[route[:, 1]] = route[:, 0]
        wrong = 0
        for part in self.parts():
            want, have = self.content(origins[part]), self.slots[part]
            if not numpy.array_equal(want, have):
                wrong += int((want.view("u1") != have.view("u1")).sum())
        return wrong


class Link:
    """The pipe between the two processes of a driver; each end has one owner."""

    def __init__(self, connection, child=0):
        self.connection = connection
        self.child = child  # process id of the receiver; 0 in the receiver

    def tell(self, what):
        try:
            self.connection.send(what)
        except OSError as error:
            raise ConnectionError(f"the other process is gone: {error}") from error

    def hear(self, seconds=STALL_SECONDS):
        """The other's next message; seconds None waits for ever."""
        try:
            if not self.connection.poll(seconds):
                raise TimeoutError(f"no word from the other process for {seconds} s")
            heard = self.connection.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionError("the other process is gone") from error
        if isinstance(heard, Exception):
            raise heard
        return heard

    def exchange(self, mine):
        self.tell(mine)
        return self.hear()

    def ask(self, request):
        self.tell(request)
        return self.hear()

    def spin(self, condition):
        """Calls condition until it is true, or the other side died or stalled."""
        deadline = 0
        while True:
            for _ in range(SPINS_PER_LOOK):
                if condition():
                    return
            if self.child and os.waitpid(self.child, os.WNOHANG)[0]:
                self.child = 0
                raise ConnectionError("the receiving process died")
            now = time.monotonic()
            deadline = deadline or now + STALL_SECONDS
            if now > deadline:
                raise TimeoutError(f"no progress for {STALL_SECONDS} s")

    def cpu(self):
        """User and system seconds of both processes, all threads."""
        # The kernel's clock id of a process' CPU time: see clock_getcpuclockid(3).
        theirs = time.clock_gettime((~self.child << 3) | 2)
        return time.process_time() + theirs


def percentiles(round_trips):
    """One-way p50, p99 and p99.9 in microseconds, of round trips in seconds."""
    import numpy

    p50, p99, p999 = numpy.percentile(numpy.asarray(round_trips) * 1e6 / 2, (50, 99, 99.9))
    return {"p50": float(p50), "p99": float(p99), "p999": float(p999)}


def congestion():
    """The congestion control of the sockets that this process makes. Neither
    library has a setting for it: it is the system's, or a preloaded one's."""
    with socket.socket() as any_socket:
        name = any_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_NAME_MAX)
    return name.split(b"\0")[0].decode() + " congestion control"


def version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise Refusal(f"no package {distribution} in this Python environment") from error


def half_of_the_processors(second):
    """Each process gets half of the processors: the scheduler may run two that
    poll in turns on one."""
    all_of_them = sorted(os.sched_getaffinity(0))
    half = len(all_of_them) // 2
    if half:
        os.sched_setaffinity(0, all_of_them[half:] if second else all_of_them[:half])


def receive(peer, case, link):
    """The life of the receiving process; ends with its link."""
    try:
        pool = Pool(case, case.target)
        end = peer.receiver(case, pool, link)
        link.tell("ready")
        while True:
            request = link.hear(None)
            if request[0] == "verify" and case.scenario == "layers":
                link.tell(layers.Writes(case).corrupt(pool, case.seed))
            elif request[0] == "verify":
                link.tell(pool.corrupt(case.route()[request[1]]))
            else:
                end.serve(request)
    except ConnectionError:
        pass
    except Exception as error:
        link.tell(RuntimeError(f"receiver: {type(error).__name__}: {error}"))


class Driver:
    """The asked process: owns the receiver, the sender's pool and the answers."""

    def __init__(self, peer):
        self.peer = peer
        self.link = None
        self.case = None
        self.first = None  # of the first sample
        # Libraries may print: standard output becomes standard error, and the
        # answers keep the real one.
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def open(self, request):
        if self.case:
            raise Refusal("a driver opens one case")
        case = Case.parse(request)
        peer = self.peer
        release = version(peer.DISTRIBUTION)
        if hasattr(peer, "refuse"):
            peer.refuse(case)
        os.environ.update(OPENBLAS_NUM_THREADS="1", **peer.environment(case))
        network = congestion() if case.transport == "tcp" or peer.TCP_ONLY else ""
        ours, theirs = multiprocessing.Pipe()
        me = os.getpid()
        child = os.fork()
        if case.scenario == "layers" and peer.POLLS:
            half_of_the_processors(child == 0)
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)
            ours.close()
            self.answers.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            receive(peer, case, Link(theirs))
            os._exit(0)  # destructors of a library may wait for the other side
        theirs.close()
        self.link, self.case = Link(ours, child), case
        self.writes = layers.Writes(case) if case.scenario == "layers" else None
        self.route = [] if self.writes else case.route()
        self.pool = Pool(case)  # kept: a library knows only its address
        self.pool.stamp()
        self.sender = peer.sender(case, self.pool, self.link)
        if self.link.hear() != "ready":
            raise RuntimeError("the receiver did not get ready")
        settings = "; ".join(filter(None, (self.sender.settings, network)))
        return {"name": peer.NAME, "version": release, "settings": settings}

    def run(self, request):
        if self.writes:
            self.sender.prepare()
            cpu = self.link.cpu()
            answer = layers.run(self.sender, self.writes.layers, request)
            answer["cpu"] = self.link.cpu() - cpu
            self.sender.settle()
            return answer
        first = request["first"]
        if self.first is None:
            self.first = first
        self.sender.prepare(first)
        cpu, start = self.link.cpu(), time.perf_counter()
        answer = self.sender.sample(first)
        seconds, cpu = time.perf_counter() - start, self.link.cpu() - cpu
        self.sender.settle()
        return {"seconds": seconds, "cpu": cpu} | answer

    def verify(self, request):
        import numpy

        if self.writes:
            return {"corrupt": self.link.ask(("verify",))}
        first = self.first or 0
        moved = min(request["moved"], len(self.route))
        return {"corrupt": self.link.ask(("verify", (first + numpy.arange(moved)) % len(self.route)))}

    def answer(self, line):
        """Answers one request; false if the driver cannot go on."""
        going = True
        try:
            request = json.loads(line)
            handler = {"open": self.open, "run": self.run, "verify": self.verify}[request["op"]]
            if request["op"] != "open" and not self.case:
                raise Refusal(f"{request['op']}: no case is open")
            reply = {"ok": True} | handler(request)
        except Refusal as refusal:
            reply = {"ok": False, "why": str(refusal)}
        except Exception as error:
            going = False
            reply = {"ok": False, "why": f"{type(error).__name__}: {error}".replace("\n", " ")}
        print(json.dumps(reply), file=self.answers, flush=True)
        return going

    def close(self):
        if not self.link or not self.link.child:
            return
        self.link.connection.close()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not os.waitpid(self.link.child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self.link.child, signal.SIGKILL)
                os.waitpid(self.link.child, 0)
                return
            time.sleep(0.01)


def main(peer):
    """Runs a driver. A signal ends it at once, also inside a library's call: the
    kernel then ends the receiver, and neither leaves anything with a name."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    driver = Driver(peer)
    status = 0
    for line in sys.stdin:
        if not driver.answer(line):
            status = 1
            break
    driver.close()
    os._exit(status)
