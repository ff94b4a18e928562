package contract

// HasVector says whether folds run as assembly here.
var HasVector = hasVector

// Portable makes f fold without assembly.
func (f *Folder) Portable() *Folder {
	f.asm = false
	return f
}
