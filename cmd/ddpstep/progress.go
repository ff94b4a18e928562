package main

import (
	"fmt"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/ddpstep/ddpstep/gradsync"
)

// progress shows rank 0's steps on stderr: a bar on a terminal, a line now and
// then in a batch log.
type progress struct {
	w     *job
	total int
	last  time.Time
	bars  *mpb.Progress
	bar   *mpb.Bar
}

// quiet is how long a batch log stays without a line.
const quiet = 10 * time.Second

func newProgress(w *job, total int) *progress {
	p := &progress{w: w, total: total, last: time.Now()}
	if f, ok := w.stderr.(*os.File); ok && w.Rank() == 0 && term.IsTerminal(int(f.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(60))
		p.bar = p.bars.AddBar(int64(total), mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.CountersNoUnit("step %d of %d")), mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_GO)))
	}
	return p
}

// step is called after each counted step.
func (p *progress) step(s *gradsync.Step) {
	switch {
	case p.w.Rank() != 0:
	case p.bar != nil:
		p.bar.SetCurrent(int64(s.Step) + 1)
	case time.Since(p.last) >= quiet:
		p.last = time.Now()
		fmt.Fprintf(p.w.stderr, "ddpstep: step %d of %d, communication %s\n", s.Step+1, p.total, seconds(s.Comm))
	}
}

func (p *progress) close() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}
