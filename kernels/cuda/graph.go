package cuda

import "fmt"

// A Graph is work that was recorded once and is launched as a whole, many times. What the host passed as arguments
// while recording is frozen in it.
type Graph struct {
	ctx    *Context
	exec   uintptr
	closed bool
}

// Capture records what body queues on the stream instead of running it, and returns it ready to launch. Other streams
// join through events. When body fails or panics, the capture is ended and its record thrown away.
func (s *Stream) Capture(body func() error) (*Graph, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	drv := s.ctx.drv
	if err := drv.fail("cuStreamBeginCapture_v2", drv.api.captureBegin(s.handle), ""); err != nil {
		return nil, err
	}
	ended := false
	end := func() (uintptr, int) {
		ended = true
		return drv.api.captureEnd(s.handle)
	}
	defer func() {
		if !ended { // body panicked
			if g, code := end(); code == 0 {
				drv.api.graphDestroy(g)
			}
		}
	}()
	bodyErr := body()
	g, code := end()
	err := drv.fail("cuStreamEndCapture", code, "")
	if err == nil {
		defer drv.api.graphDestroy(g)
	}
	if bodyErr != nil {
		return nil, fmt.Errorf("cuda: capture: %w", bodyErr)
	}
	if err != nil {
		return nil, err
	}
	exec, code := drv.api.graphInstantiate(g)
	if err := drv.fail("cuGraphInstantiateWithFlags", code, ""); err != nil {
		return nil, err
	}
	return &Graph{ctx: s.ctx, exec: exec}, nil
}

// LaunchGraph queues the graph's work on the stream.
func (s *Stream) LaunchGraph(g *Graph) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := g.check(); err != nil {
		return err
	}
	if g.ctx != s.ctx {
		return fmt.Errorf("cuda: launch of a graph: it %w", ErrContext)
	}
	return s.ctx.drv.fail("cuGraphLaunch", s.ctx.drv.api.graphLaunch(g.exec, s.handle), "")
}

// Close destroys the graph; launches under way are finished.
func (g *Graph) Close() error {
	if err := g.check(); err != nil {
		return err
	}
	g.closed = true
	return g.ctx.drv.fail("cuGraphExecDestroy", g.ctx.drv.api.graphExecDestroy(g.exec), "")
}

func (g *Graph) check() error {
	if g == nil {
		return fmt.Errorf("cuda: graph: %w", ErrNull)
	}
	if g.closed {
		return fmt.Errorf("cuda: graph: %w", ErrFreed)
	}
	return g.ctx.Check()
}
