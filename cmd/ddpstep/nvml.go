package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// What is known of GPUs beyond the CUDA driver comes from the program
// ddpstep-nvml, which lies beside this one: NVML in a process of its own cannot
// take the job down (see its documentation). It is started before MPI_Init,
// since a fork after it is unsafe, and its answer is collected later.

const (
	nvmlProgram = "ddpstep-nvml"
	nvmlVar     = "DDPSTEP_NVML" // another program, to be run with or without a GPU
	nvmlFormat  = "ddpstep-nvml/1"
	nvmlTimeout = 5 * time.Second // from the start of the program
	nvmlLimit   = 1 << 20         // bytes of output at most
)

// nvmlGPU is one GPU of this host. A nil says that NVML does not know.
type nvmlGPU struct {
	Index   int       `json:"index"` // NVML's, not CUDA's ordinal
	UUID    string    `json:"uuid"`
	Name    string    `json:"name"`
	Bus     string    `json:"bus"` // as cuda.Device.Bus
	MIG     *bool     `json:"mig"`
	NVLinks []int     `json:"nvlinks"` // active ones
	Active  *int      `json:"active"`  // their number
	ECC     *nvmlECC  `json:"ecc"`
	Clocks  []string  `json:"throttle"` // what holds them down
	Peers   []nvmlTie `json:"peers"`
}

// nvmlECC counts memory errors since the driver was loaded, and in the life of
// the GPU.
type nvmlECC struct {
	Volatile  nvmlECCCount `json:"volatile"`
	Aggregate nvmlECCCount `json:"aggregate"`
}

type nvmlECCCount struct {
	Corrected   *uint64 `json:"corrected"`
	Uncorrected *uint64 `json:"uncorrected"`
}

// nvmlTie is how a GPU reaches another one of its host.
type nvmlTie struct {
	UUID     string  `json:"uuid"`
	NVLink   *bool   `json:"nvlink"`
	Read     *bool   `json:"read"`
	Topology *string `json:"topology"`
}

// nvmlQuery is a running program, or what came of it.
type nvmlQuery struct {
	ctx  context.Context // ends when the program must
	done chan struct{}   // closed once the fields below are set

	gpus   map[string]nvmlGPU
	driver string
	reason string // why there is nothing, or what is incomplete
}

// startNVML starts the program where there may be a GPU. It must be called
// before MPI_Init, on the main thread, whose end ends the program as well.
func startNVML() *nvmlQuery {
	program, why := findNVML(os.Getenv(nvmlVar), "/dev/nvidiactl", "/proc/driver/nvidia")
	if program == "" {
		return noNVML(why)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), nvmlTimeout, fmt.Errorf("no answer within %v", nvmlTimeout))
	return queryNVML(ctx, cancel, program)
}

// noNVML is a query that is over.
func noNVML(reason string) *nvmlQuery {
	q := &nvmlQuery{ctx: context.Background(), done: make(chan struct{}), reason: reason}
	close(q.done)
	return q
}

// findNVML returns the program to run: the one named, or the one beside this
// executable if one of the files that the NVIDIA driver makes is there.
func findNVML(named string, signs ...string) (program, why string) {
	if named != "" {
		// Absolute, so that it is not looked for in PATH.
		path, err := filepath.Abs(named)
		if err != nil {
			return "", fmt.Sprintf("%s=%s: %v", nvmlVar, named, err)
		}
		return path, ""
	}
	there := func(path string) bool { _, err := os.Stat(path); return err == nil }
	if !slices.ContainsFunc(signs, there) {
		return "", "no NVIDIA driver on this host: neither of " + strings.Join(signs, ", ")
	}
	self, err := os.Executable()
	if err != nil {
		return "", err.Error()
	}
	program = filepath.Join(filepath.Dir(self), nvmlProgram)
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Sprintf("no program %s: install it beside ddpstep to have NVLinks and ECC counts in the report", program)
	}
	return program, ""
}

