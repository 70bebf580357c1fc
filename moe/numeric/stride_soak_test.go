//go:build soak

package numeric

const stride = 1
