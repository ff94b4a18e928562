// Package slurmtest starts a real, private Slurm for tests.
//
// A job script is right when Slurm runs it, not when its text looks right. So
// the tests of this project submit to a Slurm of their own: munged, slurmctld
// and one slurmd for each node, all on this machine, on free ports, with key,
// sockets, spool, logs and state in one temporary folder. Each node claims
// eight CPUs and four GPUs (character devices that do nothing), whatever the
// machine has.
//
// # Nothing else is touched
//
// Another Slurm or munge may run on the machine. Clients of the private one
// get a fresh environment with its SLURM_CONF, its credentials go through its
// own munge socket, and only processes that descend from the one that Start
// started are ever signalled.
//
// # Nothing stays behind
//
// A keeper process starts the daemons: the test binary itself, started again,
// which reads its orders from a pipe. It is the subreaper of all that it
// starts, so that daemons, job steps and their orphans stay its descendants.
// When the pipe closes, because the test ended, failed, timed out or was
// killed, the keeper kills every descendant, removes the folder and ends.
//
// # Who can run it
//
// Root on Linux with Debian's slurm-wlm and munge. Elsewhere Start skips the
// test and says what is missing; with DDPSTEP_REQUIRE=slurm in the environment
// (a list, separated by commas) it fails the test instead.
package slurmtest
