package ofi
