# Needs make and Go 1.26. What else a target needs it gets itself: pinned Go tools by the go command; iproute2 (for the test of two
# hosts) and gcc (for the race detector) by apt when root.

GO        ?= go
BIN       := bin
REVISION  := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
LDFLAGS   := -X main.revision=$(REVISION)
TOOL      := $(GO) tool -modfile=tools/go.mod
TESTSUM   := $(GO) run ./internal/testsum
# Many tests wait for most of their time: a package more than there are processors, and in each four of those that need not be alone.
TESTFLAGS ?= -shuffle=on -timeout=5m -p=$(shell expr $$(nproc) + 1) -parallel=4
CGO       := $(if $(filter-out 0,$(STATIC)),0,$(shell GO=$(GO) sh .ci/cgo))
FUZZTIME  ?= 10s
SOAKTIME  ?= 10m
SHORT     ?= -short
SIMRUNS   ?= 100000
SIMTIME   ?= 4m
SIMBASE   ?= 0
MUTATETIME ?= 60s
WEIGHTSTATES ?= 1000000
MODELMINUTES ?= 0

.PHONY: all build demo test test-verbs vmtest shared race invariants processes sim model soak siege fuzz bench lint fmt nightly golangci-lint clean versus instructions abi kvsim kvmutate weightmutate weightmodel moemutate
all: build

# With a C compiler the binary can load the libraries of RDMA networks, and needs glibc. Without one, and with STATIC=1, it is static:
# it runs on any linux, whatever its libc, without those networks. Both look names of hosts and users up in the same way, Go's own.
build:
	CGO_ENABLED=$(CGO) $(GO) build -trimpath -tags netgo,osusergo -ldflags '$(LDFLAGS)' -o $(BIN)/hawser ./cmd/hawser

# KV caches between four processes, over shared memory and over TCP, weights between six, and 10,000 steps of an MoE layer; every byte checked.
demo: build
	$(BIN)/hawser demo

test:
	@sh .ci/need ip iproute2
	@sh .ci/need fi_info libfabric-bin
	$(TESTSUM) -name test -- $(TESTFLAGS) ./...

# The contract over one endpoint of libfabric's tcp for everything, as a NIC has it.
shared:
	@sh .ci/need fi_info libfabric-bin
	$(TESTSUM) -name shared -- -run '^TestContractShared$$' -count=1 -timeout=4m ./provider/ofi -shared

# The verbs provider and engines over it, in virtual machines with soft-RoCE devices (installs qemu by apt when root).
test-verbs:
	@bash .ci/verbs

# The runner of these machines, for one package: go test -tags vm -exec "$PWD/.cache/vmtest exec" ./internal/roce.
vmtest:
	CGO_ENABLED=0 $(GO) build -o .cache/vmtest ./internal/vmtest

# SHORT=: also what takes minutes under the detector.
race:
	@sh .ci/race $(TESTFLAGS) -vet=off -timeout=10m $(SHORT)

# The tests with the checks of internal/invariants compiled in: of the packages that link it. SHORT=: all of them.
invariants:
	$(TESTSUM) -name invariants -- $(TESTFLAGS) -vet=off -tags invariants $(SHORT) \
		$$($(GO) list -test -f '{{.ImportPath}} {{join .Deps " "}}' ./... | sed -n 's/\.test .*\/internal\/invariants.*//p')

# Real processes that are killed and stopped under load; minutes, so not part of test.
processes:
	$(TESTSUM) -name processes -- -tags processes -run '^TestProcesses' -count=1 -timeout=10m ./cmd/hawser

# What the providers in C declare of libibverbs and libfabric, against the headers of both (internal/abi).
abi:
	@sh .ci/need gcc gcc
	@sh .ci/need /usr/include/infiniband/verbs.h libibverbs-dev
	@sh .ci/need /usr/include/rdma/fabric.h libfabric-dev
	@ABI_LIBFABRIC2=$$(sh .ci/headers) && export ABI_LIBFABRIC2 && $(TESTSUM) -name abi -- -tags abi -count=1 -timeout=2m ./internal/abi

# Random schedules of faults for the groups of two or three engines on simulated NICs: SIMRUNS of them, or as many as SIMTIME allows.
sim:
	$(TESTSUM) -name sim -live 'adversary: ' -- -run '^TestAdversary$$' -count=1 -timeout=0 ./internal/rail -sim.runs=$(SIMRUNS) -sim.time=$(SIMTIME)

# Random scenarios of the protocol of package kv on a model of everything below it: SIMRUNS of them, or as many as SIMTIME allows.
# SIMBASE: the first seed, so that the same ones are tried again; 0: other ones each time.
kvsim:
	$(TESTSUM) -name kvsim -live 'kvsim: ' -- -run '^(TestSeeds|TestSimulator)$$' -count=1 -timeout=0 ./kv/kvtest -kvsim.runs=$(SIMRUNS) -kvsim.time=$(SIMTIME) -kvsim.base=$(SIMBASE) -kvsim.cover

# The same without one guard of the protocol after the other: each time some scenario must fail within MUTATETIME, and the guard's own
# test at once.
kvmutate:
	$(TESTSUM) -name kvguards -- -tags kvmutate -run 'GuardsAreNeeded$$' -count=1 ./kv/proto
	$(TESTSUM) -name kvmutate -live 'kvmutate: ' -- -tags kvmutate -run '^TestMutations$$' -count=1 -timeout=0 ./kv/kvtest -kvsim.mutate=$(MUTATETIME)

