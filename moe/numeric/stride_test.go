//go:build !soak

package numeric

// stride is prime, so that all low bits occur.
const stride = 10007
