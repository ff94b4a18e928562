package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// query asks everything.
func query() (*answer, error) {
	l, err := open()
	if err != nil {
		return nil, err
	}
	defer l.close()
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetCount: %s", l.text(ret))
	}
	a := &answer{
		Format: "ddpstep-nvml/1",
		Driver: or(value(l, "nvmlSystemGetDriverVersion", nvml.SystemGetDriverVersion)),
		NVML:   or(value(l, "nvmlSystemGetNVMLVersion", nvml.SystemGetNVMLVersion)),
		GPUs:   []gpu{},
	}
	var devices []nvml.Device // beside a.GPUs
	for i := range n {
		d, ret := nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS { // lost, or kept from this job
			l.note("GPU %d: nvmlDeviceGetHandleByIndex: %s", i, l.text(ret))
			continue
		}
		uuid, ret := d.GetUUID()
		if ret != nvml.SUCCESS {
			l.note("GPU %d: nvmlDeviceGetUUID: %s", i, l.text(ret))
			continue
		}
		devices = append(devices, d)
		a.GPUs = append(a.GPUs, l.describe(i, uuid, d))
	}
	for i := range a.GPUs {
		a.GPUs[i].Peers = l.peers(i, a.GPUs, devices)
	}
	a.Notes = l.notes
	return a, nil
}

func (l *library) describe(index int, uuid string, d nvml.Device) gpu {
	g := gpu{
		Index: index, UUID: uuid,
		Name:     or(value(l, "nvmlDeviceGetName", d.GetName)),
		Bus:      l.bus(d),
		NVLinks:  l.nvlinks(d),
		ECC:      l.ecc(d),
		Throttle: l.throttle(d),
	}
	g.MIG = value(l, "nvmlDeviceGetMigMode", func() (bool, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current == nvml.DEVICE_MIG_ENABLE, ret
	})
	if g.NVLinks != nil {
		n := len(g.NVLinks)
		g.Active = &n
	}
	return g
}

// bus is the PCI address. NVML writes it with eight digits of domain and in
// capitals, the CUDA driver with four and in small letters.
func (l *library) bus(d nvml.Device) string {
	symbol := "nvmlDeviceGetPciInfo_v3" // go-nvml takes the newest that there is
	if !l.has(symbol) {
		symbol = "nvmlDeviceGetPciInfo_v2"
	}
	p := value(l, symbol, d.GetPciInfo)
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

// nvlinks returns the links that are up: none for a GPU without NVLink, nil when
// NVML cannot say.
func (l *library) nvlinks(d nvml.Device) []int {
	const symbol = "nvmlDeviceGetNvLinkState"
	up := []int{}
	for link := range nvml.NVLINK_MAX_LINKS {
		var state nvml.EnableState
		last := false
		ret := l.ask(symbol, func() (ret nvml.Return) {
			state, ret = d.GetNvLinkState(link)
			if ret == nvml.ERROR_INVALID_ARGUMENT {
				// The header has more links than this GPU, or its driver.
				last, ret = true, nvml.SUCCESS
			}
			return ret
		})
		switch {
		case last:
			return up
		case ret == nvml.ERROR_NOT_SUPPORTED:
		case ret != nvml.SUCCESS:
			return nil
		case state == nvml.FEATURE_ENABLED:
			up = append(up, link)
		}
	}
	return up
}

func (l *library) ecc(d nvml.Device) *ecc {
	count := func(t nvml.MemoryErrorType, c nvml.EccCounterType) *uint64 {
		return value(l, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return d.GetTotalEccErrors(t, c) })
	}
	counts := func(c nvml.EccCounterType) eccCount {
		return eccCount{count(nvml.MEMORY_ERROR_TYPE_CORRECTED, c), count(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, c)}
	}
	e := ecc{counts(nvml.VOLATILE_ECC), counts(nvml.AGGREGATE_ECC)}
	if e == (ecc{}) {
		return nil
	}
	return &e
}

// reasons are the bits of what holds the clocks down. An idle GPU also has low
// clocks, which is no complaint.
var reasons = []struct {
	bit  uint64
	name string
}{
	{nvml.ClocksEventReasonApplicationsClocksSetting, "application clocks"},
	{nvml.ClocksEventReasonSwPowerCap, "power cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSyncBoost, "sync boost"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "thermal slowdown"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
	{nvml.ClocksEventReasonDisplayClockSetting, "display clocks"},
}

func (l *library) throttle(d nvml.Device) []string {
	symbol, get := "nvmlDeviceGetCurrentClocksEventReasons", d.GetCurrentClocksEventReasons
	if !l.has(symbol) { // before driver 535 it had this name
		symbol, get = "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons
	}
	bits := value(l, symbol, get)
	if bits == nil {
		return nil
	}
	names := []string{}
	for _, r := range reasons {
		if *bits&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return names
}

var topologies = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL:   "internal",
	nvml.TOPOLOGY_SINGLE:     "single",
	nvml.TOPOLOGY_MULTIPLE:   "multiple",
	nvml.TOPOLOGY_HOSTBRIDGE: "hostbridge",
	nvml.TOPOLOGY_NODE:       "node",
	nvml.TOPOLOGY_SYSTEM:     "system",
}

// peers says how GPU me reaches each of the others.
func (l *library) peers(me int, all []gpu, devices []nvml.Device) []peer {
	found := []peer{}
	for i, g := range all {
		if i == me {
			continue
		}
		can := func(c nvml.GpuP2PCapsIndex) *bool {
			return value(l, "nvmlDeviceGetP2PStatus", func() (bool, nvml.Return) {
				status, ret := devices[me].GetP2PStatus(devices[i], c)
				return status == nvml.P2P_STATUS_OK, ret
			})
		}
		p := peer{Index: g.Index, UUID: g.UUID, NVLink: can(nvml.P2P_CAPS_INDEX_NVLINK), Read: can(nvml.P2P_CAPS_INDEX_READ)}
		level := value(l, "nvmlDeviceGetTopologyCommonAncestor", func() (nvml.GpuTopologyLevel, nvml.Return) {
			return devices[me].GetTopologyCommonAncestor(devices[i])
		})
		if level != nil {
			name, ok := topologies[*level]
			if !ok {
				name = fmt.Sprintf("level %d", *level)
			}
			p.Topology = &name
		}
		found = append(found, p)
	}
	return found
}
