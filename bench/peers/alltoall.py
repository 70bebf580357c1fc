"""Drives torch.distributed over Gloo for the rows of MoE layers, as c/alltoall.c does OpenMPI: all_to_all_single of the numbers of rows
for each expert, then of the rows with uneven splits, then of what comes back. Each rank is a process of its own. Gloo has TCP only.
"""

import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import time


def routing(path, rank):
    """The numbers of rows that a rank sends to each expert."""
    with open(path, "rb") as f:
        magic, version, ranks, tokens, experts, topk, _, _ = struct.unpack("<4s5IQ32s", f.read(64))
        if magic != b"HWMR" or version != 1:
            raise ValueError(path + " is no routing")
        n = struct.unpack("<%dI" % ranks, f.read(4 * ranks))
        f.seek(4 * rank * tokens * topk, 1)
        ids = struct.unpack("<%di" % (n[rank] * topk), f.read(4 * n[rank] * topk))
    local = -(-experts // ranks)
    counts = [0] * (ranks * local)
    for e in ids:
        if e >= 0:
            counts[e] += 1
    return ranks, local, counts


class Rank:
    def __init__(self, work, rank):
        import numpy
        import torch
        import torch.distributed

        self.np, self.torch, self.dist = numpy, torch, torch.distributed
        torch.set_num_threads(1)
        self.rank, self.seed = rank, work["seed"] & 0x7FFF
        self.size, self.local, counts = routing(work["routing"], rank)
        if self.size != work["ranks"]:
            raise ValueError("the routing is for %d ranks" % self.size)
        self.dist.init_process_group("gloo", init_method="file://" + work["rendezvous"], rank=rank, world_size=self.size)
        self.rows = (work["dispatch"], work["combine"])
        self.counts = torch.tensor(counts, dtype=torch.int32)
        self.announced = torch.zeros_like(self.counts)
        self.exchange_counts()
        n = self.splits(self.counts), self.splits(self.announced)
        byte = torch.uint8
        self.send, self.returned = (torch.zeros(sum(n[0]) * row, dtype=byte) for row in self.rows)
        self.receive, self.results = (torch.zeros(sum(n[1]) * row, dtype=byte) for row in self.rows)
        self.fill(self.send, 0, n[0])
        self.fill(self.results, 1, n[1])

    def exchange_counts(self):
        self.dist.all_to_all_single(self.announced, self.counts)

    def splits(self, counts):
        """Rows by rank; those of this one stay here."""
        n = counts.view(self.size, self.local).sum(1).tolist()
        n[self.rank] = 0
        return n

    def words(self, back, a, b, n):
        np = self.np
        first = (self.seed << 48) ^ (back << 63) ^ (a << 40) ^ (b << 32)
        return np.uint64(first) ^ np.arange(n // 8, dtype=np.uint64)

    def parts(self, pool, back, splits):
        at = 0
        for peer, n in enumerate(splits):
            yield peer, pool.numpy()[at : at + n * self.rows[back]].view(self.np.uint64)
            at += n * self.rows[back]

    def fill(self, pool, back, splits):
        for peer, part in self.parts(pool, back, splits):
            part[:] = self.words(back, self.rank, peer, part.nbytes)

    def wrong(self, pool, back, splits):
        n = 0
        for peer, part in self.parts(pool, back, splits):
            n += 8 * int((part != self.words(back, peer, self.rank, part.nbytes)).sum())
            part[:] = self.np.uint64(0xA5A5A5A5A5A5A5A5)
        return n

    def step(self):
        out, back = self.rows
        began = time.monotonic()
        self.exchange_counts()
        to, frm = self.splits(self.counts), self.splits(self.announced)
        self.dist.all_to_all_single(self.receive, self.send, [n * out for n in frm], [n * out for n in to])
        between = time.monotonic()
        self.dist.all_to_all_single(self.returned, self.results, [n * back for n in to], [n * back for n in frm])
        return between - began, time.monotonic() - between

    def run(self, warm, steps):
        times = []
        for i in range(-warm, steps):
            if i == 0:
                used = processor()
                first = time.monotonic()
            self.dist.barrier()
            t = self.step()
            if i >= 0:
                times.append(t)
        return times, time.monotonic() - first, processor() - used

    def verify(self):
        return self.wrong(self.receive, 0, self.splits(self.announced)) + self.wrong(self.returned, 1, self.splits(self.counts))


def processor():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def serve(work, rank, pipe):
    try:
        r = Rank(work, rank)
        pipe.send(r.torch.__version__)
        while True:
            order = pipe.recv()
            if order["op"] == "end":
                return
            pipe.send(r.run(order.get("warm", 0), order["steps"]) if order["op"] == "run" else r.verify())
    except Exception as e:
        pipe.send(e)


def ask(pipes, order):
    for p in pipes:
        p.send(order)
    return answers(pipes)


def answers(pipes):
    got = [p.recv() for p in pipes]
    for a in got:
        if isinstance(a, Exception):
            raise a
    return got


def answer(pipes, order):
    got = ask(pipes, order)
    if order["op"] == "verify":
        return {"ok": True, "corrupt": sum(got)}
    us = lambda of: [round(max(map(of, step)) * 1e6, 3) for step in zip(*(times for times, _, _ in got))]
    return {
        "ok": True, "seconds": max(g[1] for g in got), "cpu": sum(g[2] for g in got),
        "us": us(sum), "forth_us": us(lambda t: t[0]), "back_us": us(lambda t: t[1]),
    }


def main():
    work = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="hawser-gloo-") as d:
        work["rendezvous"] = os.path.join(d, "meet")
        pipes, ranks = [], []
        for rank in range(work["ranks"]):
            ours, theirs = multiprocessing.Pipe()
            p = multiprocessing.Process(target=serve, args=(work, rank, theirs), daemon=True)
            p.start()
            theirs.close()
            pipes.append(ours)
            ranks.append(p)
        version = answers(pipes)[0]
        print(json.dumps({"ok": True, "name": "gloo", "version": version, "settings": "all_to_all_single, 1 thread"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(pipes, json.loads(line))), flush=True)
        for p in pipes:
            p.send({"op": "end"})
        for p in ranks:
            p.join(10)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
