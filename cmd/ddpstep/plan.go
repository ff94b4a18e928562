package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/ddpstep/ddpstep/gradsync"
	"github.com/ddpstep/ddpstep/gradsync/contract"
	"github.com/ddpstep/ddpstep/gradsync/plan"
	"github.com/ddpstep/ddpstep/gradsync/report"
	"github.com/ddpstep/ddpstep/mpiboot"
)

type planCmd struct {
	gradFlags
	bucketFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is shown by ddpstep plan --help.
func (*planCmd) Help() string {
	return `Buckets are assigned as PyTorch's DistributedDataParallel assigns them, and listed in launch order.

  ddpstep plan --model gpt2 --bucket-cap-mb 25`
}

// Validate is called by kong after parsing.
func (c *planCmd) Validate() error { return c.gradFlags.validate() }

func (c *planCmd) main(stdout, stderr io.Writer) int {
	if err := c.print(stdout); err != nil {
		if rank, _, _, _ := mpiboot.Announced(); rank > 0 { // under a launcher, one says it
			return gradsync.ExitCode(err)
		}
		fmt.Fprintln(stderr, "ddpstep:", err)
		return gradsync.ExitCode(err)
	}
	return gradsync.ExitOK
}

// planBucket is a bucket as plan --json prints it.
type planBucket struct {
	Index      int            `json:"index"`
	DType      contract.DType `json:"dtype"`
	Elements   int64          `json:"elements"`
	Bytes      int64          `json:"bytes"`
	Parameters []string       `json:"parameters"`
}

func (c *planCmd) print(stdout io.Writer) error {
	in, err := c.openInputs(1)
	if err != nil {
		return err
	}
	defer in.close()
	p, err := plan.New(in.params, c.caps()...)
	if err != nil {
		return usage(err)
	}
	var buckets []planBucket
	for i, b := range p.Buckets {
		out := planBucket{Index: i, DType: b.DType, Elements: b.Elements, Bytes: b.Bytes()}
		for _, s := range b.Slots {
			out.Parameters = append(out.Parameters, p.Params[s.Param].Name)
		}
		buckets = append(buckets, out)
	}
	if c.JSON {
		text, err := report.Encode(struct {
			Buckets []planBucket `json:"buckets"`
			Digest  string       `json:"digest"`
		}{buckets, p.Digest()})
		if err != nil {
			return err
		}
		_, err = stdout.Write(text)
		return err
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%6s  %-8s  %13s  %10s  %6s  %s\n", "bucket", "dtype", "elements", "size", "params", "first parameter")
	for _, b := range buckets {
		first := b.Parameters[0]
		if strings.ContainsFunc(first, unicode.IsControl) { // would break the line
			first = strconv.Quote(first)
		}
		fmt.Fprintf(&table, "%6d  %-8v  %13d  %10s  %6d  %s\n",
			b.Index, b.DType, b.Elements, humanize.IBytes(uint64(b.Bytes)), len(b.Parameters), first)
	}
	fmt.Fprintf(&table, "%s, %s in %s, the largest %s; plan digest %s\n",
		plural(len(p.Params), "parameter"), humanize.IBytes(uint64(p.Bytes())), plural(len(p.Buckets), "bucket"), humanize.IBytes(uint64(p.MaxBytes())), p.Digest())
	_, err = io.WriteString(stdout, table.String())
	return err
}