// queryNVML runs a program until ctx ends; cancel frees ctx.
func queryNVML(ctx context.Context, cancel context.CancelFunc, program string) *nvmlQuery {
	q := &nvmlQuery{ctx: ctx, done: make(chan struct{})}
	stdout := limited{left: nvmlLimit, over: cancel}
	stderr := limited{left: 4 << 10, over: func() {}}
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// go-nvml needs lazy binding. Everything else stays: LD_LIBRARY_PATH may
	// say where NVML is.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_BIND_NOW=") })
	// Its own process group, so that it can be ended with all that it started;
	// a launcher which ends this process's group would miss it, hence Pdeathsig.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	end := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = end
	cmd.WaitDelay = time.Second // for a child of the program that keeps the pipe open
	if err := cmd.Start(); err != nil {
		cancel()
		return noNVML(oneLine(err))
	}
	go func() {
		defer close(q.done)
		defer cancel()
		err := cmd.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			end() // that child is still there, and with it the group
		}
		q.conclude(program, err, &stdout, &stderr)
	}()
	return q
}

// conclude makes the result out of how the program ended.
func (q *nvmlQuery) conclude(program string, err error, stdout, stderr *limited) {
	cause := context.Cause(q.ctx)
	if stdout.full {
		err = fmt.Errorf("wrote more than %d bytes", nvmlLimit)
	} else if err != nil && cause != nil {
		err = cause
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if line := firstLine(stderr.text); line != "" {
			q.reason = fmt.Sprintf("%s: %v: %s", program, exit, line)
			return
		}
	}
	if err == nil {
		q.gpus, q.driver, q.reason, err = parseNVML(stdout.text)
	}
	if err != nil {
		q.gpus, q.driver, q.reason = nil, "", oneLine(fmt.Errorf("%s: %w", program, err))
	}
}

// wait returns what NVML says: the GPUs of this host by UUID, and the driver's
// version. Without NVML the map is nil and reason says why; with it, reason is
// empty or says what it could not tell. It returns before the program's time is
// over, and soon after that even if the program cannot be killed.
func (q *nvmlQuery) wait() (gpus map[string]nvmlGPU, driver, reason string) {
	select {
	case <-q.done:
	case <-q.ctx.Done():
		select {
		case <-q.done:
		case <-time.After(2 * time.Second): // stuck in the kernel, with the GPU's driver
			return nil, "", fmt.Sprintf("%s: %v, and it cannot be killed", nvmlProgram, context.Cause(q.ctx))
		}
	}
	return q.gpus, q.driver, q.reason
}

// parseNVML reads the program's answer. The notes in it become the reason.
func parseNVML(text []byte) (gpus map[string]nvmlGPU, driver, reason string, err error) {
	var a struct {
		Format string    `json:"format"`
		Driver string    `json:"driver"`
		GPUs   []nvmlGPU `json:"gpus"`
		Notes  []string  `json:"notes"`
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, "", "", fmt.Errorf("answered no JSON of ours: %w", err)
	}
	if a.Format != nvmlFormat {
		return nil, "", "", fmt.Errorf("answered in format %q, not %q: install the one that came with this ddpstep", clean(a.Format), nvmlFormat)
	}
	gpus = make(map[string]nvmlGPU, len(a.GPUs))
	for _, g := range a.GPUs {
		if _, twice := gpus[g.UUID]; g.UUID == "" || twice {
			return nil, "", "", fmt.Errorf("answered with the UUID %q twice, or with none", clean(g.UUID))
		}
		gpus[g.UUID] = g
	}
	return gpus, clean(a.Driver), clean(strings.Join(a.Notes, "; ")), nil
}

// clean makes a foreign text fit for one line of a report.
func clean(s string) string {
	const most = 300
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if r := []rune(s); len(r) > most {
		s = string(r[:most])
	}
	return strings.TrimSpace(s)
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return clean(string(line))
}

// limited keeps the first bytes written to it and calls over at the first that
// is too much.
type limited struct {
	text []byte
	left int
	over func()
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.text, l.left = append(l.text, p[:n]...), l.left-n
	if n < len(p) && !l.full {
		l.full = true
		l.over()
	}
	return len(p), nil
}
