//go:build !amd64 || race || purego

package numeric

// Elsewhere the scalar forms do everything, and under the race detector, which sees what they read and write.

func convertFast(_ []byte, _ Type, _ []byte, _ Type) int { return 0 }

func maxAbsFast(_ []byte, _ Type) (int, float32) { return 0, 0 }

func divFast(_, _ []byte, _ Type, _ float32) int { return 0 }

func mulFast(_, _ []byte, _ Type, _ float32) int { return 0 }

func weighFast(_, _ []byte, _ Type, _ []int, _ []float32) int { return 0 }

func fromSumsFast(_ []byte, _ Type, _ []byte) int { return 0 }

func maxNumberFast(_ []byte, _ Type) (int, float32) { return 0, 0 }
