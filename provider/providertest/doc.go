// Package providertest is the contract of package provider as tests. A provider's own test file calls [Run]:
//
//	package shm_test
//
//	func TestContract(t *testing.T) {
//		providertest.Run(t, providertest.Factory{
//			Memory: mem.Shared,
//			Network: func(t *testing.T) providertest.Network {
//				p := shm.New()
//				return providertest.Network{
//					Provider: func(host string) provider.Provider { return p },
//				}
//			},
//			Except: map[string]string{
//				"GrantIsEnforcedToItsRange": "the writer maps whole memory",
//			},
//		})
//	}
//
// Every property is a subtest whose name is a row of the table in properties.go. What a network cannot give is a row of
// Factory.Except: the property is skipped with that reason. What it does not promise (Caps, [provider.Revoker]) is skipped by the
// property itself. The log ends with a table of both and their counts. A row that names no property fails the run. One
// property alone:
//
//	go test -v -run 'TestContract/Property/FenceStopsTheWriter' -providertest.seed=7
//
// # How the tests drive a provider
//
// Most properties are tested by one goroutine that owns all domains, which share one Bell: it polls all of them in turn
// and, when nothing moves, arms them and parks for at most a millisecond. The harness checks every completion on its way:
// tokens come back once, with the peer and the kind of their WR, and nothing follows KindPeerDown. The wake-up
// properties use one goroutine and one Bell per domain, and park for seconds, so that a lost wake is seen.
//
// The properties whose names end in Process start the test binary a second time (with the same top-level test selected,
// and an environment variable by which Run knows that it is the child), kill or stop it, and look at what the parent sees.
// Run must therefore be reached by that test alone, before anything that cannot run twice at once. StoppedInsideACopy needs
// Factory.MidCopy, a hook into a provider whose writers copy.
//
// # Decorators
//
// Faults are decorators over provider.Domain, to be put under an engine or under Run by [Decorate]: [Faulty] fails requests that it
// is told to, [Slow] delivers completions late, [Reordering] late and in another order, [EFA] enforces the limits and modes of an
// Elastic Fabric Adapter, [Logged] writes down each call.
//
// Random choices come from a seed that is logged; -providertest.seed repeats it.
package providertest
