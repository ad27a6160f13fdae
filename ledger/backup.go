package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/internal/boltfile"
)

// BackupOptions of a copy.
type BackupOptions struct {
	// Compact leaves out every payload that may be retired: decisions, hashes and permanent payloads stay, proofs still
	// hold, and ledger.db is rewritten without free space.
	Compact bool
}

// Backup copies the ledger as it is at one moment to a new directory, while writing goes on. The copy opens by itself.
func (l *Ledger) Backup(ctx context.Context, to string, o BackupOptions) error {
	l.retireMu.RLock() // no file may go meanwhile
	defer l.retireMu.RUnlock()
	if err := prepareTarget(to); err != nil {
		return err
	}
	if _, err := l.enqueue(ctx, &request{settle: true}).All(ctx); err != nil {
		return err
	}
	// Events first: whatever they name was durable before them, so it is in the segments copied later.
	err := copyTo(filepath.Join(to, databaseName), func(f *os.File) error {
		return guarded(databaseName, func() error {
			return l.db.View(func(tx *bolt.Tx) error {
				_, err := tx.WriteTo(whileWanted{ctx, f})
				return err
			})
		})
	})
	if err != nil {
		return err
	}
	return finishBackup(ctx, l.dir, to, o, func(rec segmentRecord, path string) error {
		g := l.segments.get(rec.ID)
		if g == nil {
			return damagedf(databaseName, "segment %d is not recorded", rec.ID)
		}
		for {
			g.mu.Lock()
			w := g.w
			if w == nil { // no writer: copy the file while none can start
				defer g.mu.Unlock()
				return copyFile(ctx, g.path, path, rec)
			}
			g.mu.Unlock()
			err := copyTo(path, func(f *os.File) error {
				_, err := w.WriteTo(whileWanted{ctx, f})
				return err
			})
			if !errors.Is(err, boltfile.ErrWriterClosed) {
				return err
			}
		}
	})
}

// Backup copies a ledger that nobody writes.
func (r *Reader) Backup(ctx context.Context, to string, o BackupOptions) error {
	if err := prepareTarget(to); err != nil {
		return err
	}
	if err := copyFile(ctx, filepath.Join(r.dir, databaseName), filepath.Join(to, databaseName), segmentRecord{}); err != nil {
		return err
	}
	if !r.tail.empty() {
		db, err := openBolt(filepath.Join(to, databaseName), databaseName, bolt.Options{})
		if err != nil {
			return err
		}
		if err := errors.Join(bring(db, r.tail.layers[0]), db.Close()); err != nil {
			return err
		}
	}
	return finishBackup(ctx, r.dir, to, o, func(rec segmentRecord, path string) error {
		return copyFile(ctx, filepath.Join(r.dir, filepath.FromSlash(rec.file())), path, rec)
	})
}

// whileWanted ends a copy when ctx does: closing a ledger must not wait for a backup of gigabytes.
type whileWanted struct {
	ctx context.Context
	w   io.Writer
}

func (w whileWanted) Write(b []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.w.Write(b)
}

func prepareTarget(to string) error {
	if entries, err := os.ReadDir(to); err == nil && len(entries) > 0 {
		return exists(to)
	}
	if err := makeDirs(to); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(to, segmentDir), 0o755)
}

func copyTo(path string, fill func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func copyFile(ctx context.Context, from, to string, rec segmentRecord) error {
	src, err := os.Open(from)
	if os.IsNotExist(err) && rec.ID != 0 {
		return &DamageError{File: rec.file(), Chunk: -1, What: "the segment file is missing"}
	}
	if err != nil {
		return err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	name := rec.file()
	if rec.ID == 0 {
		name = databaseName
	}
	b, err := boltfile.Open(src, st.Size())
	if err != nil {
		return &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
	}
	return copyTo(to, func(f *os.File) error {
		_, err := io.CopyN(whileWanted{ctx, f}, src, b.Used())
		return err
	})
}

// finishBackup copies the segments that the copied ledger.db knows, and writes the copy's HEAD.
func finishBackup(ctx context.Context, from, to string, o BackupOptions, copySegment func(rec segmentRecord, path string) error) error {
	r, err := openReader(to, Options{})
	if err != nil {
		return err
	}
	head, err := r.checkHead()
	if err != nil {
		r.Close()
		return err
	}
	head.Run = r.run
	recs, err := r.segmentRecords()
	r.Close()
	if err != nil {
		return err
	}
	var drop []segmentRecord
	for _, rec := range recs {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if rec.gone() {
			continue
		}
		if o.Compact && rec.Class != ClassPermanent {
			rec.State = segDropped
			drop = append(drop, rec)
			continue
		}
		if err := copySegment(rec, filepath.Join(to, filepath.FromSlash(rec.file()))); err != nil {
			return err
		}
	}
	if o.Compact {
		if err := compactDatabase(filepath.Join(to, databaseName), drop); err != nil {
			return err
		}
	}
	if err := createHead(to, head); err != nil {
		return err
	}
	if b, err := os.ReadFile(filepath.Join(from, headNoteName)); err == nil {
		if err := writeFileDurably(filepath.Join(to, headNoteName), b); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(filepath.Join(to, segmentDir)), syncDir(to))
}

// compactDatabase records dropped segments and rewrites the file without free pages.
func compactDatabase(path string, drop []segmentRecord) error {
	src, err := openBolt(path, databaseName, bolt.Options{})
	if err != nil {
		return err
	}
	defer src.Close()
	err = guarded(databaseName, func() error {
		return src.Update(func(tx *bolt.Tx) error {
			for _, rec := range drop {
				if err := tx.Bucket(bucketSegments).Put(indexKey(rec.ID), rec.encode()); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	tmp := path + ".new"
	dst, err := openBolt(tmp, databaseName, bolt.Options{PageSize: src.Info().PageSize})
	if err != nil {
		return err
	}
	err = guarded(databaseName, func() error { return bolt.Compact(dst, src, 4<<20) })
	err = errors.Join(err, dst.Close())
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("ledger: compact: %w", err)
	}
	if err := syncFile(tmp); err != nil {
		return err
	}
	if err := src.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
