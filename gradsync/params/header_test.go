package params

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const again = "; write the file again"

func TestMalformedFiles(t *testing.T) {
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"w":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	good := entry(`"F32"`, `[2]`, `[0,8]`)
	two := func(a, b string) string {
		return fmt.Sprintf(`{"a":{"dtype":"F32","shape":[2],"data_offsets":%s},"b":{"dtype":"F32","shape":[2],"data_offsets":%s}}`, a, b)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, `0 bytes long, too short for a safetensors file; write or copy the file again`},
		{"short", make([]byte, 7), `7 bytes long, too short for a safetensors file; write or copy the file again`},
		{"absurd header", []byte("PK\x03\x04\x00\x00\x08\x08 a zip file"), `a header of 578712552184433488 bytes is over the format's limit of 100000000; is it a safetensors file?`},
		{"header of 2^64-1", []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"), `a header of 18446744073709551615 bytes is over the format's limit of 100000000; is it a safetensors file?`},
		{"header beyond the file", raw(good, 8)[:20], `a header of 54 bytes reaches beyond the file's 20 bytes; write or copy the file again`},
		{"data as header", raw(good, 8)[:60], `a header of 54 bytes reaches beyond the file's 60 bytes; write or copy the file again`},
		{"no header", raw("", 8), `the header does not begin with {; is it a safetensors file?`},
		{"space first", raw(" "+good, 8), `the header does not begin with {; is it a safetensors file?`},
		{"list", raw("[]", 0), `the header does not begin with {; is it a safetensors file?`},
		{"cut JSON", raw(good[:30], 8), `tensor "w": the header is not JSON: it ends too early (near byte 30)`},
		{"not JSON", raw(`{"w":nothing}`, 8), `tensor "w": the header is not JSON: invalid character 'o' in literal null (expecting 'u') (near byte 5)`},
		{"trailing comma", raw(good[:len(good)-1]+",}", 8), `the header is not JSON: invalid character '}' looking for beginning of object key string (near byte 54)`},
		{"NUL padding", raw(good+"\x00", 8), `the header goes on after its JSON object ends (near byte 54)`},
		{"two objects", raw(good+"{}", 8), `the header goes on after its JSON object ends (near byte 54)`},
		{"not UTF-8", raw(strings.Replace(good, "w", "\xff", 1), 8), `the header is not valid UTF-8`},
		{"truncated", raw(good, 7), `truncated: 7 bytes of data, but the header describes 8; write or copy the file again`},
		{"trailing bytes", raw(good, 11), `3 bytes follow the last tensor; write or copy the file again`},
		{"no tensors, bytes", raw(`{}`, 1), `1 bytes follow the last tensor; write or copy the file again`},
		{"no tensors", raw(`{}`, 0), `0 parameters with no element; give at least one parameter that is not empty`},
		{"empty tensor only", raw(entry(`"F32"`, `[0]`, `[0,0]`), 0), `1 parameters with no element; give at least one parameter that is not empty`},
		{"overlap", raw(two("[0,8]", "[4,12]"), 16), `tensor "b": data_offsets [4 12] overlap those of "a", which end at 8` + again},
		{"same bytes", raw(two("[0,8]", "[0,8]"), 8), `tensor "b": data_offsets [0 8] overlap those of "a", which end at 8` + again},
		{"gap", raw(two("[0,8]", "[12,20]"), 20), `tensor "b": data_offsets [12 20] leave a gap of 4 bytes before them` + again},
		{"gap at first", raw(entry(`"F32"`, `[2]`, `[8,16]`), 16), `tensor "w": data_offsets [8 16] leave a gap of 8 bytes before them` + again},
		{"out of range", raw(two("[0,8]", "[800,808]"), 16), `tensor "b": data_offsets [800 808] reach beyond the 16 bytes of data` + again},
		{"backwards", raw(entry(`"F32"`, `[2]`, `[8,0]`), 8), `tensor "w": data_offsets [8 0] end before they begin`},
		{"size mismatch", raw(entry(`"F32"`, `[3]`, `[0,8]`), 8), `tensor "w": shape [3] of F32 takes 12 bytes but data_offsets [0 8] hold 8` + again},
		{"size mismatch, smaller", raw(entry(`"F32"`, `[1]`, `[0,8]`), 8), `tensor "w": shape [1] of F32 takes 4 bytes but data_offsets [0 8] hold 8` + again},
		{"scalar mismatch", raw(entry(`"F64"`, `[]`, `[0,4]`), 4), `tensor "w": shape [] of F64 takes 8 bytes but data_offsets [0 4] hold 4` + again},
		{"unknown dtype", raw(entry(`"F128"`, `[2]`, `[0,8]`), 8), `tensor "w": unknown dtype "F128"; gradients are F16, BF16, F32 or F64`},
		{"dtype in small letters", raw(entry(`"f32"`, `[2]`, `[0,8]`), 8), `tensor "w": unknown dtype "f32"; gradients are F16, BF16, F32 or F64`},
		{"I64", raw(entry(`"I64"`, `[1]`, `[0,8]`), 8), `tensor "w": I64 is no gradient's dtype; gradients are F16, BF16, F32 or F64`},
		{"BOOL", raw(entry(`"BOOL"`, `[8]`, `[0,8]`), 8), `tensor "w": BOOL is no gradient's dtype; gradients are F16, BF16, F32 or F64`},
		{"F8", raw(entry(`"F8_E4M3"`, `[8]`, `[0,8]`), 8), `tensor "w": F8_E4M3 is no gradient's dtype; gradients are F16, BF16, F32 or F64`},
		{"half a byte", raw(entry(`"F4"`, `[3]`, `[0,1]`), 1), `tensor "w": shape [3] of F4 fills no whole number of bytes`},
		{"key twice", raw(good[:len(good)-1]+","+good[1:], 8), `the header has the key "w" twice; keys must be unique`},
		{"escaped key twice", raw(good[:len(good)-1]+","+strings.Replace(good[1:], `"w"`, `"\u0077"`, 1), 8), `the header has the key "w" twice; keys must be unique`},
		{"key of an entry twice", raw(`{"w":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "w": the entry has the key "shape" twice; keys must be unique`},
		{"metadata key twice", raw(`{"__metadata__":{"step":"1","step":"2"},`+good[1:], 8), `__metadata__ has the key "step" twice; keys must be unique`},
		{"metadata twice", raw(`{"__metadata__":{},"__metadata__":{},`+good[1:], 8), `the header has the key "__metadata__" twice; keys must be unique`},
		{"metadata not strings", raw(`{"__metadata__":{"step":19},`+good[1:], 8), `__metadata__ "step" is a number, not a string`},
		{"metadata not an object", raw(`{"__metadata__":"no",`+good[1:], 8), `__metadata__ is a string, not an object`},
		{"metadata null", raw(`{"__metadata__":null,`+good[1:], 8), `__metadata__ is null, not an object`},
		{"unknown key", raw(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}}`, 8), `tensor "w": unknown key "strides"; an entry has dtype, shape and data_offsets`},
		{"no dtype", raw(`{"w":{"shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "w": no dtype; gradients are F16, BF16, F32 or F64`},
		{"no shape", raw(`{"w":{"dtype":"F32","data_offsets":[0,8]}}`, 8), `tensor "w": no shape; an entry has dtype, shape and data_offsets`},
		{"no offsets", raw(`{"w":{"dtype":"F32","shape":[2]}}`, 8), `tensor "w": no data_offsets; an entry has dtype, shape and data_offsets`},
		{"three offsets", raw(entry(`"F32"`, `[2]`, `[0,8,8]`), 8), `tensor "w": data_offsets holds 3 numbers, not 2`},
		{"entry is a list", raw(`{"w":[]}`, 8), `tensor "w": the entry is a list, not an object`},
		{"dtype is a number", raw(entry(`32`, `[2]`, `[0,8]`), 8), `tensor "w": dtype is a number, not a string`},
		{"shape is a string", raw(entry(`"F32"`, `"2"`, `[0,8]`), 8), `tensor "w": shape is a string, not a list`},
		{"shape in a shape", raw(entry(`"F32"`, `[[2]]`, `[0,8]`), 8), `tensor "w": shape holds a list, not a whole number`},
		{"shape of a boolean", raw(entry(`"F32"`, `[true]`, `[0,8]`), 8), `tensor "w": shape holds a boolean, not a whole number`},
		{"negative dimension", raw(entry(`"F32"`, `[-2]`, `[0,8]`), 8), `tensor "w": shape holds the negative number -2`},
		{"negative zero", raw(entry(`"F32"`, `[2]`, `[-0,8]`), 8), `tensor "w": data_offsets holds the negative number -0`},
		{"fraction", raw(entry(`"F32"`, `[2.0]`, `[0,8]`), 8), `tensor "w": shape holds 2.0, which is not written as a whole number`},
		{"exponent", raw(entry(`"F32"`, `[2]`, `[0,8e0]`), 8), `tensor "w": data_offsets holds 8e0, which is not written as a whole number`},
		{"2^63", raw(entry(`"F32"`, `[9223372036854775808]`, `[0,8]`), 8), `tensor "w": shape holds 9223372036854775808, which is too large`},
		{"product overflow", raw(entry(`"F32"`, `[4294967296,4294967296]`, `[0,8]`), 8), `tensor "w": shape [4294967296 4294967296] has more than 2^60 elements; check the shape`},
		// 2^64 + 2 elements wrap round to 2, which would fit the offsets.
		{"many dimensions", raw(entry(`"F32"`, `[2`+strings.Repeat(`,2`, 64)+`]`, `[0,8]`), 8), `tensor "w": shape [2` + strings.Repeat(` 2`, 63) + `]... (65 dimensions) has more than 2^60 elements; check the shape`},
		{"product wraps", raw(entry(`"F32"`, `[6148914691236517206,3]`, `[0,8]`), 8), `tensor "w": shape [6148914691236517206 3] has more than 2^60 elements; check the shape`},
		{"bytes overflow", raw(entry(`"F32"`, `[4611686018427387906]`, `[0,8]`), 8), `tensor "w": shape [4611686018427387906] has more than 2^60 elements; check the shape`},
		{"empty name", raw(strings.Replace(good, `"w"`, `""`, 1), 8), `parameter 0 has an empty name; name it`},
		{"line break in a name", raw(`{"a\nb":{"dtype":"F32"}}`, 8), `tensor "a\nb": no shape; an entry has dtype, shape and data_offsets`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := put(t, "g.safetensors", c.file)
			f, err := Open(path)
			if err == nil {
				f.Close()
			}
			wantError(t, err, path, c.want)
		})
	}
}

func TestLongNamesAreCut(t *testing.T) {
	path := put(t, "g.safetensors", raw(`{"`+strings.Repeat("é", 5000)+`":{}}`, 0))
	_, err := Open(path)
	wantError(t, err, path, `tensor "`+strings.Repeat("é", 100)+`"...: no dtype; gradients are F16, BF16, F32 or F64`)
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "none.safetensors"), "no such file or directory; check the path"},
		{dir, "not a regular file; name a safetensors file"},
		{pipe, "not a regular file; name a safetensors file"},
		{"/dev/null", "not a regular file; name a safetensors file"},
	} {
		_, err := Open(c.path)
		wantError(t, err, c.path, c.want)
		_, _, err = ReadCheckpoint(c.path)
		wantError(t, err, c.path, c.want)
	}
	t.Run("permission", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("needs a user other than root, whom no permission stops")
		}
		path := put(t, "g.safetensors", nil)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		wantError(t, err, path, "permission denied; make it readable for this user")
	})
}
