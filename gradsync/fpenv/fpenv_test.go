//go:build amd64 || arm64

package fpenv

import (
	"runtime"
	"testing"

	"github.com/ddpstep/ddpstep/gradsync/fpenv/fptest"
)

func TestSetRepairsTheThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer Set()

	if Set(); Set() {
		t.Fatal("Set changed an environment that it had just put right")
	}
	if err := Check(); err != nil {
		t.Fatal("after Set:", err)
	}
	fptest.Flush()
	if Check() == nil {
		t.Fatal("Check did not see flush-to-zero")
	}
	if !Set() {
		t.Fatal("Set did not report the change")
	}
	if err := Check(); err != nil {
		t.Fatal("after repair:", err)
	}
}
