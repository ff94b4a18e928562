package params

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ddpstep/ddpstep/gradsync/contract"
)

func TestModels(t *testing.T) {
	want := map[string]struct {
		params   int
		elements int64
		first    string
	}{
		"bert-base":  {202, 109514298, "bert.embeddings.word_embeddings.weight"},
		"gpt2":       {148, 124439808, "transformer.wte.weight"},
		"llama-2-7b": {291, 6738415616, "model.embed_tokens.weight"},
		"llama-3-8b": {291, 8030261248, "model.embed_tokens.weight"},
		"resnet50":   {161, 25557032, "conv1.weight"},
		"vit_b_16":   {152, 86567656, "class_token"},
	}
	if got := len(Models()); got != len(want) {
		t.Errorf("%d models, want %d", got, len(want))
	}
	for _, name := range Models() {
		l, err := Model(name)
		if err != nil {
			t.Fatal(err)
		}
		w := want[name]
		if len(l) != w.params || l.Elements() != w.elements || l[0].Name != w.first || l[0].DType != contract.Float32 {
			t.Errorf("%s: %d parameters, %d elements, first %v; want %v", name, len(l), l.Elements(), l[0], w)
		}
		if got := l.WithDType(contract.BFloat16).Bytes(); got != 2*w.elements || l.Bytes() != 4*w.elements {
			t.Errorf("%s: %d bytes in bfloat16, then %d in float32", name, got, l.Bytes())
		}
	}
	for _, name := range []string{"gpt3", "", "../list", "gpt2.json"} {
		_, err := Model(name)
		wantError(t, err, "", "no built-in model "+quote(name)+"; choose one of bert-base, gpt2, llama-2-7b, llama-3-8b, resnet50, vit_b_16")
	}
}

func TestReadList(t *testing.T) {
	path := put(t, "l.json", []byte(`{"parameters": [
		{"shape": [10, 128], "name": "w"}, {"name": "b", "dtype": "float16", "shape": []}, {"name": "e", "shape": [0]}
	], "dtype": "bfloat16"}`))
	got, err := ReadList(path)
	want := List{param("w", contract.BFloat16, 10, 128), param("b", contract.Float16), param("e", contract.BFloat16, 0)}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
}

