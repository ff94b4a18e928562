package params

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// strict reads JSON token by token, because json.Unmarshal lets through what
// an input file must not hold: of two equal keys it keeps the last, it matches
// keys whatever their case, and it replaces bytes that are not UTF-8, which
// makes different names equal. Nothing is kept but what the caller keeps, and
// the first value of an unexpected kind ends the reading, so neither memory nor
// nesting can grow beyond the input's size.
type strict struct {
	dec  *json.Decoder
	what string // what is read, for messages: "header" or "list"
}

func newStrict(b []byte, what string) (*strict, error) {
	if !utf8.Valid(b) {
		return nil, &Error{Problem: "the " + what + " is not valid UTF-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return &strict{dec, what}, nil
}

func (s *strict) token() (json.Token, error) {
	t, err := s.dec.Token()
	if err == nil {
		return t, nil
	}
	problem := err.Error()
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		problem = "it ends too early"
	}
	return nil, &Error{Problem: fmt.Sprintf("the %s is not JSON: %s (near byte %d)", s.what, problem, s.dec.InputOffset())}
}

// delim reads the opening delimiter of what.
func (s *strict) delim(d json.Delim, what string) error {
	t, err := s.token()
	if err != nil {
		return err
	}
	if t != d {
		want := "an object"
		if d == '[' {
			want = "a list"
		}
		return &Error{Problem: fmt.Sprintf("%s is %s, not %s", what, kind(t), want)}
	}
	return nil
}

// object reads an object, calling each with the value of every key next in line.
func (s *strict) object(what string, each func(key string) error) error {
	if err := s.delim('{', what); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for s.dec.More() {
		t, err := s.token()
		if err != nil {
			return err
		}
		key := t.(string) // the decoder lets nothing else stand for a key
		if seen[key] {
			return &Error{Problem: fmt.Sprintf("%s has the key %s twice", what, quote(key)), Hint: "keys must be unique"}
		}
		seen[key] = true
		if err := each(key); err != nil {
			return err
		}
	}
	_, err := s.token()
	return err
}

// array reads a list, calling each with the next value in line.
func (s *strict) array(what string, each func() error) error {
	if err := s.delim('[', what); err != nil {
		return err
	}
	for s.dec.More() {
		if err := each(); err != nil {
			return err
		}
	}
	_, err := s.token()
	return err
}

func (s *strict) text(what string) (string, error) {
	t, err := s.token()
	if err != nil {
		return "", err
	}
	v, ok := t.(string)
	if !ok {
		return "", &Error{Problem: fmt.Sprintf("%s is %s, not a string", what, kind(t))}
	}
	return v, nil
}

// natural reads a whole number from 0 to MaxInt64.
func (s *strict) natural(what string) (int64, error) {
	t, err := s.token()
	if err != nil {
		return 0, err
	}
	v, ok := t.(json.Number)
	if !ok {
		return 0, &Error{Problem: fmt.Sprintf("%s holds %s, not a whole number", what, kind(t))}
	}
	digits := v.String()
	if len(digits) > 40 {
		digits = digits[:40] + "..."
	}
	n, err := strconv.ParseInt(v.String(), 10, 64)
	switch {
	case digits[0] == '-':
		return 0, &Error{Problem: fmt.Sprintf("%s holds the negative number %s", what, digits)}
	case strings.ContainsAny(v.String(), ".eE"):
		return 0, &Error{Problem: fmt.Sprintf("%s holds %s, which is not written as a whole number", what, digits)}
	case err != nil:
		return 0, &Error{Problem: fmt.Sprintf("%s holds %s, which is too large", what, digits)}
	}
	return n, nil
}

// naturals reads a list of whole numbers. A list without any is not nil, so
// that the shape of a scalar prints and compares as [].
func (s *strict) naturals(what string) ([]int64, error) {
	v := []int64{}
	err := s.array(what, func() error {
		n, err := s.natural(what)
		v = append(v, n)
		return err
	})
	return v, err
}

// end checks that only white space follows.
func (s *strict) end() error {
	pos := s.dec.InputOffset()
	if _, err := s.dec.Token(); err != io.EOF {
		return &Error{Problem: fmt.Sprintf("the %s goes on after its JSON object ends (near byte %d)", s.what, pos)}
	}
	return nil
}

// kind names a token's JSON type.
func kind(t json.Token) string {
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	}
	return "null"
}

// in returns err, an *Error or nil, with the tensor that it is about.
func in(tensor string, err error) error {
	if e, ok := err.(*Error); ok && e.Tensor == "" {
		e.Tensor = tensor
	}
	return err
}
