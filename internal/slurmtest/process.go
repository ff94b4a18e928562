//go:build linux

package slurmtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one running process, zombies excluded.
type Process struct {
	PID  int
	Name string // as the kernel shortens it, 15 bytes at most
}

func (p Process) String() string { return fmt.Sprintf("%s (pid %d)", p.Name, p.PID) }

// descendants lists the processes below root. A process that ends during the
// listing is left out.
func descendants(root int) []Process {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := make(map[int][]Process)
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid ...; the name may hold spaces and brackets.
		open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if open < 0 || shut < open {
			continue
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(string(stat[:open])))
		fields := strings.Fields(string(stat[shut+1:]))
		if len(fields) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		p := Process{PID: pid, Name: string(stat[open+1 : shut])}
		if fields[0] == "Z" {
			continue
		}
		children[parent] = append(children[parent], p)
	}

	var list []Process
	for next := []int{root}; len(next) > 0; {
		parent := next[0]
		next = next[1:]
		for _, p := range children[parent] {
			list = append(list, p)
			next = append(next, p.PID)
		}
	}
	return list
}

// Env returns a variable of the environment that the process was started with,
// or "" where there is none or the process has ended.
func (p Process) Env(name string) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	if err != nil {
		return ""
	}
	for _, entry := range strings.Split(string(env), "\x00") {
		if value, found := strings.CutPrefix(entry, name+"="); found {
			return value
		}
	}
	return ""
}

// Processes lists what still runs of one job (an array task's own number, as
// State reports it): the batch script, its clients and all tasks of all steps.
// Slurm's own step daemons are not part of it.
func (c *Cluster) Processes(jobID string) []Process {
	var list []Process
	for _, p := range descendants(c.keeper.Process.Pid) {
		if p.Env("SLURM_JOB_ID") == jobID {
			list = append(list, p)
		}
	}
	return list
}
