package cuda

import "fmt"

// A Driver is one loaded libcuda.so.1. Its methods may be called from any thread.
type Driver struct {
	api  api
	path string
}

// The names under which the driver is looked for when no path is given; the last is where WSL keeps it.
var driverCandidates = []string{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}

// Open loads the driver library from path, or from where the dynamic loader finds it when path is empty. The error is
// a [*LoadError]. Nothing is initialised yet.
func Open(path string) (*Driver, error) { return OpenWith(System, path) }

// OpenWith is Open with a loader of the caller's, for tests of what happens when a library is missing or incomplete.
func OpenWith(l Loader, path string) (*Driver, error) {
	candidates := driverCandidates
	if path != "" {
		candidates = []string{path}
	}
	addresses, path, err := Load(l, "libcuda.so.1", candidates, apiNames())
	if err != nil {
		return nil, err
	}
	return &Driver{api: newAPI(addresses), path: path}, nil
}

// Path returns what the library was opened as.
func (d *Driver) Path() string { return d.path }

// Init initialises the driver, which every other call needs. A machine without a GPU answers [CodeNoDevice].
func (d *Driver) Init() error { return d.fail("cuInit", d.api.init(), "") }

// Version returns the CUDA version that the driver supports: 13000 for 13.0.
func (d *Driver) Version() (int, error) {
	v, code := d.api.driverVersion()
	return v, d.fail("cuDriverGetVersion", code, "")
}

// Count returns the number of visible devices.
func (d *Driver) Count() (int, error) {
	n, code := d.api.deviceCount()
	return n, d.fail("cuDeviceGetCount", code, "")
}

// Device returns the visible device of that ordinal.
func (d *Driver) Device(ordinal int) (*Device, error) {
	id, code := d.api.device(ordinal)
	if err := d.fail("cuDeviceGet", code, "device %d", ordinal); err != nil {
		return nil, err
	}
	dev := &Device{drv: d, id: id, Ordinal: ordinal}
	var uuid [16]byte
	read := func(call string, get func() int) error {
		return d.fail(call, get(), "device %d", ordinal)
	}
	attribute := func(to *int, which int) error {
		return read("cuDeviceGetAttribute", func() (c int) { *to, c = d.api.deviceAttribute(id, which); return c })
	}
	for _, err := range []error{
		read("cuDeviceGetName", func() (c int) { dev.Name, c = d.api.deviceName(id); return c }),
		read("cuDeviceGetUuid_v2", func() (c int) { uuid, c = d.api.deviceUUID(id); return c }),
		read("cuDeviceGetPCIBusId", func() (c int) { dev.Bus, c = d.api.deviceBus(id); return c }),
		read("cuDeviceTotalMem_v2", func() (c int) { dev.Memory, c = d.api.deviceMemory(id); return c }),
		attribute(&dev.SMs, attributeSMs),
		attribute(&dev.Capability[0], attributeMajor),
		attribute(&dev.Capability[1], attributeMinor),
		attribute(&dev.MaxThreads, attributeMaxThreads),
	} {
		if err != nil {
			return nil, err
		}
	}
	dev.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	return dev, nil
}
