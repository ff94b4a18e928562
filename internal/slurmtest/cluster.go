//go:build linux

package slurmtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ddpstep/ddpstep/internal/required"
)

// Cluster is a running private Slurm, with nodes n1, n2 and so on, in one
// partition. Its methods may be called from several tests at once.
type Cluster struct {
	dir     string
	keeper  *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Reader
}

// Start starts a cluster of so many nodes and has it stopped, and its folder
// removed, when the test ends. It skips the test where Slurm cannot be started,
// or fails it if DDPSTEP_REQUIRE lists slurm.
func Start(t testing.TB, nodes int) *Cluster {
	t.Helper()
	if missing := requirements(); missing != "" {
		required.Skip(t, "slurm", "a private Slurm needs "+missing)
	}
	c, err := start(nodes)
	if err != nil {
		t.Fatalf("private Slurm: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t, nodes)
		}
		if err := c.stop(); err != nil {
			t.Errorf("private Slurm: %v", err)
		}
	})
	return c
}

// describe logs what helps to find out why a test failed.
func (c *Cluster) describe(t testing.TB, nodes int) {
	t.Logf("jobs that ended, as Slurm's accounting has them:\n%s", tail(filepath.Join(c.dir, "jobcomp.log"), 40))
	t.Logf("processes: %v", descendants(c.keeper.Process.Pid))
	t.Logf("end of slurmctld's log:\n%s", tail(filepath.Join(c.dir, "log", "slurmctld.log"), 40))
	for n := range nodes {
		name := fmt.Sprintf("n%d", n+1)
		t.Logf("end of %s's log:\n%s", name, tail(filepath.Join(c.dir, "log", name+".log"), 20))
	}
}

// requirements says what this machine lacks, or nothing.
func requirements() string {
	if os.Geteuid() != 0 {
		return "root: slurmd starts tasks as the user of the job"
	}
	var missing []string
	for _, program := range []string{"munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel"} {
		_, err := exec.LookPath(program)
		if _, sbin := exec.LookPath("/usr/sbin/" + program); err != nil && sbin != nil {
			missing = append(missing, program)
		}
	}
	if missing != nil {
		return fmt.Sprintf("%s: apt-get install slurm-wlm munge", strings.Join(missing, ", "))
	}
	return ""
}

func start(nodes int) (c *Cluster, err error) {
	// Short, because munge's socket lies below it and a socket's path is
	// limited to 107 bytes; and not the test's own folder, because the keeper
	// must remove it even when the test cannot.
	dir, err := os.MkdirTemp("", "slurm")
	if err != nil {
		return nil, err
	}
	c = &Cluster{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()

	ports, err := freePorts(nodes + 1)
	if err != nil {
		return c, err
	}
	host, err := os.Hostname()
	if err != nil {
		return c, err
	}
	if err := configure(dir, host, ports); err != nil {
		return c, err
	}
	if err := c.startKeeper(); err != nil {
		return c, err
	}

	run := filepath.Join(dir, "run")
	socket := filepath.Join(run, "munge.socket")
	conf := filepath.Join(dir, "slurm.conf")
	if err := c.launch("munged", "munged", "--foreground", "--force",
		"--key-file="+filepath.Join(dir, "munge.key"), "--socket="+socket,
		"--pid-file="+filepath.Join(run, "munged.pid"), "--seed-file="+filepath.Join(run, "munged.seed"),
		"--num-threads=2"); err != nil {
		return c, err
	}
	if err := c.await("munged", func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		return c, err
	}
	if err := c.launch("slurmctld", "slurmctld", "-D", "-f", conf); err != nil {
		return c, err
	}
	for n := range nodes {
		node := fmt.Sprintf("n%d", n+1)
		if err := c.launch(node, "slurmd", "-D", "-N", node, "-f", conf); err != nil {
			return c, err
		}
	}
	return c, c.await("slurmctld", func() bool {
		out, _ := c.Command("scontrol", "-o", "show", "nodes").Output()
		return strings.Count(string(out), " State=IDLE ") == nodes
	})
}

// startKeeper starts this test binary again as the keeper of the folder.
func (c *Cluster) startKeeper() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(c.dir, "log", "keeper.out"))
	if err != nil {
		return err
	}
	defer log.Close()
	k := exec.Command(self)
	k.Env = append(c.Env(), keeperDir+"="+c.dir)
	// Of its own session, so that a signal to the test's process group does
	// not reach it; and not with the test's output, which `go test` waits for.
	k.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	k.Stderr = log
	orders, err := k.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := k.StdoutPipe()
	if err != nil {
		return err
	}
	if err := k.Start(); err != nil {
		return err
	}
	c.keeper, c.orders, c.answers = k, orders, bufio.NewReader(answers)
	return nil
}

// launch has the keeper start a daemon.
func (c *Cluster) launch(name string, args ...string) error {
	line, err := json.Marshal(order{Name: name, Args: args, Env: c.Env()})
	if err != nil {
		return err
	}
	if _, err := c.orders.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	answer, err := c.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return fmt.Errorf("cannot start %s: %s", name, answer)
	}
	return nil
}

// await polls until ready, or says what the daemon wrote last.
func (c *Cluster) await(daemon string, ready func() bool) error {
	const patience = 60 * time.Second
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ready() {
			return nil
		}
	}
	var logs string
	for _, suffix := range []string{".out", ".log"} {
		logs += tail(filepath.Join(c.dir, "log", daemon+suffix), 20)
	}
	return fmt.Errorf("not ready after %v; %s says:\n%s", patience, daemon, logs)
}

// stop closes the keeper's orders and waits until everything is gone.
func (c *Cluster) stop() error {
	if c.keeper == nil {
		return os.RemoveAll(c.dir)
	}
	c.orders.Close()
	done := make(chan error, 1)
	go func() { done <- c.keeper.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("keeper of %s: %w", c.dir, err)
		}
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("keeper of %s still runs, as pid %d", c.dir, c.keeper.Process.Pid)
	}
}

// Env is the environment of every daemon, client and job of this cluster: a
// fresh one, so that no setting of another Slurm gets in.
func (c *Cluster) Env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin",
		"HOME=" + filepath.Join(c.dir, "home"),
		"TMPDIR=" + filepath.Join(c.dir, "tmp"),
		"LANG=C.UTF-8",
		"USER=root",
		"SLURM_CONF=" + filepath.Join(c.dir, "slurm.conf"),
		// Several slurmd on one machine share what PMIx and Open MPI take to
		// be one host's: without these, some launches on two nodes or more
		// crash or hang. A cluster of real hosts needs none of them.
		"PMIX_MCA_gds=hash",
		"OMPI_MCA_btl=tcp,self",
		"OMPI_MCA_btl_tcp_if_include=lo",
		// Tests run as root; Open MPI's mpirun asks twice.
		"OMPI_ALLOW_RUN_AS_ROOT=1",
		"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
	}
}

// Command prepares a client program of this cluster. It dies with the test
// process.
func (c *Cluster) Command(name string, args ...string) *exec.Cmd {
	return c.command(context.Background(), name, args...)
}

func (c *Cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// tail returns the last lines of a file, or nothing if it cannot be read.
func tail(path string, lines int) string {
	text, _ := os.ReadFile(path)
	all := strings.SplitAfter(string(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
