//go:build linux

package slurmtest

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	cpusPerNode = 8
	gpusPerNode = 4
)

// configure fills the folder with all that the daemons need before they start.
// ports are slurmctld's and then one for each node.
func configure(dir, host string, ports []int) error {
	for _, sub := range []string{"log", "run", "state", "spool", "tmp", "home", "dev"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	for n := range len(ports) - 1 {
		// PMIx makes one folder a step below TmpFS, of one name on all nodes.
		if err := os.Mkdir(filepath.Join(dir, "tmp", fmt.Sprintf("n%d", n+1)), 0o700); err != nil {
			return err
		}
	}
	key := make([]byte, 128)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "munge.key"), key, 0o400); err != nil {
		return err
	}
	for i := range gpusPerNode {
		const null = 1<<8 | 3 // major 1, minor 3: /dev/null
		gpu := filepath.Join(dir, "dev", fmt.Sprintf("gpu%d", i))
		if err := syscall.Mknod(gpu, syscall.S_IFCHR|0o600, null); err != nil {
			return fmt.Errorf("cannot make the device file %s that stands for a GPU: %w", gpu, err)
		}
	}
	gres := fmt.Sprintf("AutoDetect=off\nNodeName=n[1-%d] Name=gpu File=%s/dev/gpu[0-%d]\n", len(ports)-1, dir, gpusPerNode-1)
	if err := os.WriteFile(filepath.Join(dir, "gres.conf"), []byte(gres), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "slurm.conf"), []byte(slurmConf(dir, host, ports)), 0o600)
}

func slurmConf(dir, host string, ports []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `ClusterName=slurmtest
SlurmctldHost=%[2]s(127.0.0.1)
SlurmctldPort=%[3]d
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=%[1]s/run/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool/%%n
TmpFS=%[1]s/tmp/%%n
SlurmctldPidFile=%[1]s/run/slurmctld.pid
SlurmdPidFile=%[1]s/run/%%n.pid
SlurmctldLogFile=%[1]s/log/slurmctld.log
SlurmdLogFile=%[1]s/log/%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1
MpiDefault=pmix
ReturnToService=2
MinJobAge=3600
KillWait=5
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=%[1]s/jobcomp.log
GresTypes=gpu
`, dir, host, ports[0])
	for i, port := range ports[1:] {
		fmt.Fprintf(&b, "NodeName=n%d NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d RealMemory=1000 Gres=gpu:%d State=UNKNOWN\n",
			i+1, host, port, cpusPerNode, gpusPerNode)
	}
	fmt.Fprintf(&b, "PartitionName=main Nodes=n[1-%d] Default=YES MaxTime=INFINITE State=UP\n", len(ports)-1)
	return b.String()
}

// freePorts returns n different TCP ports that nothing listens on now. They
// are drawn below the usual range of ephemeral ports, so that no outgoing
// connection takes one before its daemon does.
func freePorts(n int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries == 100*n {
			return nil, fmt.Errorf("no %d free TCP ports between 20000 and 32000", n)
		}
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are found, so that all differ
		ports = append(ports, port)
	}
	return ports, nil
}
