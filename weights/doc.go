// Package weights pushes freshly trained weights from every training rank straight into the memory of the inference ranks.
package weights