# The protocol of package weights (weights/proto): random schedules of faults, and without one guard after the other, when some schedule,
# or the guard's own test, must fail. weightmodel: every order of events in small worlds, WEIGHTSTATES of each; 0: all of them.
weightmutate:
	$(TESTSUM) -name weightguards -- -tags weightmutate -run '^(TestGuardsAreNeeded|TestMutations)$$' -count=1 -timeout=10m ./weights/proto

weightmodel:
	$(TESTSUM) -name weightmodel -- -run '^(TestProtocolModel|TestProtocolRandom)$$' -count=1 -timeout=0 ./weights/proto -weights.states=$(WEIGHTSTATES) -weights.runs=$(SIMRUNS)

# The protocol of dispatch and combine (moe/proto) without one guard after the other: the search of its states must notice each time, and
# so must the fabric that watches memory (moe/moetest).
moemutate:
	$(TESTSUM) -name moemutate -- -tags moemutate -run '^TestMutations$$' -count=1 -timeout=10m ./moe/proto ./moe/moetest

# The protocol of kv in the model checker spin (kv/model): every state of two attempts, and that each guard is needed. MODELMINUTES:
# also as long for each of the models that are too large to be searched whole.
model:
	@sh .ci/need spin spin
	@sh .ci/need gcc gcc
	$(TESTSUM) -name model -live 'model: ' -- -count=1 -timeout=0 -parallel=1 ./kv/model -model.attempts=2 -model.minutes=$(MODELMINUTES)

# Whole engines in four processes on two hosts, which are killed, stopped and cut off at random (internal/soak). SOAKFLAGS=-race,
# SOAKARGS="-soak.seed N".
soak:
	@sh .ci/need ip iproute2
	$(TESTSUM) -name soak -live 'soak: ' -- -tags soak $(SOAKFLAGS) -run '^TestSoak' -count=1 -timeout=0 ./internal/soak -soak.time=$(SOAKTIME) $(SOAKARGS)

# What attacks over TCP cost a friend of the attacked engine, beside what burning as much processor time costs it.
siege:
	$(GO) test -run '^$$' -bench Siege -benchtime 7x .

fuzz:
	@bash .ci/fuzz $(FUZZTIME)

bench: build
	$(GO) test -run '^$$' -bench . -benchmem ./...
	$(BIN)/hawser bench pages --provider shm --cold
	$(BIN)/hawser bench pages --provider tcp --cold

# Hawser beside what else moves bytes (bench/peers), which is installed into a temporary folder: gcc, python3 and a network are needed,
# and a quiet machine. VERSUSARGS="--path shm --keep DIR".
versus: build
	$(BIN)/hawser bench versus $(VERSUSARGS)

# Instructions an operation takes, against those in testdata/instructions.txt; UPDATE=1 records them. The binary keeps its symbols.
instructions:
	@sh .ci/need valgrind valgrind
	@mkdir -p .cache
	CGO_ENABLED=0 $(TESTSUM) -name instructions -live 'instructions: ' -- -tags instructions -run '^TestInstructions$$' -count=1 -timeout=5m \
		-ldflags=-w -o .cache/instructions.test . $(if $(UPDATE),-instructions.update)

lint:
	@bash .ci/lint

fmt:
	find . -name '*.go' -not -path './.*' -print0 | xargs -0 $(TOOL) gofumpt -w

# What is too slow for every change.
nightly: build lint test processes soak
	$(MAKE) race invariants SHORT=
	LONG=5m LIMIT=40m MEMORY=8192 bash .ci/verbs
	$(MAKE) sim SIMRUNS=1000000 SIMTIME=1h
	$(MAKE) kvsim SIMRUNS=1000000 SIMTIME=1h
	$(MAKE) kvmutate
	$(MAKE) weightmutate
	$(MAKE) weightmodel SIMRUNS=200000
	$(MAKE) moemutate
	$(GO) test ./moe/proto -count=1 -timeout=0 -moe.states 1000000 -moe.walks 5000
	$(GO) test ./moe/moetest -count=1 -timeout=0 -moetest.all
	$(GO) test ./cmd/hawser -run '^TestMoeKilled$$' -count=1 -timeout=0 -moe.strikes 20
	$(GO) test ./weights/weightsim -run TestPaperScale -count=1 -timeout=0 -full
	$(MAKE) model MODELMINUTES=5
	$(MAKE) fuzz FUZZTIME=5m
	$(BIN)/hawser kv replay --prefillers 3 --decoders 2 --speed 4 --cancel 5% --kill-prefiller 10s --stop-prefiller 20s --provider shm --requests 12031
	$(BIN)/hawser kv replay --prefillers 2 --decoders 2 --speed 4 --cancel 5% --provider tcp --requests 2000
	@bash .ci/vulncheck

# A cold build takes 25 minutes on two cores; "make lint" uses the binary when it is there.
golangci-lint: .cache/golangci-lint
.cache/golangci-lint: tools/go.mod
	$(GO) build -modfile=tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

clean:
	rm -rf $(BIN) .cache
