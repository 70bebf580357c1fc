// Package verbs is the network of RDMA cards: reliable connections over libibverbs, on RoCE v2, InfiniBand and soft-RoCE.
package verbs
