package cuda

// CUdevice_attribute numbers.
const (
	attributeMaxThreads = 1
	attributeSMs        = 16
	attributeMajor      = 75
	attributeMinor      = 76
)

// A Device is one GPU as the driver shows it to this process. Its methods may be called from any thread unless they
// say otherwise.
type Device struct {
	Ordinal    int    // among the visible devices
	Name       string // "NVIDIA H200"
	UUID       string // "GPU-" and 32 hexadecimal digits in five groups, as NVML and nvidia-smi write it
	Bus        string // PCI address, "0000:0f:00.0"
	Memory     int64  // bytes in all
	SMs        int    // streaming multiprocessors
	Capability [2]int // compute capability, major and minor
	MaxThreads int    // threads in a block at most

	drv *Driver
	id  int32
}

// CanAccessPeer says whether kernels on d can address memory of peer.
func (d *Device) CanAccessPeer(peer *Device) (bool, error) {
	can, code := d.drv.api.canAccessPeer(d.id, peer.id)
	return can, d.drv.fail("cuDeviceCanAccessPeer", code, "devices %d and %d", d.Ordinal, peer.Ordinal)
}
