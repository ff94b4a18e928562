package cuda_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/gpudouble"
	"github.com/ddpstep/ddpstep/kernels/cuda"
)

const handleVar = "DDPSTEP_TEST_HANDLE"

var roles = map[string]func() error{"ipc": ipcRole, "name": nameRole}

// ipcRole opens the parent's buffer, and adds one to its second element by way of a kernel.
func ipcRole() error {
	l, err := gpudouble.Find()
	if err != nil {
		return err
	}
	d, err := cuda.Open(l.CUDA)
	if err != nil {
		return err
	}
	if err := d.Init(); err != nil {
		return err
	}
	dev, err := d.Device(0)
	if err != nil {
		return err
	}
	c, err := dev.Attach()
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := hex.DecodeString(os.Getenv(handleVar))
	if err != nil {
		return err
	}
	b, err := c.OpenIPC(cuda.IPCHandle(raw), cuda.Uint32, 4)
	if err != nil {
		return err
	}
	if _, err := b.IPC(); !errors.Is(err, cuda.ErrContext) {
		return fmt.Errorf("a handle of another process's memory: %v", err)
	}
	m, err := c.LoadPTX(probePTX)
	if err != nil {
		return err
	}
	f, err := m.Function("probe_count")
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	second, err := b.Slice(1, 2)
	if err != nil {
		return err
	}
	args := cuda.NewArgs(8)
	if err := args.Buffer(0, second); err != nil {
		return err
	}
	if err := s.Launch(f, 1, 1, 0, args); err != nil {
		return err
	}
	if err := cuda.WaitFor(s.Done, time.Now().Add(30*time.Second), nil); err != nil {
		return err
	}
	return b.Free()
}

func TestIPC(t *testing.T) {
	c := attach(t)
	s := ok[*cuda.Stream](t)(c.NewStream())
	b := ok[cuda.Buffer](t)(c.Alloc(cuda.Uint32, 4))
	must(t, s.Fill(b, 1))
	drain(t, s)
	h := ok[cuda.IPCHandle](t)(b.IPC())
	if _, err := c.OpenIPC(h, cuda.Uint32, 4); err == nil {
		t.Error("a process opened its own handle")
	}
	for range 2 { // one peer after the other
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), role+"=ipc", handleVar+"="+hex.EncodeToString(h[:]))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	out := ok[*cuda.HostMem](t)(c.AllocHost(16))
	must(t, s.CopyOut(out, 0, b))
	drain(t, s)
	for i, want := range []uint32{0x01010101, 0x01010103, 0x01010101, 0x01010101} {
		if got := atomic.LoadUint32(out.Word(i)); got != want {
			t.Errorf("element %d is %#x, want %#x", i, got, want)
		}
	}
	must(t, b.Free())
	if _, err := b.IPC(); !errors.Is(err, cuda.ErrFreed) {
		t.Errorf("a handle of freed memory: %v", err)
	}
}

// What a fault says, seen from outside: each is a process of its own, since the double reads its orders once.
func TestDriverFaults(t *testing.T) {
	if gpudouble.Need(t).Real {
		t.Skip("needs the double")
	}
	for _, tt := range []struct{ name, env, want string }{
		{"no device", "DDPSTEP_DOUBLE_DEVICES=0", "cuInit: CUDA_ERROR_NO_DEVICE (100)"},
		{"none visible", "CUDA_VISIBLE_DEVICES=", "cuInit: CUDA_ERROR_NO_DEVICE (100)"},
		{"code", "DDPSTEP_DOUBLE_FAULT=call=cuDeviceGetPCIBusId,nth=1,do=code:999", "cuDeviceGetPCIBusId: unknown error (999)"},
		{"other rank's", "DDPSTEP_DOUBLE_FAULT=rank=3,call=cuDeviceGetPCIBusId,do=code:999", "cuIpcOpenMemHandle_v2"},
		{"this rank's", "DDPSTEP_DOUBLE_RANK=3 DDPSTEP_DOUBLE_FAULT=rank=3,call=cuDevicePrimaryCtxRetain,do=oom", "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)"},
		{"exit", "DDPSTEP_DOUBLE_FAULT=call=cuInit,do=exit:9", "exit status 9"},
		{"kill", "DDPSTEP_DOUBLE_FAULT=call=cuDeviceGetName,do=kill", "signal: killed"},
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), role+"=ipc", handleVar+"="+strings.Repeat("00", 64))
		cmd.Env = append(cmd.Env, strings.Fields(tt.env)...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out)+err.Error(), tt.want) {
			t.Errorf("%s: %v, %s, want %q", tt.name, err, out, tt.want)
		}
	}
}
