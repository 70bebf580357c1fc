"""Drives torch.distributed over Gloo for pushes of weights: source ranks hold a model, destination ranks need their tensor-parallel parts.

Standard input has the work as one line of JSON, then a line for each round: the way, and the version. Standard output has a line of JSON for
each: when the first rank began and the last had its parts in place, and how many bytes were wrong. Each rank is a process of its own.

  a  each tensor is broadcast whole, from source 0, which has it whole already; each destination copies its part out
  b  the same in buckets of 512 MiB: source 0 copies tensors in, destinations copy their parts out
  c  as a, but each source has its shard only: they are gathered on source 0 first
"""

import json
import multiprocessing
import os
import sys
import time

BUCKET = 512 << 20
STEP = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def seed(name, version):
    h = version * 0xD6E8FEB86659FD93 & MASK
    for b in name.encode():
        h = (h ^ b) * 0x100000001B3 & MASK
    return h


def elements(np, name, version, first, n):
    """Elements of a tensor as the package weightbench has them: BF16 as 16-bit integers."""
    x = np.arange(n, dtype=np.uint64) * np.uint64(STEP) + np.uint64((seed(name, version) + first * STEP) & MASK)
    return ((x >> np.uint64(40)).astype(np.uint16) & np.uint16(0x81FF)) | np.uint16(0x3A00)


class Rank:
    def __init__(self, work, rank):
        import numpy
        import torch
        import torch.distributed

        self.np, self.torch, self.dist = numpy, torch, torch.distributed
        torch.set_num_threads(1)
        self.sources, self.rank, self.tensors = work["sources"], rank, work["tensors"]
        self.size = self.sources + work["dests"]
        self.dist.init_process_group("gloo", init_method="file://" + work["rendezvous"], rank=rank, world_size=self.size)
        self.source = rank < self.sources
        self.group = self.dist.new_group([0] + list(range(self.sources, self.size)))
        self.gatherers = self.dist.new_group(list(range(self.sources)))
        byte = torch.uint8
        largest = max(t["rows"] * t["cols"] for t in self.tensors) * 2
        self.whole, self.shards, self.parts = {}, {}, {}
        for t in self.tensors:
            if rank == 0:
                self.whole[t["name"]] = torch.zeros(t["rows"] * t["cols"] * 2, dtype=byte)
            if self.source:  # torch.chunk, padded: gather wants equal sizes
                rows = -(-t["rows"] // self.sources)
                self.shards[t["name"]] = torch.zeros(rows * t["cols"] * 2, dtype=byte)
            else:
                lo, hi = t["parts"][rank - self.sources]
                n = (hi[0] - lo[0]) * (hi[1] - lo[1])
                self.parts[t["name"]] = torch.zeros(n * 2, dtype=byte)
        self.buffer = torch.zeros(max(largest, BUCKET) + (4 << 20), dtype=byte)

    def fill(self, version):
        for t in self.tensors:
            name, rows, cols = t["name"], t["rows"], t["cols"]
            if self.rank == 0:
                self.write(self.whole[name], name, version, 0, rows * cols)
            if self.source:
                per = -(-rows // self.sources)
                lo, hi = min(rows, self.rank * per), min(rows, (self.rank + 1) * per)
                self.write(self.shards[name], name, version, lo * cols, (hi - lo) * cols)
            else:
                self.parts[name].fill_(0xA5)

    def write(self, out, name, version, first, n):
        flat = out.numpy().view(self.np.uint16)
        for at in range(0, n, 1 << 20):
            k = min(1 << 20, n - at)
            flat[at : at + k] = elements(self.np, name, version, first + at, k)

    def cut(self, t, flat):
        """Copies this rank's part of a whole tensor to its place."""
        lo, hi = t["parts"][self.rank - self.sources]
        flat = flat.view(self.torch.int16).view(t["rows"], t["cols"])
        out = self.parts[t["name"]].view(self.torch.int16).view(hi[0] - lo[0], hi[1] - lo[1])
        out.copy_(flat[lo[0] : hi[0], lo[1] : hi[1]])

    def tensorwise(self, gather):
        for t in self.tensors:
            n = t["rows"] * t["cols"] * 2
            if gather and self.source:
                shard = self.shards[t["name"]]
                whole = self.buffer[: shard.numel() * self.sources]
                pieces = list(whole.chunk(self.sources)) if self.rank == 0 else None
                self.dist.gather(shard, pieces, dst=0, group=self.gatherers)
            elif self.rank == 0:
                whole = self.whole[t["name"]]
            if self.rank == 0:
                self.dist.broadcast(whole[:n], 0, group=self.group)
            elif not self.source:
                self.dist.broadcast(self.buffer[:n], 0, group=self.group)
                self.cut(t, self.buffer[:n])

    def buckets(self):
        if self.source and self.rank > 0:
            return
        at, inside = 0, []
        for i, t in enumerate(self.tensors):
            n = t["rows"] * t["cols"] * 2
            if at > 0 and at + n > BUCKET:
                self.flush(at, inside)
                at, inside = 0, []
            inside.append((t, at, n))
            at += n
        self.flush(at, inside)

    def flush(self, n, inside):
        if self.rank == 0:
            for t, at, size in inside:
                self.buffer[at : at + size].copy_(self.whole[t["name"]])
        self.dist.broadcast(self.buffer[:n], 0, group=self.group)
        if not self.source:
            for t, at, size in inside:
                self.cut(t, self.buffer[at : at + size])

    def wrong(self, version):
        if self.source:
            return 0
        n = 0
        for t in self.tensors:
            lo, hi = t["parts"][self.rank - self.sources]
            got = self.parts[t["name"]].numpy().view(self.np.uint16).reshape(hi[0] - lo[0], hi[1] - lo[1])
            step = max(1, (1 << 20) // t["cols"])
            for r in range(lo[0], hi[0], step):
                end = min(hi[0], r + step)
                want = elements(self.np, t["name"], version, r * t["cols"], (end - r) * t["cols"]).reshape(end - r, t["cols"])
                a, b = got[r - lo[0] : end - lo[0]].ravel(), want[:, lo[1] : hi[1]].ravel()
                n += int((a.view(self.np.uint8) != self.np.ascontiguousarray(b).view(self.np.uint8)).sum())
        return n

    def round(self, way, version):
        self.fill(version)
        self.dist.barrier()
        began = time.monotonic()
        if way == "b":
            self.buckets()
        else:
            self.tensorwise(way == "c")
        ended = time.monotonic()
        self.dist.barrier()
        return began, ended, self.wrong(version)


def serve(work, rank, pipe):
    r = Rank(work, rank)
    pipe.send("ready")
    while True:
        order = pipe.recv()
        if order is None:
            return
        pipe.send(r.round(*order))


def main():
    work = json.loads(sys.stdin.readline())
    pipes, ranks = [], []
    for rank in range(work["sources"] + work["dests"]):
        ours, theirs = multiprocessing.Pipe()
        p = multiprocessing.Process(target=serve, args=(work, rank, theirs), daemon=True)
        p.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(p)
    for p in pipes:
        p.recv()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        for p in pipes:
            p.send((order["way"], order["version"]))
        answers = [p.recv() for p in pipes]
        seconds = max(a[1] for a in answers) - min(a[0] for a in answers)
        print(json.dumps({"seconds": seconds, "wrong": sum(a[2] for a in answers)}), flush=True)
    for p in pipes:
        p.send(None)
    for p in ranks:
        p.join(10)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
