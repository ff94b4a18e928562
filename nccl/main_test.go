package nccl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
	"github.com/ddpstep/ddpstep/nccl"
)

// A test of several ranks starts this program once a rank, with these set.
const (
	roleVar  = "DDPSTEP_TEST_ROLE"
	rankVar  = "DDPSTEP_TEST_RANK"
	worldVar = "DDPSTEP_TEST_WORLD"
	dirVar   = "DDPSTEP_TEST_DIR" // a folder that all ranks see

	timeoutVar = "DDPSTEP_TEST_TIMEOUT_MS" // a communicator's timeout; without it, one that nothing reaches
)

// A role is what one rank does, before its communicator exists.
type role func(r *rank) error

var roles = map[string]role{
	"collectives": collectivesRole, "order": orderRole, "exchange": exchangeRole, "flags": flagsRole, "graph": graphRole,
	"steps": stepsRole, "init": func(r *rank) error { return r.join() }, "absent": func(*rank) error { return nil },
	"same": sameRole, "silent": silentRole, "aborter": aborterRole, "group": groupRole,
}

// rank is one process of a test world.
type rank struct {
	rank, world int
	dir         string
	timeout     time.Duration
	real        bool
	lib         *nccl.Library
	ctx         *cuda.Context
	comm        *nccl.Comm
	stream      *cuda.Stream
}

func TestMain(m *testing.M) {
	name := os.Getenv(roleVar)
	if name == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	r := &rank{dir: os.Getenv(dirVar), timeout: 60 * time.Second}
	r.rank, _ = strconv.Atoi(os.Getenv(rankVar))
	r.world, _ = strconv.Atoi(os.Getenv(worldVar))
	if ms, err := strconv.Atoi(os.Getenv(timeoutVar)); err == nil {
		r.timeout = time.Duration(ms) * time.Millisecond
	}
	err := r.open(r.rank)
	if err == nil {
		err = roles[name](r)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// open loads both libraries and attaches to a device.
func (r *rank) open(ordinal int) error {
	l, err := gpudouble.Find()
	if err != nil {
		return err
	}
	r.real = l.Real
	d, err := cuda.Open(l.CUDA)
	if err != nil {
		return err
	}
	if err := d.Init(); err != nil {
		return err
	}
	if r.lib, err = nccl.Open(l.NCCL); err != nil {
		return err
	}
	dev, err := d.Device(ordinal)
	if err != nil {
		return err
	}
	if r.ctx, err = dev.Attach(); err != nil {
		return err
	}
	r.stream, err = r.ctx.NewStream()
	return err
}

// join makes the communicator; rank 0's ID travels in a file.
func (r *rank) join() (err error) {
	path := filepath.Join(r.dir, "id")
	var id nccl.ID
	if r.rank == 0 {
		if id, err = r.lib.UniqueID(); err != nil {
			return err
		}
		if err := os.WriteFile(path+".new", id[:], 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	for {
		b, err := os.ReadFile(path)
		if err == nil {
			id = nccl.ID(b)
			break
		}
		time.Sleep(time.Millisecond)
	}
	r.comm, err = r.lib.Init(r.ctx, id, r.rank, r.world, nccl.Config{
		Timeout: r.timeout, Grace: 2 * time.Second, Direct: os.Getenv("DDPSTEP_TEST_DIRECT") != "",
	})
	return err
}

// wait waits for all that is queued on the rank's stream.
func (r *rank) wait() error {
	e, err := r.ctx.NewEvent(false)
	if err != nil {
		return err
	}
	if err := e.Record(r.stream); err != nil {
		return err
	}
	return r.comm.Wait(e)
}

// upload makes a device buffer of these bytes.
func (r *rank) upload(t cuda.DType, b []byte) (cuda.Buffer, error) {
	d, err := r.ctx.Alloc(t, len(b)/t.Size())
	if err != nil {
		return d, err
	}
	h, err := r.ctx.AllocHost(len(b))
	if err != nil {
		return d, err
	}
	copy(h.Bytes(), b)
	if err := r.stream.CopyIn(d, h, 0); err != nil {
		return d, err
	}
	if err := cuda.WaitFor(r.stream.Done, time.Now().Add(r.timeout), nil); err != nil {
		return d, err
	}
	return d, h.Free()
}

// download waits for the stream and returns a buffer's bytes.
func (r *rank) download(d cuda.Buffer) ([]byte, error) {
	h, err := r.ctx.AllocHost(d.Bytes())
	if err != nil {
		return nil, err
	}
	if err := r.stream.CopyOut(h, 0, d); err != nil {
		return nil, err
	}
	if err := r.wait(); err != nil {
		return nil, err
	}
	b := bytes.Clone(h.Bytes())
	return b, h.Free()
}

// A result is how one rank ended.
type result struct {
	out string
	err error // nil for exit code 0
}

// launch runs a world of n ranks and returns how each ended, and the double's log. Rank i plays names[i], the last name
// standing for all further ranks. No rank may outlive limit.
func launch(t *testing.T, n int, env string, names ...string) (results []result, log string) {
	t.Helper()
	l := gpudouble.Need(t)
	if l.Real {
		needGPUs(t, l, n)
	}
	limit := 60 * time.Second
	if strings.Contains(env, timeoutVar) {
		limit = 12 * time.Second // a deadline of less than a second, the grace period, and time to spare
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dir := t.TempDir()
	results = make([]result, n)
	var wg sync.WaitGroup
	for i := range n {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), roleVar+"="+names[min(i, len(names)-1)], rankVar+"="+strconv.Itoa(i), worldVar+"="+strconv.Itoa(n),
			dirVar+"="+dir, "DDPSTEP_DOUBLE_RANK="+strconv.Itoa(i), "DDPSTEP_DOUBLE_DEVICES="+strconv.Itoa(n), "DDPSTEP_DOUBLE_LOG="+filepath.Join(dir, "log"))
		cmd.Env = append(cmd.Env, strings.Fields(env)...)
		wg.Go(func() {
			out, err := cmd.CombinedOutput()
			results[i] = result{string(out), err}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Errorf("a rank was still there after %v", limit)
	}
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return results, string(b)
}

func needGPUs(t *testing.T, l gpudouble.Libraries, n int) {
	t.Helper()
	d, err := cuda.Open(l.CUDA)
	if err == nil {
		err = d.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	if have, err := d.Count(); err != nil || have < n {
		t.Skipf("needs %d GPUs, there are %d (%v)", n, have, err)
	}
}

// passes runs a world that must end well on every rank, and in order.
func passes(t *testing.T, n int, env string, names ...string) {
	t.Helper()
	results, log := launch(t, n, env, names...)
	for i, r := range results {
		if r.err != nil {
			t.Errorf("rank %d: %v\n%s", i, r.err, r.out)
		}
	}
	clean(t, log)
}

// clean looks in the double's log for what NCCL would have crashed on.
func clean(t *testing.T, log string) {
	t.Helper()
	for _, bad := range []string{"use after free", "race", "guard"} {
		if strings.Contains(log, bad) {
			t.Errorf("the double saw %q:\n%s", bad, log)
		}
	}
}

// alone returns a world of one rank in this process.
func alone(t *testing.T) *rank {
	t.Helper()
	gpudouble.Need(t)
	r := &rank{world: 1, dir: t.TempDir(), timeout: 30 * time.Second}
	if err := r.open(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.join(); err != nil {
		t.Fatal(err)
	}
	return r
}
