package nccl

import (
	"encoding/binary"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// flag is what AnyFlag works with: one int32 on each side, and a stream of its own.
type flag struct {
	host   *cuda.HostMem
	device cuda.Buffer
	stream *cuda.Stream
	event  *cuda.Event
}

// AnyFlag returns on every rank whether any rank raised its flag: the maximum of int32 over all ranks. All ranks must
// call it, outside groups and captures. It waits.
func (c *Comm) AnyFlag(raised bool) (bool, error) {
	if err := c.usable("ncclAllReduce"); err != nil {
		return false, err
	}
	if c.flag == nil {
		f, err := newFlag(c.ctx)
		if err != nil {
			return false, err
		}
		c.flag = f
	}
	f := c.flag
	var v uint32
	if raised {
		v = 1
	}
	binary.NativeEndian.PutUint32(f.host.Bytes(), v)
	if err := f.stream.CopyIn(f.device, f.host, 0); err != nil {
		return false, err
	}
	if err := c.AllReduce(f.device, f.device, Max, f.stream); err != nil {
		return false, err
	}
	if err := f.stream.CopyOut(f.host, 0, f.device); err != nil {
		return false, err
	}
	if err := f.event.Record(f.stream); err != nil {
		return false, err
	}
	if err := c.Wait(f.event); err != nil {
		return false, err
	}
	return binary.NativeEndian.Uint32(f.host.Bytes()) != 0, nil
}

func newFlag(ctx *cuda.Context) (_ *flag, err error) {
	f := &flag{}
	defer func() {
		if err != nil {
			_ = f.free() // the first error is the one to tell
		}
	}()
	if f.host, err = ctx.AllocHost(4); err != nil {
		return nil, err
	}
	if f.device, err = ctx.Alloc(cuda.Int32, 1); err != nil {
		return nil, err
	}
	if f.stream, err = ctx.NewStream(); err != nil {
		return nil, err
	}
	f.event, err = ctx.NewEvent(false)
	return f, err
}

// free gives back what there is; a nil flag has nothing.
func (f *flag) free() error {
	if f == nil {
		return nil
	}
	var errs [4]error
	if f.event != nil {
		errs[0] = f.event.Close()
	}
	if f.stream != nil {
		errs[1] = f.stream.Close()
	}
	if f.device.Context() != nil {
		errs[2] = f.device.Free()
	}
	if f.host != nil {
		errs[3] = f.host.Free()
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
