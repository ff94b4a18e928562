package nccl

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ddpstep/ddpstep/kernels/cuda"
)

// Config is how a communicator waits.
type Config struct {
	// Timeout bounds initialisation, and every stretch from an operation's hand-over to the end of its wait.
	// It must be positive.
	Timeout time.Duration
	// Grace bounds the abort, and the freeing after an orderly end; 0 is 5 seconds.
	Grace time.Duration
	// Direct makes operations reach the stream in the caller's own thread. Without it NCCL starts a thread for each,
	// which costs tens of microseconds a call, hidden behind large messages but not behind small ones. What it costs
	// is a guarantee: a call that has to connect to a peer, as the first of a kind does, may then block in NCCL when
	// the peer is gone, where neither the timeout nor an abort ends it, and the process must be ended from outside.
	Direct bool
}

// A Comm is one rank's end of a communicator.
type Comm struct {
	lib         *Library
	ctx         *cuda.Context
	rank, world int
	config      Config

	// Of the context's thread.
	since    time.Time // when the oldest operation not yet waited for was enqueued; zero for none
	grouping bool      // between group start and end, with mu held all along
	closed   bool
	flag     *flag
	aborting <-chan error // of an abort inside this thread's own group, which its end waits for

	// The handle is used, and freed, only with mu held, so that an abort never meets another call.
	mu     sync.Mutex
	handle uintptr
	parent uintptr // of a direct communicator: what it was split from

	once     sync.Once
	cause    atomic.Pointer[error] // set before the abort begins
	abortErr error                 // of the abort itself; behind once
}

// Init joins the communicator that id names as rank of world, on the context's device, and returns when all ranks
// have, or with [cuda.ErrDeadline] when they have not within the timeout. The calling thread is the context's.
func (l *Library) Init(ctx *cuda.Context, id ID, rank, world int, config Config) (*Comm, error) {
	if err := ctx.Check(); err != nil {
		return nil, err
	}
	if world < 1 || rank < 0 || rank >= world {
		return nil, fmt.Errorf("nccl: init rank %d of %d: %w", rank, world, ErrArgument)
	}
	if config.Timeout <= 0 || config.Grace < 0 {
		return nil, fmt.Errorf("nccl: init with timeout %v and grace %v: %w", config.Timeout, config.Grace, ErrArgument)
	}
	if config.Grace == 0 {
		config.Grace = 5 * time.Second
	}
	const call = "ncclCommInitRankConfig"
	c := &Comm{lib: l, ctx: ctx, rank: rank, world: world, config: config, since: time.Now()}
	handle, code := l.api.initRank(world, &id, rank)
	c.handle = handle
	if err := l.fail(call, code, 0); err != nil {
		return nil, c.down(call, err)
	}
	if err := c.settle(call); err != nil {
		return nil, err
	}
	if config.Direct {
		if err := c.makeDirect(); err != nil {
			return nil, err
		}
	}
	c.since = time.Time{}
	return c, nil
}

// makeDirect splits a blocking communicator off, itself without blocking, and works with that from then on.
func (c *Comm) makeDirect() error {
	const call = "ncclCommSplit"
	var child func() uintptr
	if err := c.locked(call, func(h uintptr) (code int) {
		child, code = c.lib.api.split(h, c.rank)
		return code
	}); err != nil {
		return c.down(call, err)
	}
	if err := c.settle(call); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parent, c.handle = c.handle, child()
	return nil
}

// Rank returns this end's rank, and World the number of ranks.
func (c *Comm) Rank() int  { return c.rank }
func (c *Comm) World() int { return c.world }

// Context returns the context whose device the communicator uses.
func (c *Comm) Context() *cuda.Context { return c.ctx }

// usable says whether a call may be made now, on this thread.
func (c *Comm) usable(call string) error {
	if c == nil {
		return fmt.Errorf("nccl: %s: communicator: %w", call, cuda.ErrNull)
	}
	if p := c.cause.Load(); p != nil {
		return &abortedError{call, *p}
	}
	if err := c.ctx.Check(); err != nil {
		return fmt.Errorf("nccl: %s: %w", call, err)
	}
	if c.closed {
		return fmt.Errorf("nccl: %s: %w", call, ErrClosed)
	}
	return nil
}

// locked makes one call with the handle. Inside a group the lock is held already.
func (c *Comm) locked(call string, f func(handle uintptr) int) error {
	if !c.grouping {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	if p := c.cause.Load(); p != nil {
		return &abortedError{call, *p}
	}
	return c.lib.fail(call, f(c.handle), c.handle)
}

// settled asks for the communicator's state: done, not yet, or an error.
func (c *Comm) settled(call string) (bool, error) {
	var state int
	err := c.locked("ncclCommGetAsyncError", func(h uintptr) (code int) {
		state, code = c.lib.api.asyncError(h)
		return code
	})
	if err != nil {
		return false, err
	}
	if state == inProgress {
		return false, nil
	}
	if state == success {
		return true, nil
	}
	return false, c.locked(call, func(uintptr) int { return state })
}

// settle waits until the last call is through, and takes the communicator down when it fails or takes too long.
func (c *Comm) settle(call string) error {
	err := cuda.WaitFor(func() (bool, error) { return c.settled(call) }, c.since.Add(c.config.Timeout), nil)
	return c.down(call, err)
}

// Wait returns when the event is done, after work that was enqueued on this communicator. Meanwhile it polls for
// errors of NCCL. An error, or the deadline, aborts the communicator.
func (c *Comm) Wait(e *cuda.Event) error {
	const call = "wait"
	if err := c.usable(call); err != nil {
		return err
	}
	if c.grouping {
		return fmt.Errorf("nccl: wait inside a group, whose work starts at its end: %w", ErrArgument)
	}
	from := c.since
	if from.IsZero() {
		from = time.Now()
	}
	err := cuda.Wait(e, from.Add(c.config.Timeout), func() error {
		_, err := c.settled(call)
		return err
	})
	if err != nil {
		return c.down(call, err)
	}
	// An abort from another thread ends the work on the device too, and then the event is done.
	if err := c.usable(call); err != nil {
		return err
	}
	c.since = time.Time{}
	return nil
}

// Close ends the communicator in order: it waits for all ranks to finalise, then frees it. All ranks must call it.
// Without an answer in time it aborts.
func (c *Comm) Close() error {
	const call = "ncclCommFinalize"
	if err := c.usable(call); err != nil {
		return err
	}
	if c.grouping {
		return fmt.Errorf("nccl: close inside a group: %w", ErrArgument)
	}
	if c.config.Direct { // finalising would block without bound; a flag finds out, with a deadline, that all are there
		if _, err := c.AnyFlag(false); err != nil {
			return err
		}
	}
	if err := c.flag.free(); err != nil {
		return err
	}
	if !c.config.Direct {
		c.since = time.Now()
		if err := c.locked(call, c.lib.api.finalize); err != nil {
			return c.down(call, err)
		}
		if err := c.settle(call); err != nil {
			return err
		}
	}
	c.closed = true
	return c.release("ncclCommDestroy", c.lib.api.destroy)
}
