package params

import (
	"embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

// ReadList reads a parameter list from a JSON file:
//
//	{"model": "name", "dtype": "float32", "parameters": [
//	  {"name": "fc.weight", "shape": [10, 128]},
//	  {"name": "fc.bias", "shape": [10], "dtype": "bfloat16"}]}
//
// in registration order. The model's name is for readers and may be left out; so
// may a dtype that the other level gives. Unknown or repeated keys, and
// anything after the object, are refused. Opening does not wait for the writer
// of a named pipe; without one, the list is empty.
func ReadList(path string) (List, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, readError(path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHeader+1))
	if err != nil {
		return nil, readError(path, err)
	}
	if len(b) > maxHeader {
		return nil, &Error{Path: path, Problem: fmt.Sprintf("longer than %d bytes, too long for a parameter list", maxHeader), Hint: "is it the right file?"}
	}
	l, err := parseList(b)
	return l, at(path, err)
}

//go:embed models
var models embed.FS

// Models lists the names that Model knows, in alphabetical order.
func Models() []string {
	entries, err := models.ReadDir("models")
	if err != nil {
		panic("params: " + err.Error()) // the directory is part of the program
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".json")
	}
	return names
}

// Model returns the parameters of a well-known model, in registration order.
func Model(name string) (List, error) {
	if known := Models(); !slices.Contains(known, name) {
		return nil, &Error{Problem: "no built-in model " + quote(name), Hint: "choose one of " + strings.Join(known, ", ")}
	}
	b, err := models.ReadFile("models/" + name + ".json")
	if err != nil {
		panic("params: " + err.Error())
	}
	return parseList(b)
}

func parseList(b []byte) (List, error) {
	s, err := newStrict(b, "list")
	if err != nil {
		return nil, err
	}
	var (
		l             List
		found         bool
		defaultDType  contract.DType
		withoutDTypes []int
	)
	err = s.object("the list", func(key string) (err error) {
		switch key {
		case "model":
			_, err = s.text(`"model"`)
		case "dtype":
			defaultDType, err = s.dtype()
		case "parameters":
			found = true
			err = s.array(`"parameters"`, func() error {
				p, err := s.param(len(l))
				if p.DType == 0 {
					withoutDTypes = append(withoutDTypes, len(l))
				}
				l = append(l, p)
				return err
			})
		default:
			err = &Error{Problem: "unknown key " + quote(key), Hint: `a list has "model", "dtype" and "parameters"`}
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, &Error{Problem: `no "parameters"`, Hint: `a list has "model", "dtype" and "parameters"`}
	}
	for _, i := range withoutDTypes {
		l[i].DType = defaultDType // which may stand after the parameters
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return l, nil
}

// param reads parameter i of a list.
func (s *strict) param(i int) (Param, error) {
	var p Param
	what := fmt.Sprintf("parameter %d", i)
	err := s.object(what, func(key string) (err error) {
		switch key {
		case "name":
			p.Name, err = s.text(what + ` "name"`)
		case "shape":
			p.Shape, err = s.naturals(what + ` "shape"`)
		case "dtype":
			p.DType, err = s.dtype()
		default:
			err = &Error{Problem: what + " has the unknown key " + quote(key), Hint: `a parameter has "name", "shape" and "dtype"`}
		}
		return in(p.Name, err)
	})
	if err == nil && p.Shape == nil {
		err = in(p.Name, &Error{Problem: what + ` has no "shape"`, Hint: "write [] for a scalar"})
	}
	return p, err
}

func (s *strict) dtype() (contract.DType, error) {
	name, err := s.text(`"dtype"`)
	if err != nil {
		return 0, err
	}
	d, err := contract.ParseDType(name)
	if err != nil {
		return 0, &Error{Problem: "unknown dtype " + quote(name), Hint: "use float16, bfloat16, float32 or float64"}
	}
	return d, nil
}
