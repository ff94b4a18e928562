module github.com/ddpstep/ddpstep

go 1.25.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/google/renameio/v2 v2.0.2
	gonum.org/v1/gonum v0.17.0
)
