// Package abi is a test: that what provider/verbs and provider/ofi declare of foreign binary interfaces is what the libraries' own
// headers say. Those packages are built without the headers, so that a difference would show only as memory that is read in
// the wrong place.
//
// Each declaration is looked up by its name: struct abi_X and ABI_X are ibv_X and IBV_X of libibverbs, struct hf_X and HF_X are fi_X or fid_X
// and FI_X of libfabric; library_test.go has the names that do not follow. What is compared, for every name that our headers have:
//
//   - offset and size of each field, also of those inside nested unions; an op table is a structure like others;
//   - the length of a structure: equal where there are arrays of it, at least theirs where we allocate it, at most theirs where the library does;
//   - the value of each constant;
//   - number, size and kind of the parameters and of the result of each function, in tables and by name.
//
// The first three are static assertions that a compiler checks with both headers included; the functions are compared in debugging
// information. A library whose headers are not here is a skip that is counted, and a failure where ABI_REQUIRED is set, as in CI.
//
//	make abi
package abi
