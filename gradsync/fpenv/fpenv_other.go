//go:build !amd64 && !arm64

package fpenv

func set() bool { return false }
