"""Driver of Mooncake's Transfer Engine: an engine in each process that find one
another without a metadata server, batches of writes over its TCP transport."""

import os
import sys

# A script's directory comes first in the path, where this file would hide the
# package of the same name.
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here] + [here]

import driver  # noqa: E402

NAME = "mooncake"
DISTRIBUTIONS = ("mooncake-transfer-engine-non-cuda",)
TCP_ONLY = True  # the wheel has no transport through shared memory

HOST = "127.0.0.1"


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
    if case.scenario != "pages":
        raise driver.Refusal("not measured")


class Engine:
    """What both ends have: an engine that registered the pool."""

    def __init__(self, case, pool, link):
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise RuntimeError(f"mooncake.engine does not load: {error}") from error
        self.case, self.link = case, link
        self.engine = TransferEngine()
        if self.engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("TransferEngine.initialize failed")
        if self.engine.register_memory(pool.address, case.pool):
            raise RuntimeError("TransferEngine.register_memory failed")
        self.address = pool.address
        name = f"{HOST}:{self.engine.get_rpc_port()}"
        self.other, self.there = link.exchange((name, pool.address))


class Sender(Engine):
    def __init__(self, case, pool, link):
        super().__init__(case, pool, link)
        self.route = case.route()
        self.window = max(1, case.depth // case.batch)
        self.batches = []
        self.settings = f"{self.window} in flight"

    def prepare(self, first):
        import numpy

        case = self.case
        pairs = self.route[(first + numpy.arange(case.count)) % len(self.route)] * case.size
        sources, targets = (pairs[:, 0] + self.address).tolist(), (pairs[:, 1] + self.there).tolist()
        self.batches = []
        for start in range(0, case.count, case.batch):
            part = slice(start, start + case.batch)
            self.batches.append((sources[part], targets[part], [case.size] * len(sources[part])))

    def sample(self, first):
        mode = os.environ.get("PEER_MOONCAKE", "async")
        if mode == "sync":
            for batch in self.batches:
                if self.engine.batch_transfer_sync_write(self.other, *batch):
                    raise RuntimeError("batch_transfer_sync_write failed")
        else:
            flight = []
            for batch in self.batches:
                if len(flight) >= self.window:
                    if self.engine.get_batch_transfer_status([flight.pop(0)]):
                        raise RuntimeError("a batch failed")
                number = self.engine.batch_transfer_async_write(self.other, *batch)
                if not number:
                    raise RuntimeError("batch_transfer_async_write failed")
                flight.append(number)
            if self.engine.get_batch_transfer_status(flight):
                raise RuntimeError("a batch failed")
        self.link.ask(("written", self.case.count))
        return {}

    def settle(self):
        pass


class Receiver(Engine):
    def serve(self, request):
        self.link.tell("known")


sender, receiver = Sender, Receiver

if __name__ == "__main__":
    driver.main(sys.modules["__main__"])
