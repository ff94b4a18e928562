package main

import (
	"fmt"
	"io"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/report"
)

type compareCmd struct {
	A string `arg:"" help:"Report or baseline."`
	B string `arg:"" help:"Report or baseline to hold it against."`
}

// Help is shown by ddpstep compare --help.
func (*compareCmd) Help() string {
	return `Exit code 0 when every digest is equal, 4 when one differs, 2 when the two cannot be compared: other inputs, other
steps, or a run that was interrupted.

  ddpstep compare report.json baseline.json`
}

func (c *compareCmd) main(stdout, stderr io.Writer) int {
	err := c.compare(stdout)
	if err != nil {
		fmt.Fprintln(stderr, "ddpstep:", oneLine(err))
	}
	return gradsync.ExitCode(err)
}

func (c *compareCmd) compare(stdout io.Writer) error {
	now, err := report.ReadDigests(c.A)
	if err != nil {
		return usage(err)
	}
	was, err := report.ReadDigests(c.B)
	if err != nil {
		return usage(err)
	}
	if err := was.Comparable(now); err != nil {
		return usage(fmt.Errorf("%s and %s: %w", c.A, c.B, err))
	}
	if a, b := len(now.Steps), len(was.Steps); a != b {
		return usage(fmt.Errorf("%s has %d steps and %s has %d: compare runs of the same --steps that were not interrupted", c.A, a, c.B, b))
	}
	if err := was.Compare(now); err != nil {
		return fmt.Errorf("%w: %s and %s: %w", gradsync.ErrBaseline, c.A, c.B, err)
	}
	_, err = fmt.Fprintf(stdout, "%s and %s have the same bits: %s, %s\n",
		c.A, c.B, plural(len(now.Steps), "step"), plural(len(now.Parameters), "parameter"))
	return err
}