func TestMalformedLists(t *testing.T) {
	of := func(parameters string) string { return `{"dtype":"float32","parameters":[` + parameters + `]}` }
	const keys = `; a list has "model", "dtype" and "parameters"`
	for _, c := range []struct{ name, json, want string }{
		{"empty", ``, `the list is not JSON: it ends too early (near byte 0)`},
		{"a list", `[]`, `the list is a list, not an object`},
		{"cut", `{"parameters":[`, `the list is not JSON: it ends too early (near byte 15)`},
		{"trailing data", of(`{"name":"a","shape":[1]}`) + ` {}`, `the list goes on after its JSON object ends (near byte 59)`},
		{"trailing brace", of(`{"name":"a","shape":[1]}`) + `}`, `the list goes on after its JSON object ends (near byte 59)`},
		{"byte order mark", "\ufeff" + of(`{"name":"a","shape":[1]}`), `the list is not JSON: invalid character 'ï' looking for beginning of value (near byte 0)`},
		{"UTF-16", "\xff\xfe{\x00}\x00", `the list is not valid UTF-8`},
		{"unknown key", `{"Parameters":[]}`, `unknown key "Parameters"` + keys},
		{"key twice", `{"model":"a","model":"b"}`, `the list has the key "model" twice; keys must be unique`},
		{"model", `{"model":3}`, `"model" is a number, not a string`},
		{"dtype", `{"dtype":"fp32"}`, `unknown dtype "fp32"; use float16, bfloat16, float32 or float64`},
		{"no parameters", `{"dtype":"float32"}`, `no "parameters"` + keys},
		{"null parameters", `{"parameters":null}`, `"parameters" is null, not a list`},
		{"none", of(``), `0 parameters with no element; give at least one parameter that is not empty`},
		{"all empty", of(`{"name":"a","shape":[0]},{"name":"b","shape":[3,0]}`), `2 parameters with no element; give at least one parameter that is not empty`},
		{"not an object", of(`"a"`), `parameter 0 is a string, not an object`},
		{"unknown key of a parameter", of(`{"name":"a","size":3}`), `tensor "a": parameter 0 has the unknown key "size"; a parameter has "name", "shape" and "dtype"`},
		{"key of a parameter twice", of(`{"name":"a","shape":[1]},{"name":"b","name":"c"}`), `parameter 1 has the key "name" twice; keys must be unique`},
		{"no name", of(`{"shape":[1]}`), `parameter 0 has an empty name; name it`},
		{"no shape", of(`{"name":"a"}`), `tensor "a": parameter 0 has no "shape"; write [] for a scalar`},
		{"no dtype", `{"parameters":[{"name":"a","shape":[1]}]}`, `tensor "a": no dtype; use float16, bfloat16, float32 or float64`},
		{"name twice", of(`{"name":"a","shape":[1]},{"name":"b","shape":[1]},{"name":"a","shape":[1]}`), `tensor "a": listed twice, as parameter 0 and 2; names must be unique`},
		{"reserved", of(`{"name":"__metadata__","shape":[1]}`), `tensor "__metadata__": the name is reserved by the safetensors format; rename the parameter`},
		{"negative", of(`{"name":"a","shape":[3,-1]}`), `tensor "a": parameter 0 "shape" holds the negative number -1`},
		{"fraction", of(`{"name":"a","shape":[1.5]}`), `tensor "a": parameter 0 "shape" holds 1.5, which is not written as a whole number`},
		{"too large", of(`{"name":"a","shape":[` + strings.Repeat("9", 50) + `]}`), `tensor "a": parameter 0 "shape" holds ` + strings.Repeat("9", 40) + `..., which is too large`},
		{"overflow", of(`{"name":"a","shape":[4294967296,4294967296,2]}`), `tensor "a": shape [4294967296 4294967296 2] has more than 2^60 elements; check the shape`},
		{"overflow before a zero", of(`{"name":"a","shape":[4294967296,4294967296,0]}`), `tensor "a": shape [4294967296 4294967296 0] has more than 2^60 elements; check the shape`},
		{"overflow of the sum", of(`{"name":"a","shape":[1000000000000000000]},{"name":"b","shape":[1000000000000000000]}`), `tensor "b": more than 2^60 elements up to this parameter; check the shapes`},
		{"deep", of(strings.Repeat("[", 100000)), `parameter 0 is a list, not an object`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := put(t, "l.json", []byte(c.json))
			_, err := ReadList(path)
			wantError(t, err, path, c.want)
		})
	}
	_, err := ReadList("none.json")
	wantError(t, err, "none.json", "no such file or directory; check the path")
	_, err = ReadList("models")
	wantError(t, err, "models", "is a directory")
	_, err = ReadList("/dev/zero")
	wantError(t, err, "/dev/zero", "longer than 100000000 bytes, too long for a parameter list; is it the right file?")
}

// TestValidate has the faults that no file can show.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		p    Param
		want string
	}{
		{param("a\xff", contract.Float32, 1), `tensor "a\xff": the name is not valid UTF-8; rename the parameter`},
		{param("a", 0, 1), `tensor "a": no dtype; use float16, bfloat16, float32 or float64`},
		{param("a", 9, 1), `tensor "a": no dtype; use float16, bfloat16, float32 or float64`},
		{param("a", contract.Float32, 0, -1), `tensor "a": shape [0 -1] has a negative dimension; dimensions count elements`},
	} {
		wantError(t, List{c.p}.Validate(), "", c.want)
	}
	for _, shape := range [][]int64{nil, {}, {1}, {math.MaxInt64 / 8}, {1 << 30, 1<<30 - 1}} {
		p := param("a", contract.Float64, shape...)
		if err := (List{p, param("empty", contract.Float64, 1, 0)}).Validate(); err != nil {
			t.Error(shape, err)
		}
		if p.Bytes() <= 0 {
			t.Errorf("%v: %d bytes", shape, p.Bytes())
		}
	}
}
