package params

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rankMark stands for the logical rank in a set's pattern.
const rankMark = "{rank}"

// Set is the gradient files of a logical world, one file per rank, all with the
// same parameters. Read may be called from several goroutines at once.
type Set struct {
	pattern string
	params  List
	perm    []int     // Params' positions in the order of rank 0's data
	offsets [][]int64 // by rank: of each parameter's first byte, in the order of rank 0's data
	files   *handles
}

// OpenSet opens every rank's file, checks all headers, and compares names,
// dtypes and shapes with those of rank 0; the error names the first difference.
// Every {rank} in pattern is replaced with the rank. A world of 0 means as many
// ranks as there are files, which must have no hole; a world given must have all
// its files, and files beyond it are ignored.
//
// Files are opened again as Read needs them, a bounded number at a time.
func OpenSet(pattern string, world int) (*Set, error) {
	if !strings.Contains(pattern, rankMark) {
		return nil, &Error{Path: pattern, Problem: "no " + rankMark + " in the pattern", Hint: "name one file per rank, such as grads/rank" + rankMark + ".safetensors"}
	}
	if world < 0 {
		return nil, &Error{Path: pattern, Problem: fmt.Sprintf("a world of %d ranks", world), Hint: "give at least 1, or 0 to count the files"}
	}
	s := &Set{pattern: pattern, files: newHandles()}
	for rank := 0; world == 0 || rank < world; rank++ {
		err := s.add(rank)
		if missing := errors.Is(err, fs.ErrNotExist); missing && world == 0 && rank > 0 {
			if err := s.hole(rank); err != nil {
				return nil, err
			}
			break
		} else if missing {
			return nil, s.missing(rank, world, err)
		}
		if err != nil {
			return nil, err
		}
	}
	s.perm = make([]int, len(s.params))
	for i := range s.perm {
		s.perm[i] = i
	}
	return s, nil
}

// path is the name of a rank's file.
func (s *Set) path(rank int) string { return RankPath(s.pattern, rank) }

// RankPath is the name of a rank's file in a set with this pattern.
func RankPath(pattern string, rank int) string {
	return strings.ReplaceAll(pattern, rankMark, strconv.Itoa(rank))
}

// missing explains that rank has no file.
func (s *Set) missing(rank, world int, err error) error {
	e := &Error{Path: s.path(rank), Problem: "no such file", Hint: "check the path", Err: err}
	if rank > 0 {
		e.Problem += fmt.Sprintf(", but a world of %d needs ranks 0 to %d", world, world-1)
		e.Hint = fmt.Sprintf("write it, or lower the world to %d", rank)
	}
	return e
}

// hole reports a file of a rank beyond the first one without a file: the world
// would silently be smaller than what was meant.
func (s *Set) hole(first int) error {
	glob := strings.NewReplacer(rankMark, "*", `\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(s.pattern)
	found, err := filepath.Glob(glob)
	if err != nil {
		panic("params: " + err.Error()) // the pattern is escaped
	}
	number := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(filepath.Clean(s.pattern)), regexp.QuoteMeta(rankMark), `(\d+)`) + "$")
	for _, name := range found {
		m := number.FindStringSubmatch(filepath.Clean(name))
		if m == nil {
			continue
		}
		if rank, err := strconv.Atoi(m[1]); err == nil && rank > first && filepath.Clean(s.path(rank)) == filepath.Clean(name) {
			return &Error{Path: s.path(first), Problem: "no such file, but rank " + m[1] + " has one", Hint: fmt.Sprintf("write it, or say that the world is %d", first)}
		}
	}
	return nil
}

// add opens the next rank's file, compares it, and keeps where its data lie.
func (s *Set) add(rank int) error {
	f, err := Open(s.path(rank))
	if err != nil {
		return err
	}
	defer f.Close()
	if rank == 0 {
		s.params = f.params
	}
	offsets := make([]int64, len(s.params))
	for i, want := range s.params {
		k, ok := f.Tensor(want.Name)
		if !ok {
			return s.differs(rank, want.Name, "missing, but rank 0 has it")
		}
		switch got := f.params[k]; {
		case got.DType != want.DType:
			return s.differs(rank, want.Name, fmt.Sprintf("dtype %v but rank 0 has %v", got.DType, want.DType))
		case !slices.Equal(got.Shape, want.Shape):
			return s.differs(rank, want.Name, fmt.Sprintf("shape %s but rank 0 has %s", dims(got.Shape), dims(want.Shape)))
		}
		offsets[i] = f.offsets[k]
	}
	if len(f.params) > len(s.params) {
		known := s.params.index()
		for _, p := range f.params {
			if _, ok := known[p.Name]; !ok {
				return s.differs(rank, p.Name, "rank 0 does not have it")
			}
		}
	}
	if rank > 0 && slices.Equal(offsets, s.offsets[rank-1]) {
		offsets = s.offsets[rank-1] // thousands of ranks commonly share one layout
	}
	s.offsets = append(s.offsets, offsets)
	return s.files.add(s.path(rank), f)
}

func (s *Set) differs(rank int, tensor, problem string) error {
	return &Error{Path: s.path(rank), Tensor: tensor, Problem: problem, Hint: "write the same parameters on every rank"}
}

// World is the number of logical ranks.
func (s *Set) World() int { return len(s.offsets) }

// Params returns what every rank has, in the order of rank 0's data, or as
// OrderAs put it. The list is the set's own: do not change it.
func (s *Set) Params() List { return s.params }

// OrderAs reorders Params as the names in order, which must be the same names
// with the same shapes. No Read may run meanwhile.
func (s *Set) OrderAs(order List) error {
	perm, err := s.params.orderAs(order)
	if err != nil {
		return at(s.pattern, err)
	}
	l, p := make(List, len(perm)), make([]int, len(perm))
	for i, j := range perm {
		l[i], p[i] = s.params[j], s.perm[j]
	}
	s.params, s.perm = l, p
	return nil
}

// Read fills dst with the elements lo to hi-1 of a rank's parameter, given by
// its position in Params: (hi-lo) times the dtype's size bytes, little-endian,
// as in the file. A range outside the parameter, or a dst of another length,
// panics. A file that was replaced, changed or cut short since OpenSet is an
// error.
func (s *Set) Read(dst []byte, rank, param int, lo, hi int64) error {
	p := s.params[param]
	size := int64(p.DType.Size())
	if lo < 0 || lo > hi || hi > p.Elements() || int64(len(dst)) != (hi-lo)*size {
		panic(fmt.Sprintf("params: Read of elements %d to %d of %d into %d bytes", lo, hi, p.Elements(), len(dst)))
	}
	if len(dst) == 0 {
		return nil
	}
	h, err := s.files.acquire(rank)
	if err != nil {
		return err
	}
	defer s.files.release(h)
	return at(s.path(rank), in(p.Name, readFull(h.file, dst, s.offsets[rank][s.perm[param]]+lo*size)))
}

// Close closes the files that are open.
func (s *Set) Close() error { return s.files.closeAll() }
