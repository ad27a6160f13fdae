package writelog

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
)

// Kind of an operation.
type Kind uint8

// The kinds. Names are relative to the recorded directory.
const (
	Create   Kind = iota // Name now leads to File, a new empty file
	Mkdir                // Name is a new directory
	Write                // Data at Off of File
	Truncate             // File has Size bytes
	Rename               // To leads where Name led, Name is gone
	Unlink               // Name is gone
	Sync                 // everything that File held is durable
	SyncDir              // every name in directory Name is durable
	Say                  // Data was written to standard output
)

// Op is one operation. Start and End are instants: the numbers of the stops in which it began and ended.
type Op struct {
	Kind       Kind
	File       int
	Name, To   string
	Off, Size  int64
	Data       []byte
	Start, End int
}

// Log is a record.
type Log struct {
	Ops []Op // by Start
	End int  // the first instant after everything
}

// never is the end of an operation that was not seen to end.
const never = int(^uint(0) >> 1)

// Said gives what had been said at an instant.
func (l *Log) Said(at int) []byte {
	var b []byte
	for _, op := range l.Ops {
		if op.Kind == Say && op.Start <= at {
			b = append(b, op.Data...)
		}
	}
	return b
}

// Instants gives the instants at which something began or ended that concerns files: crashes between them are alike.
func (l *Log) Instants() []int {
	var list []int
	for _, op := range l.Ops {
		list = append(list, op.Start)
		if op.End != never {
			list = append(list, op.End)
		}
	}
	sort.Ints(list)
	return list
}

// Rules say what a crash may do.
type Rules struct {
	Sector      int64 // bytes that are written whole or not at all; default 512
	InOrder     bool  // of the changes that no sync covers, those of names and sizes up to some point happen, as in a journal
	IgnoreSyncs bool  // syncs do nothing: shows that a test would notice
}

// durable says which operations a returned sync covers at an instant.
func (l *Log) durable(at int, rules Rules) []bool {
	out := make([]bool, len(l.Ops))
	if rules.IgnoreSyncs {
		return out
	}
	files, dirs := map[int]int{}, map[string]int{} // newest instant that a sync covers
	for i := len(l.Ops) - 1; i >= 0; i-- {
		op := &l.Ops[i]
		switch op.Kind {
		case Sync:
			if op.End <= at {
				files[op.File] = max(files[op.File], op.Start)
			}
		case SyncDir:
			if op.End <= at {
				dirs[op.Name] = max(dirs[op.Name], op.Start)
			}
		}
	}
	for i := range l.Ops {
		op := &l.Ops[i]
		switch op.Kind {
		case Write, Truncate:
			out[i] = op.End < files[op.File]
		case Create, Mkdir, Unlink:
			out[i] = op.End < dirs[filepath.Dir(op.Name)]
		case Rename:
			out[i] = op.End < dirs[filepath.Dir(op.Name)] && op.End < dirs[filepath.Dir(op.To)]
		}
	}
	return out
}

// names follows the names that lead to files.
type names struct {
	files map[string]int
	dirs  map[string]bool
}

func (n *names) apply(op *Op, moved int) {
	switch op.Kind {
	case Create:
		n.files[op.Name] = op.File
	case Mkdir:
		n.dirs[op.Name] = true
	case Unlink:
		delete(n.files, op.Name)
	case Rename:
		delete(n.files, op.Name)
		n.files[op.To] = moved
	}
}

// Image writes to dir the files as a crash at an instant may have left them; r decides among what may be.
func (l *Log) Image(dir string, at int, r *rand.Rand, rules Rules) error {
	if rules.Sector == 0 {
		rules.Sector = 512
	}
	durable := l.durable(at, rules)
	// How lucky unsynced things are differs from crash to crash: none, all, or each by chance.
	luck := []float64{0, 1, 0.5, 0.1, 0.9}
	nameLuck, dataLuck, tear := luck[r.IntN(len(luck))], luck[r.IntN(len(luck))], r.IntN(2) == 0
	limit := at
	if rules.InOrder {
		limit = r.IntN(at + 1)
	}
	happens := func(i int, p float64) bool {
		op := &l.Ops[i]
		switch {
		case op.Start > at:
			return false
		case durable[i]:
			return true
		case rules.InOrder && op.Kind != Write:
			return op.Start <= limit
		}
		return r.Float64() < p
	}
	// Names, as they really were (to know what a rename moved) and as they are after the crash.
	real := names{map[string]int{}, map[string]bool{}}
	left := names{map[string]int{}, map[string]bool{".": true}}
	for i := range l.Ops {
		op := &l.Ops[i]
		switch op.Kind {
		case Create, Mkdir, Unlink, Rename:
			moved := real.files[op.Name]
			if op.Start <= at {
				real.apply(op, moved)
			}
			if happens(i, nameLuck) {
				left.apply(op, moved)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var dirs []string
	for d := range left.dirs {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	for _, d := range dirs {
		if left.has(filepath.Dir(d)) {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	open := map[int]*os.File{}
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	var list []string
	for name := range left.files {
		list = append(list, name)
	}
	sort.Strings(list)
	for _, name := range list {
		if !left.has(filepath.Dir(name)) {
			continue // its directory is not there
		}
		id := left.files[name]
		if f := open[id]; f != nil { // two names for one file, until a rename is whole
			if err := os.Link(f.Name(), filepath.Join(dir, name)); err != nil {
				return err
			}
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		open[id] = f
	}
	for i := range l.Ops {
		op := &l.Ops[i]
		if op.Kind != Write && op.Kind != Truncate {
			continue
		}
		f := open[op.File]
		if f == nil || !happens(i, dataLuck) {
			continue
		}
		if op.Kind == Truncate {
			if err := f.Truncate(op.Size); err != nil {
				return err
			}
			continue
		}
		if durable[i] || !tear {
			if _, err := f.WriteAt(op.Data, op.Off); err != nil {
				return err
			}
			continue
		}
		for from := int64(0); from < int64(len(op.Data)); {
			to := min(int64(len(op.Data)), (op.Off+from)/rules.Sector*rules.Sector+rules.Sector-op.Off)
			if r.IntN(2) == 0 {
				if _, err := f.WriteAt(op.Data[from:to], op.Off+from); err != nil {
					return err
				}
			}
			from = to
		}
	}
	return nil
}

// has says whether a directory and all above it are there.
func (n *names) has(d string) bool {
	for d != "." {
		if !n.dirs[d] {
			return false
		}
		d = filepath.Dir(d)
	}
	return true
}

// String gives an operation for a person.
func (op Op) String() string {
	switch op.Kind {
	case Create:
		return fmt.Sprintf("create %s = file %d", op.Name, op.File)
	case Mkdir:
		return "mkdir " + op.Name
	case Write:
		return fmt.Sprintf("write file %d: %d bytes at %d", op.File, len(op.Data), op.Off)
	case Truncate:
		return fmt.Sprintf("truncate file %d to %d", op.File, op.Size)
	case Rename:
		return fmt.Sprintf("rename %s to %s", op.Name, op.To)
	case Unlink:
		return "unlink " + op.Name
	case Sync:
		return fmt.Sprintf("sync file %d", op.File)
	case SyncDir:
		return "sync directory " + op.Name
	}
	return fmt.Sprintf("say %q", op.Data)
}
