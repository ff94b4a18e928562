package nccl

import (
	"fmt"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// A Version is NCCL's own number of a release: 22803 for 2.28.3.
type Version int

// Floor is the oldest release that is accepted.
const Floor Version = 22600

func (v Version) String() string {
	if v < 10000 { // how releases up to 2.8 counted
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// A Library is one loaded libnccl.so.2.
type Library struct {
	api     api
	path    string
	version Version
}

var candidates = []string{"libnccl.so.2", "libnccl.so"}

// Open loads NCCL from path, or from where the dynamic loader finds it when path is empty. The error is a
// [*cuda.LoadError], or a [*VersionError] for a release before [Floor].
func Open(path string) (*Library, error) { return OpenWith(cuda.System, path) }

// OpenWith is Open with a loader of the caller's, for tests.
func OpenWith(l cuda.Loader, path string) (*Library, error) {
	tried := candidates
	if path != "" {
		tried = []string{path}
	}
	// The version first: an old library lacks functions, and that it is old is the better message.
	get, path, err := cuda.Load(l, "libnccl.so.2", tried, []string{"ncclGetVersion"})
	if err != nil {
		return nil, err
	}
	v, code := versionAt(get[0])
	if code != success {
		return nil, &Error{Call: "ncclGetVersion", Code: code}
	}
	if Version(v) < Floor {
		return nil, &VersionError{Found: Version(v), Path: path}
	}
	addresses, _, err := cuda.Load(l, "libnccl.so.2", []string{path}, apiNames())
	if err != nil {
		return nil, err
	}
	return &Library{api: newAPI(addresses), path: path, version: Version(v)}, nil
}

// Path returns what the library was opened as, and Version its release.
func (l *Library) Path() string     { return l.path }
func (l *Library) Version() Version { return l.version }

// An ID names a communicator that does not exist yet. One rank makes it and sends it to all, as bytes. It serves once.
type ID [128]byte

// UniqueID makes an ID. The process must live until all ranks have initialised.
func (l *Library) UniqueID() (ID, error) {
	id, code := l.api.uniqueID()
	return id, l.fail("ncclGetUniqueId", code, 0)
}
