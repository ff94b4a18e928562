// Package params knows what is reduced: the names, dtypes and shapes of the
// parameters, and the files that hold their gradients.
//
// # Lists
//
// A [List] comes from one of four places: a JSON file ([ReadList]), a model
// built into the program ([Model]), the header of a safetensors checkpoint
// ([ReadCheckpoint]), or the gradient files themselves ([File.Params],
// [Set.Params]). Every list that this package returns has passed
// [List.Validate].
//
// # Gradient files
//
// A safetensors file is eight bytes of header length, a JSON header that names
// every tensor with its dtype, shape and byte range, and the tensors' bytes.
// [Open] reads and checks the header once; tensors are then read by slice, so a
// file may be larger than memory. [OpenSet] does so for one file per logical
// rank and refuses a set whose files do not hold the same parameters. [Write]
// streams a file and puts it in place only when it is complete.
//
// The format stores little-endian, row-major elements. This package moves bytes
// and never looks inside an element, so it is right on any host; who views the
// bytes as numbers needs a little-endian host or swaps them.
//
// The header promises no order of tensors. Here the order is that of the data
// in the file, which for files written by the format's own library is by dtype
// and then by name, not by registration. OrderAs puts a list's order in its
// place.
//
// # Why not a library
//
// github.com/nlpodyssey/safetensors (v0.0.0-20250209183917-bfb01cc25f7c, the
// newest) takes and returns whole files in memory, so a rank would hold its
// gradients twice and slices cannot be read. Duplicate keys pass, the last one
// winning; trailing bytes, gaps, overlaps and truncation share two messages
// that say neither which bytes nor how many; and its names for dtypes stop
// before the 8-bit floats, so a checkpoint with one is "invalid". Its writer
// wants all tensors in memory too.
//
// # Errors
//
// Every error is an [*Error] and prints as one line. Misuse by the programmer
// (an index or a slice outside a tensor) panics.
package params
