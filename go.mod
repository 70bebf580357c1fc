module github.com/hawser-project/hawser

go 1.26

require golang.org/x/sys v0.43.0 // indirect
