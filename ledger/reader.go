package ledger

import (
	"errors"
	"os"
	"path/filepath"

	"quire/ledger/internal/boltfile"
)

// Reader reads a ledger that nobody writes. It changes nothing on disk, and trusts nothing there.
type Reader struct {
	view
	dir   string
	file  *os.File
	pages *boltfile.File
	tail  tail // what a crash left in the journal
	head  Head
	run   RunID
}

// OpenReader opens a closed ledger for reading. A ledger that is being written gives a *LockedError: use Dial.
// Of the options it takes Decoders and AcceptRollback.
func OpenReader(dir string, o Options) (*Reader, error) {
	if err := present(dir); err != nil {
		return nil, err
	}
	if h, held, err := ReadHolder(dir); err == nil && held {
		return nil, &LockedError{Holder: h}
	}
	r, err := openReader(dir, o)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Reader, error) {
		r.Close()
		return nil, err
	}
	head, err := r.checkHead()
	if err != nil {
		return fail(err)
	}
	head.Run = r.run
	if head, err = r.addJournal(head); err != nil && !(o.AcceptRollback && errors.Is(err, ErrDamaged)) {
		return fail(err)
	}
	r.head = head
	anchor, _, err := readHead(dir)
	switch {
	case errors.Is(err, ErrNewer):
		return fail(err)
	case err == nil && anchor.Run != r.run:
		return fail(damagedf(headFileName, "it belongs to run %s, ledger.db to run %s", anchor.Run, r.run))
	case err == nil && !o.AcceptRollback:
		if err := r.compareAnchor(anchor, head); err != nil {
			return fail(err)
		}
	}
	return r, nil
}

// openReader opens the file without judging its head: fsck and salvage look at damaged ledgers.
func openReader(dir string, o Options) (*Reader, error) {
	f, err := os.Open(filepath.Join(dir, databaseName))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		f.Close()
		return nil, &DamageError{File: databaseName, Chunk: -1, What: "file header", Inner: err}
	}
	r := &Reader{dir: dir, file: f, pages: b}
	r.view = view{st: layeredStore{fileStore{b}, &r.tail}, decoders: o.Decoders}
	r.view.seg = &stillSegments{dir: dir, st: r.st}
	if r.run, err = readMeta(r.st); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// addJournal adds the events that a crash left in the journal to those of ledger.db, which ends with head, and gives the head
// after them.
func (r *Reader) addJournal(head Head) (Head, error) {
	y, c, err := r.replay(r.dir, head, r.run)
	if y != nil {
		r.tail.layers = []*layer{y}
	}
	return c.head, err
}

// Head is the newest event's.
func (r *Reader) Head() Head { return r.head }

// Run is the ledger's id.
func (r *Reader) Run() RunID { return r.run }

// Close releases the files.
func (r *Reader) Close() error {
	return errors.Join(r.seg.(*stillSegments).close(), r.file.Close())
}
