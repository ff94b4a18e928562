package cuda_test

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

//go:embed testdata/probe.ptx
var probePTX []byte

// A test of several processes starts this program again with role set.
const role = "DDPSTEP_TEST_ROLE"

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if r := os.Getenv(role); r != "" {
		runtime.LockOSThread()
		if err := roles[r](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// prepare gives the double its kernels. Without a compiler the tests skip by themselves.
func prepare() error {
	l, err := gpudouble.Find()
	if err != nil || l.Real || os.Getenv("DDPSTEP_DOUBLE_KERNELS") != "" {
		return nil
	}
	so, err := gpudouble.Kernels("testdata/probe.cu")
	if err != nil {
		return err
	}
	return os.Setenv("DDPSTEP_DOUBLE_KERNELS", so)
}

// open returns an initialised driver, or skips: hardware tests need a GPU, the others a C++ compiler.
func open(t *testing.T) *cuda.Driver {
	t.Helper()
	l := gpudouble.Need(t)
	d, err := cuda.Open(l.CUDA)
	if err == nil {
		err = d.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// attach returns a context of the first device, closed at the end of the test.
func attach(t *testing.T) *cuda.Context {
	t.Helper()
	return attachTo(t, open(t), 0)
}

func attachTo(t *testing.T, d *cuda.Driver, ordinal int) *cuda.Context {
	t.Helper()
	dev, err := d.Device(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Attach()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, cuda.ErrFreed) {
			t.Error(err)
		}
	})
	return c
}

// must fails the test when a call failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ok is must for calls that also return something.
func ok[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// drain waits for the stream with a deadline that only a hang exceeds.
func drain(t *testing.T, s *cuda.Stream) {
	t.Helper()
	must(t, cuda.WaitFor(s.Done, time.Now().Add(30*time.Second), nil))
}
